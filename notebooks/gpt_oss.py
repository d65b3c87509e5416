# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GPT-OSS, step by step
#
# The course's homework, in its order: the parts of a small GPT-OSS with every blank filled, its tests, its data, its
# training, generation, and the report. Cells that begin with `[do not modify]` and the tests are the course's own.
#
# `glassformer.labs.gpt_oss` has the same parts under the same names. Its experiments (other optimizers, variants of the
# model, longer trainings, attention sinks) are one command: `glassformer lab gpt-oss`.

# %%
# %matplotlib inline
#[do not modify]

import torch
import torch.nn.functional as F
from typing import Optional, Callable

# %% [markdown]
# ## SwiGLU feed-forward
#
# $\mathrm{result} = W_2(\mathrm{SiLU}(W_1 x) \odot V x)$: one projection gates the other.

# %%
class SwiGLUFeedForward(torch.nn.Module):
    def __init__(self, hidden_dim: int, inner_dim: int) -> None:
        super().__init__()
        self.w1 = torch.nn.Linear(hidden_dim, inner_dim, bias=False)
        self.v = torch.nn.Linear(hidden_dim, inner_dim, bias=False)
        self.w2 = torch.nn.Linear(inner_dim, hidden_dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x.shape) == 3, f"Expected 3D tensor, got shape {x.shape}"
        result = self.w2(F.silu(self.w1(x)) * self.v(x))
        return result

# %% [markdown]
# ## Rotary positional embedding
#
# Each pair of coordinates turns by an angle proportional to the position, each pair at a speed of its own. The pairs
# here are (0, d/2), (1, d/2 + 1), ..., as in GPT-OSS and as the course's expected values have it. Cosines and sines are
# computed in advance.

# %%
class RotaryPositionalEmbedding(torch.nn.Module):
    def __init__(self, head_dim: int, max_seq_len: int = 2048, base: float = 10000.0) -> None:
        super().__init__()
        assert head_dim % 2 == 0, "head_dim must be even for RoPE"
        self.frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
        self._precompute_cache(max_seq_len)

    def _precompute_cache(self, seq_len: int) -> None:
        angles = torch.outer(torch.arange(seq_len).float(), self.frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        stop = start_pos + x.shape[2]
        cos, sin = self.cos[start_pos:stop], self.sin[start_pos:stop]
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

# %%
##### TESTS START #####

@torch.no_grad()
def test_rope() -> None:
    """Test RoPE applies correct rotations."""
    head_dim = 4
    max_seq_len = 8
    batch, num_heads, seq_len = 2, 2, 4

    rope = RotaryPositionalEmbedding(head_dim, max_seq_len)
    x = torch.ones(batch, num_heads, seq_len, head_dim)

    result = rope(x)

    expected = torch.tensor(
        [[[[ 1.0000,  1.0000,  1.0000,  1.0000],
          [-0.3012,  0.9900,  1.3818,  1.0099],
          [-1.3254,  0.9798,  0.4932,  1.0198],
          [-1.1311,  0.9696, -0.8489,  1.0295]],

         [[ 1.0000,  1.0000,  1.0000,  1.0000],
          [-0.3012,  0.9900,  1.3818,  1.0099],
          [-1.3254,  0.9798,  0.4932,  1.0198],
          [-1.1311,  0.9696, -0.8489,  1.0295]]],


        [[[ 1.0000,  1.0000,  1.0000,  1.0000],
          [-0.3012,  0.9900,  1.3818,  1.0099],
          [-1.3254,  0.9798,  0.4932,  1.0198],
          [-1.1311,  0.9696, -0.8489,  1.0295]],

         [[ 1.0000,  1.0000,  1.0000,  1.0000],
          [-0.3012,  0.9900,  1.3818,  1.0099],
          [-1.3254,  0.9798,  0.4932,  1.0198],
          [-1.1311,  0.9696, -0.8489,  1.0295]]]]
    )

    assert result.shape == x.shape, f"Shape mismatch: {result.shape} vs {x.shape}"
    assert torch.allclose(result, expected, atol=1e-4), "Error in ROPE"


test_rope()

#####  TESTS END  #####

# %% [markdown]
# What a score then depends on is the *distance* of query and key: moving both by 100 positions changes nothing.

# %%
import matplotlib.pyplot as plt
import numpy as np

torch.manual_seed(0)
rope = RotaryPositionalEmbedding(16)
one_query, one_key = torch.randn(2, 1, 1, 1, 16)


def score(query: torch.Tensor, key: torch.Tensor, query_at: int, key_at: int) -> float:
    """The product of a rotated query and a rotated key."""
    return float((rope(query, start_pos=query_at) * rope(key, start_pos=key_at)).sum())


print("distance 5, at positions  5 and   0:", round(score(one_query, one_key, 5, 0), 4))
print("distance 5, at positions 105 and 100:", round(score(one_query, one_key, 105, 100), 4))
plt.figure(figsize=(7, 3))
plt.plot([score(one_query, one_query, 60, 60 - distance) for distance in range(61)], label="key equal to the query")
plt.plot([score(one_query, one_key, 60, 60 - distance) for distance in range(61)], "--", label="another key")
plt.xlabel("distance in positions")
plt.ylabel("score")
plt.ylim(-7, 19)
plt.legend(loc="upper right", ncols=2)
plt.show()

# %% [markdown]
# A key equal to the query matches best at distance 0. The score does not fall steadily with the distance: the pairs turn
# at different speeds, and wherever most of them come back into step, it comes close to its first value again.
#
# ## Grouped query attention
#
# By hand: rotate, weight the keys of each head, compare each query with each key, mask what lies ahead, softmax, average
# the values. Consecutive query heads share a key-value head, which is repeated for them.

# %%
def calculate_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_weights: torch.Tensor,
    rope: RotaryPositionalEmbedding,
    scale: float,
    device: torch.device,
    mask: Optional[torch.Tensor] = None
) -> torch.Tensor:
    seq_len, group = q.shape[2], q.shape[1] // k.shape[1]
    q, k = rope(q), rope(k)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    k = key_weights[:, None, None] * k
    if mask is None:  # 0 where a query may see a key, -inf where it may not
        mask = torch.full((seq_len, seq_len), float("-inf"), device=device).triu(1)
    attention = (q @ k.transpose(-1, -2) * scale + mask).softmax(dim=-1)
    output = attention @ v
    return output


class GroupedQueryAttention(torch.nn.Module):
    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        head_dim: int,
        num_kv_heads: Optional[int] = None
    ) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_kv_heads = num_kv_heads if num_kv_heads is not None else num_heads
        self.scale = head_dim ** -0.5

        assert num_heads % self.num_kv_heads == 0, "num_heads must be divisible by num_kv_heads"
        self.num_queries_per_kv = num_heads // self.num_kv_heads

        self.query = torch.nn.Linear(hidden_dim, num_heads * head_dim, bias=False)
        self.key = torch.nn.Linear(hidden_dim, self.num_kv_heads * head_dim, bias=False)
        self.value = torch.nn.Linear(hidden_dim, self.num_kv_heads * head_dim, bias=False)
        self.output = torch.nn.Linear(num_heads * head_dim, hidden_dim, bias=False)
        self.key_weights = torch.nn.Parameter(torch.ones(num_heads))
        self.rope = RotaryPositionalEmbedding(head_dim)

    def heads(self, projected: torch.Tensor) -> torch.Tensor:
        batch, seq_len, _ = projected.shape
        return projected.view(batch, seq_len, -1, self.head_dim).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x.shape) == 3
        batch, seq_len, _ = x.shape
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        output = calculate_attention(q, k, v, self.key_weights, self.rope, self.scale, x.device)
        output = self.output(output.transpose(1, 2).reshape(batch, seq_len, -1))
        return output

# %%
##### TESTS START #####
@torch.no_grad()
def test_calculate_attention() -> None:
    """Test the calculate_attention function independently of module weights."""
    torch.manual_seed(42)
    batch, seq_len = 2, 4
    num_heads, num_kv_heads, head_dim = 4, 2, 4

    q = torch.randn(batch, num_heads, seq_len, head_dim)
    k = torch.randn(batch, num_kv_heads, seq_len, head_dim)
    v = torch.randn(batch, num_kv_heads, seq_len, head_dim)

    key_weights = torch.randn(num_heads)
    rope = RotaryPositionalEmbedding(head_dim)
    scale = head_dim ** -0.5

    output = calculate_attention(q, k, v, key_weights, rope, scale, q.device)

    assert output.shape == (batch, num_heads, seq_len, head_dim), \
        f"Wrong output shape: {output.shape}, expected {(batch, num_heads, seq_len, head_dim)}"

    expected = torch.tensor(
        [[[[ 1.7744, -0.9216,  0.9624, -0.3370],
          [ 0.3143, -0.2881,  0.7230,  0.4999],
          [ 0.3844,  0.4978,  0.3157,  0.0305],
          [ 0.3285,  0.6624,  0.5529,  0.1313]],

         [[ 1.7744, -0.9216,  0.9624, -0.3370],
          [-0.0153, -0.1452,  0.6690,  0.6888],
          [ 0.1277,  0.6668,  0.2440,  0.1472],
          [ 0.3011,  0.7186,  0.5328,  0.1269]],

         [[-0.8146, -1.0212, -0.4949, -0.5923],
          [-0.2359, -0.1480, -0.2879, -1.6233],
          [-0.0641,  0.5656, -0.6690, -1.0527],
          [-0.0747, -0.1315, -0.0178,  0.9354]],

         [[-0.8146, -1.0212, -0.4949, -0.5923],
          [-0.6315, -0.7449, -0.4294, -0.9186],
          [-0.6552, -0.6012, -0.6129, -0.5296],
          [ 0.1580,  0.3066, -0.0132, -1.6795]]],

        [[[-0.0045,  1.6668,  0.1539, -1.0603],
          [-0.2895,  0.8726,  0.2773,  0.4695],
          [-0.2155,  0.2792, -0.5029, -0.0560],
          [-0.1606,  0.2407, -0.3138,  0.0749]],

         [[-0.0045,  1.6668,  0.1539, -1.0603],
          [-0.2733,  0.9177,  0.2703,  0.3825],
          [-0.2363,  0.3177, -0.4039,  0.0707],
          [-0.1465,  0.1215, -0.3514,  0.1096]],

         [[-0.9291,  0.2762, -0.5389,  0.4626],
          [-0.9150,  0.2015, -0.4932,  0.7090],
          [-0.5811,  0.0459, -0.2781,  0.7316],
          [-0.2906,  0.2335, -0.0824,  0.5158]],

         [[-0.9291,  0.2762, -0.5389,  0.4626],
          [-0.8976,  0.1089, -0.4365,  1.0148],
          [-0.1522, -0.1901,  0.0176,  0.8908],
          [ 0.8761, -0.5560,  0.6310,  0.6123]]]]
    )

    assert torch.allclose(output, expected, atol=1e-4), \
        f"calculate_attention output values mismatch"


test_calculate_attention()

#####  TESTS END  #####

# %% [markdown]
# The library computes the same in one call, `attend`, with PyTorch's fused kernel. The two agree to rounding.

# %%
from glassformer.kernels.pattern import Pattern
from glassformer.layers.attention import attend

q, k, v = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
weights = torch.randn(4)
by_hand = calculate_attention(q, k, v, weights, rope, 0.25, q.device)
fused = attend(rope(q), rope(k), v, Pattern(causal=True), scale=0.25, key_weights=weights)
print("largest difference:", float((by_hand - fused).abs().max()))

for kv_heads in (4, 2, 1):
    layer = GroupedQueryAttention(64, 4, 16, kv_heads)
    numbers = sum(weight.numel() for weight in layer.parameters())
    print(f"{kv_heads} key-value heads: {numbers:6,} weights, {2 * kv_heads * 16:4} numbers of a token in a cache")

# %% [markdown]
# The key weight $w$ of a head sets how sharply it chooses. Three tokens, one head without rotation:

# %%
small_q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
small_k = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
figure, panels = plt.subplots(1, 3, figsize=(8, 2.6), layout="constrained")
for axes, w in zip(panels, (0.0, 1.0, 4.0)):
    scores = small_q @ (w * small_k).T / 2**0.5
    attention = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), float("-inf")).softmax(dim=-1)
    axes.imshow(attention, cmap="Greys", vmin=0, vmax=1)
    for row in range(3):
        for column in range(3):
            colour = "white" if attention[row, column] > 0.5 else "black"
            axes.text(column, row, f"{attention[row, column]:.2f}", ha="center", va="center", color=colour)
    axes.set(title=f"key weight {w:g}", xlabel="key", ylabel="query", xticks=range(3), yticks=range(3))
plt.show()

# %% [markdown]
# The first token sees itself alone, so its weight is 1. With $w = 0$ a head averages over all it may see.
#
# ## Sliding window attention
#
# The same with another mask: each token sees itself and `window_size` tokens before it.

# %%
def calculate_sliding_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_weights: torch.Tensor,
    rope: RotaryPositionalEmbedding,
    scale: float,
    device: torch.device,
    window_size: int
) -> torch.Tensor:
    position = torch.arange(q.shape[2], device=device)
    distance = position[:, None] - position
    allowed = (distance >= 0) & (distance <= window_size)
    mask = torch.zeros(allowed.shape, device=device).masked_fill(~allowed, float("-inf"))
    output = calculate_attention(q, k, v, key_weights, rope, scale, device, mask)
    return output


class SWAttention(torch.nn.Module):
    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        head_dim: int,
        window_size: int,
        num_kv_heads: Optional[int] = None
    ) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.window_size = window_size
        self.scale = head_dim ** -0.5
        self.projections = GroupedQueryAttention(hidden_dim, num_heads, head_dim, num_kv_heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x.shape) == 3
        batch, seq_len, _ = x.shape
        own = self.projections
        q, k, v = own.heads(own.query(x)), own.heads(own.key(x)), own.heads(own.value(x))
        output = calculate_sliding_attention(
            q, k, v, own.key_weights, own.rope, self.scale, x.device, self.window_size
        )
        output = own.output(output.transpose(1, 2).reshape(batch, seq_len, -1))
        return output

# %%
##### TESTS START #####

@torch.no_grad()
def test_calculate_sliding_attention() -> None:
    """Test the calculate_sliding_attention function independently of module weights."""
    torch.manual_seed(42)
    batch, seq_len = 2, 4
    num_heads, head_dim = 4, 4
    window_size = 2

    q = torch.randn(batch, num_heads, seq_len, head_dim)
    k = torch.randn(batch, num_heads, seq_len, head_dim)
    v = torch.randn(batch, num_heads, seq_len, head_dim)

    key_weights = torch.randn(num_heads)
    rope = RotaryPositionalEmbedding(head_dim)
    scale = head_dim ** -0.5

    output = calculate_sliding_attention(q, k, v, key_weights, rope, scale, q.device, window_size)

    assert output.shape == (batch, num_heads, seq_len, head_dim), \
        f"Wrong output shape: {output.shape}, expected {(batch, num_heads, seq_len, head_dim)}"

    expected = torch.tensor(
        [[[[-6.8548e-01,  5.6356e-01, -1.5072e+00, -1.6107e+00],
          [-7.5833e-01,  5.5151e-01, -1.3803e+00, -1.3910e+00],
          [-7.5970e-01,  5.4425e-01, -1.3694e+00, -1.4018e+00],
          [-1.0289e+00, -1.5047e-03,  1.3449e-01,  8.8395e-02]],

         [[-1.3793e+00,  6.2580e-01, -2.5850e+00, -2.4000e-02],
          [-1.0804e+00,  2.9937e-01, -1.5638e+00, -4.5193e-03],
          [-3.7572e-01,  9.0874e-01, -9.8827e-01,  3.2158e-01],
          [ 5.5610e-01,  9.3138e-01,  8.2518e-01,  3.6249e-01]],

         [[ 9.7329e-01, -1.0151e+00, -5.4192e-01, -4.4102e-01],
          [ 3.7820e-01, -6.0546e-01, -6.2194e-01, -2.5908e-01],
          [ 7.5603e-01, -4.5413e-01, -2.9462e-01, -6.9975e-02],
          [ 5.6501e-01,  6.4487e-02,  4.0517e-01,  4.1787e-01]],

         [[ 4.0380e-01, -7.1398e-01,  8.3373e-01, -9.5855e-01],
          [ 4.2490e-01,  1.1594e-01, -4.9589e-01, -1.0976e+00],
          [ 3.5349e-01, -4.0529e-01, -6.6044e-01, -1.1089e+00],
          [-2.1912e-01, -6.5963e-01,  1.6555e-01, -1.0503e+00]]],


        [[[ 4.3344e-01, -7.1719e-01,  1.0554e+00, -1.4534e+00],
          [ 4.4607e-01, -2.8344e-01,  6.3300e-01, -8.4259e-01],
          [ 4.2691e-01,  3.2082e-01, -4.8548e-01, -5.2133e-01],
          [ 3.8897e-01,  6.5369e-01, -1.5100e+00, -7.1436e-01]],

         [[ 8.8538e-01,  1.8244e-01,  7.8638e-01, -5.7920e-02],
          [ 7.1542e-01, -2.9334e-01,  1.0705e-01, -3.1831e-04],
          [ 6.7078e-01,  7.1021e-01,  4.8379e-02,  5.4688e-01],
          [ 7.3988e-01,  2.3339e-01, -3.6269e-01,  3.0450e-01]],

         [[-7.9394e-01,  3.7523e-01,  8.7910e-02, -1.2415e+00],
          [-5.1264e-01, -3.4904e-01, -2.9172e-01,  6.7694e-01],
          [ 4.9596e-01,  5.8218e-01, -1.2478e-01,  1.5970e-01],
          [ 6.7310e-02,  1.5020e-01, -2.8622e-01,  1.1465e+00]],

         [[-2.1844e-01,  1.6630e-01,  2.1442e+00,  1.7046e+00],
          [ 9.8019e-02,  4.3332e-01,  8.2743e-01,  1.1330e+00],
          [ 2.0074e-02, -5.5385e-02,  2.2436e-01,  9.4053e-01],
          [-1.2419e-01,  1.2867e-01, -6.4606e-01,  2.5874e-01]]]]
    )

    assert torch.allclose(output, expected, atol=1e-4), \
        f"calculate_sliding_attention output values mismatch"

test_calculate_sliding_attention()

#####  TESTS END  #####

# %%
print(SWAttention(8, 4, 2, window_size=2)(torch.randn(2, 5, 8)).shape)
figure, panels = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained")
distance = torch.arange(10)[:, None] - torch.arange(10)
window = (distance >= 0) & (distance <= 2)
two_layers = (window.float() @ window.float()) > 0
titles = "full causal", "window_size = 2", "through two such layers"
for axes, mask, title in zip(panels, (distance >= 0, window, two_layers), titles):
    axes.imshow(mask, cmap="Greys", vmin=0, vmax=1.6)
    axes.set(title=title, xlabel="key", ylabel="query")
plt.show()

# %% [markdown]
# Two layers of window 2 reach four tokens back.
#
# ## Mixture of experts
#
# The router scores all experts, keeps the best `top_k` of them, and weighs these by a softmax over their scores.

# %%
class Router(torch.nn.Module):
    def __init__(self, hidden_dim: int, num_experts: int, top_k: int = 2) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.num_experts = num_experts
        self.top_k = top_k
        self.score = torch.nn.Linear(hidden_dim, num_experts, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert len(x.shape) == 3
        best, expert_indices = self.score(x).topk(self.top_k, dim=-1)
        routing_weights = best.softmax(dim=-1)
        return routing_weights, expert_indices


class MixtureOfExperts(torch.nn.Module):
    def __init__(
        self,
        hidden_dim: int,
        inner_dim: int,
        num_experts: int = 8,
        top_k: int = 2
    ) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.num_experts = num_experts
        self.top_k = top_k
        self.router = Router(hidden_dim, num_experts, top_k)
        self.experts = torch.nn.ModuleList(SwiGLUFeedForward(hidden_dim, inner_dim) for _ in range(num_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x.shape) == 3
        batch, seq_len, hidden_dim = x.shape
        weights, indices = self.router(x)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, columns, choices = (indices == number).nonzero(as_tuple=True)
            if len(rows):  # only the tokens that chose this expert pass through it
                passed = expert(x[rows, columns][None])[0]
                output = output.index_put((rows, columns), weights[rows, columns, choices, None] * passed, accumulate=True)
        return output


routing_weights, chosen = Router(8, 4, 2)(torch.randn(2, 3, 8))
print(routing_weights.shape, chosen.shape, routing_weights.sum(dim=-1))
print(MixtureOfExperts(8, 16, 4, 2)(torch.randn(2, 3, 8)).shape)

# %% [markdown]
# ## Transformer block
#
# Pre-norm: each part reads the normalised stream and adds to it.

# %%
class TransformerBlock(torch.nn.Module):
    def __init__(
        self,
        hidden_dim: int,
        ff_dim: int,
        num_heads: int,
        head_dim: int,
        use_sliding_window: bool = False,
        window_size: int = 128,
        use_moe: bool = False,
        num_experts: int = 8,
        top_k: int = 2,
        num_kv_heads: Optional[int] = None
    ) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.ff_dim = ff_dim
        self.num_heads = num_heads
        self.head_dim = head_dim

        self.attention_norm = torch.nn.RMSNorm(hidden_dim)
        if use_sliding_window:
            self.attention = SWAttention(hidden_dim, num_heads, head_dim, window_size, num_kv_heads)
        else:
            self.attention = GroupedQueryAttention(hidden_dim, num_heads, head_dim, num_kv_heads)
        self.ffn_norm = torch.nn.RMSNorm(hidden_dim)
        if use_moe:
            self.ffn = MixtureOfExperts(hidden_dim, ff_dim, num_experts, top_k)
        else:
            self.ffn = SwiGLUFeedForward(hidden_dim, ff_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x + self.attention(self.attention_norm(x))
        result = hidden + self.ffn(self.ffn_norm(hidden))
        assert x.shape == result.shape
        return result

# %% [markdown]
# ## The model

# %%
class Transformer(torch.nn.Module):
    def __init__(
        self,
        vocab_size: int,
        n_layers: int,
        hidden_dim: int,
        ff_dim: int,
        num_heads: int,
        head_dim: int,
        use_sliding_window_alternating: bool = False,
        window_size: int = 128,
        use_moe: bool = False,
        num_experts: int = 8,
        top_k: int = 2,
        num_kv_heads: Optional[int] = None
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.n_layers = n_layers
        self.hidden_dim = hidden_dim
        self.ff_dim = ff_dim
        self.num_heads = num_heads
        self.head_dim = head_dim

        self.embedding = torch.nn.Embedding(vocab_size, hidden_dim)
        self.layers = torch.nn.ModuleList(
            TransformerBlock(
                hidden_dim, ff_dim, num_heads, head_dim,
                use_sliding_window=use_sliding_window_alternating and layer % 2 == 1, window_size=window_size,
                use_moe=use_moe, num_experts=num_experts, top_k=top_k, num_kv_heads=num_kv_heads,
            )
            for layer in range(n_layers)
        )
        self.final_norm = torch.nn.RMSNorm(hidden_dim)
        self.output_proj = torch.nn.Linear(hidden_dim, vocab_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x.shape) == 2, f"Expected 2D input, got shape {x.shape}"
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.output_proj(self.final_norm(hidden))
        return logits

# %%
##### TESTS START #####

@torch.no_grad()
def test_transformer() -> None:
    torch.manual_seed(42)
    batch, seq_len = 2, 8
    vocab_size, n_layers, hidden_dim = 100, 2, 32
    ff_dim, num_heads, head_dim = 64, 4, 8

    model = Transformer(
        vocab_size=vocab_size,
        n_layers=n_layers,
        hidden_dim=hidden_dim,
        ff_dim=ff_dim,
        num_heads=num_heads,
        head_dim=head_dim
    )

    x = torch.randint(0, vocab_size, (batch, seq_len))
    output = model(x)

    # Test output shape
    assert output.shape == (batch, seq_len, vocab_size), f"Wrong shape: {output.shape}"

    # Test that model has correct number of layers
    assert len(model.layers) == n_layers, f"Model should have {n_layers} layers"

    # Test that model has embedding and output projection
    assert hasattr(model, 'embedding'), "Model should have embedding layer"
    assert hasattr(model, 'output_proj'), "Model should have output projection"
    assert isinstance(model.embedding, torch.nn.Embedding), "embedding should be nn.Embedding"

    # Test that model has final normalization
    assert hasattr(model, 'final_norm'), "Model should have final_norm"
    assert isinstance(model.final_norm, torch.nn.RMSNorm), "final_norm should be RMSNorm"

    # Test embedding size
    assert model.embedding.num_embeddings == vocab_size, \
        f"Embedding should have {vocab_size} tokens"
    assert model.embedding.embedding_dim == hidden_dim, \
        f"Embedding dimension should be {hidden_dim}"

    # Test output projection size
    assert model.output_proj.out_features == vocab_size, \
        f"Output projection should project to {vocab_size} dimensions"

    # Test with sliding window alternating
    model_sw = Transformer(
        vocab_size=vocab_size,
        n_layers=4,
        hidden_dim=hidden_dim,
        ff_dim=ff_dim,
        num_heads=num_heads,
        head_dim=head_dim,
        use_sliding_window_alternating=True,
        window_size=4
    )
    output_sw = model_sw(x)
    assert output_sw.shape == (batch, seq_len, vocab_size)

    # Check that alternating layers use sliding window
    assert isinstance(model_sw.layers[1].attention, SWAttention), \
        "Layer 1 should use SWAttention (alternating pattern)"
    assert isinstance(model_sw.layers[3].attention, SWAttention), \
        "Layer 3 should use SWAttention (alternating pattern)"
    assert isinstance(model_sw.layers[0].attention, GroupedQueryAttention), \
        "Layer 0 should use GQA (not sliding window)"

    # Test with MoE
    model_moe = Transformer(
        vocab_size=vocab_size,
        n_layers=2,
        hidden_dim=hidden_dim,
        ff_dim=ff_dim,
        num_heads=num_heads,
        head_dim=head_dim,
        use_moe=True,
        num_experts=4,
        top_k=2
    )
    output_moe = model_moe(x)
    assert output_moe.shape == (batch, seq_len, vocab_size)
    assert isinstance(model_moe.layers[0].ffn, MixtureOfExperts), \
        "All layers should use MoE when use_moe=True"

    # Test with GQA
    model_gqa = Transformer(
        vocab_size=vocab_size,
        n_layers=2,
        hidden_dim=hidden_dim,
        ff_dim=ff_dim,
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=2
    )
    output_gqa = model_gqa(x)
    assert output_gqa.shape == (batch, seq_len, vocab_size)

    # Test determinism
    torch.manual_seed(42)
    model2 = Transformer(
        vocab_size=vocab_size,
        n_layers=n_layers,
        hidden_dim=hidden_dim,
        ff_dim=ff_dim,
        num_heads=num_heads,
        head_dim=head_dim
    )
    x2 = torch.randint(0, vocab_size, (batch, seq_len))
    output2 = model2(x2)
    assert torch.allclose(output, output2, atol=1e-5), "Transformer should be deterministic"

    # Test that logits are different for different inputs
    x_different = torch.randint(0, vocab_size, (batch, seq_len))
    output_different = model(x_different)
    assert not torch.allclose(output, output_different), \
        "Different inputs should produce different outputs"


test_transformer()

#####  TESTS END  #####

# %% [markdown]
# ## Data
#
# A hidden pair of coefficients $(a, b)$ makes each token from the two before, $x_t = a x_{t-2} + b x_{t-1} \bmod 7$;
# with probability 0.1 a step is $x_{t-1} + 1$ instead. The first values are hidden too. Training sequences come from
# generators that no test sequence uses.

# %%
np.random.seed(0)
torch.manual_seed(0)

# %%
#[do not modify]

import numpy as np

def generate_recursive(n_first, vocab_size, next_prob):
    assert 0 < vocab_size
    initial = np.random.randint(0, vocab_size, n_first)
    coeffs = np.random.randint(0, vocab_size, n_first)

    return initial, coeffs, vocab_size, next_prob

class SeqGen:
    """
    For generating recurrent sequences with stochastically repeating terms.
    """
    def __init__(self, initial, coeffs, size, next_prob):
        assert len(coeffs) == len(initial)
        self.initial = initial
        self.coeffs = coeffs
        self.size = size
        self.next_prob = next_prob

        self.current = initial

    def __iter__(self):
        return self

    def __next__(self):
        if np.random.random() < self.next_prob:
          new = self.current[-1] + 1
        else:
          new = (self.current @ self.coeffs)

        new %= self.size
        self.current = np.append(self.current, new)[1:]

        return new

    def __key(self):
        return (tuple(self.initial), tuple(self.coeffs), self.size, self.next_prob)

    def __hash__(self):
        return hash(self.__key())

    def __eq__(self, other):
        if isinstance(other, SeqGen):
            return self.__key() == other.__key()


def generate_dataset(gen_factory, seq_len, num_entries, exclude = []):
    """
    For generating datasets with num_entries elements each
    of length seq_len.

      gen_factory is a procedure that returns
        instance of SeqGen when called.

      seq_len is the length of the sequence to generate.

      num_entries is the number of sequences to generate.

      exclude is the set of sequences that aren't to be used in training
    """
    entries = []
    generators = []
    for e in range(num_entries):
        while True:
          seq_gen = gen_factory()
          if seq_gen in exclude:
              continue

          seq = []
          for s in range(seq_len + 1):
              seq.append(next(seq_gen))

          break

        generators.append(seq_gen)
        entries.append(seq)
    data = torch.tensor(entries, dtype=torch.long)
    x = data[:, :seq_len]
    y = data[:, 1:]       # we predict next token
    return torch.utils.data.TensorDataset(x, y), set(generators)

# %%
#[do not modify]

def example_generator(gen):
    """
      A procedure that returns a representation of
      a single data entrance.
    """
    def example_gen():
        return SeqGen(*gen())
    return example_gen

# %%
#[do not modify]

BATCH_SIZE = 128
SEQ_LEN = 64


VOCAB_SIZE = 7
NEXT_PROB = .1
INITIAL = 2


DEVICE = torch.device("cpu") # can be also cpu
PERM_EXAMPLE_GENERATOR = example_generator(lambda: generate_recursive(INITIAL, VOCAB_SIZE, NEXT_PROB))


TEST_DATASET, generators = generate_dataset(
    gen_factory=PERM_EXAMPLE_GENERATOR, seq_len=SEQ_LEN, num_entries=1000)
TRAIN_DATASET, _ = generate_dataset(
    gen_factory=PERM_EXAMPLE_GENERATOR, seq_len=SEQ_LEN, num_entries=10000, exclude=generators)


TRAIN_LOADER = torch.utils.data.DataLoader(
    TRAIN_DATASET, batch_size=BATCH_SIZE)
TEST_LOADER = torch.utils.data.DataLoader(TEST_DATASET, batch_size=BATCH_SIZE)

# %% [markdown]
# Bayes' rule over all 2,401 generators gives the exact distribution of every next token. No model has a higher expected
# accuracy, so this is the line to measure against.

# %%
from glassformer.data.bayes import optimal_accuracy
from glassformer.data.recurrence import RecurrenceConfig

DATA = RecurrenceConfig(order=INITIAL, vocab_size=VOCAB_SIZE, next_prob=NEXT_PROB, seq_len=SEQ_LEN)
x, y = TEST_DATASET.tensors
test_tokens = torch.cat([x, y[:, -1:]], dim=1)
optimum = optimal_accuracy(test_tokens, DATA).measured.numpy()
for row in range(3):
    print(" ".join(f"{token}" for token in test_tokens[row, :32].tolist()), "...")
print("optimum at positions 0 to 7:", optimum[:8].round(3), " mean of all 64:", optimum.mean().round(4))

# %% [markdown]
# ## Training and evaluation
#
# The course's model and budget: AdamW at 0.01, 8 epochs of 10,000 sequences in batches of 128. At least 65 % is asked.

# %%
from tqdm import tqdm
import functools

@torch.no_grad
def eval_acc(model: torch.nn.Module, dataloader: torch.utils.data.DataLoader):
    model.eval()
    sum_acc = 0
    num_examples = 0
    for x, y in dataloader:
        x, y = x.to(DEVICE), y.to(DEVICE)
        model_out = model(x)

        acc = (torch.argmax(model_out, dim=-1) == y).to(torch.float32).sum()
        sum_acc += acc
        num_examples += model_out.shape[0] * model_out.shape[1]

    return sum_acc / num_examples


def eval_fn(step, model, dataloader):
    acc = eval_acc(model, dataloader)
    print(f"{step}: Avg eval accuracy {acc}")


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    dataloader: torch.utils.data.DataLoader,
    eval_fn: functools.partial,
    num_epochs: int
):
    model.train()

    for epoch in range(num_epochs):
        if epoch == 0:
            eval_fn(epoch, model)

        model.train()
        total_loss = 0.0
        num_batches = 0
        for i, (x, y) in tqdm(enumerate(dataloader), disable=True):
            logits = model(x.to(DEVICE))
            loss = F.cross_entropy(logits.flatten(0, 1), y.to(DEVICE).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            num_batches += 1

        print(f"epoch {epoch}: mean training loss {total_loss / num_batches:.4f}")
        eval_fn(epoch, model)


model = Transformer(
    vocab_size=VOCAB_SIZE, n_layers=4, hidden_dim=64, ff_dim=128, num_heads=4, head_dim=16
)
model.to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
train(
    model=model,
    optimizer=optimizer,
    dataloader=TRAIN_LOADER,
    eval_fn=functools.partial(
        eval_fn,
        dataloader=TEST_LOADER,
    ),
    num_epochs=8
)

# %% [markdown]
# ## Using the model
#
# ### Generation
#
# The whole sequence passes through the model at every step.

# %%
@torch.no_grad()
def token_choice_greedy(model_logits: torch.Tensor) -> torch.Tensor:
    """
    Select the most likely token (greedy decoding).

    Args:
        model_logits: Logits of shape [batch, seq_len, vocab_size].

    Returns:
        Selected token indices of shape [batch, 1].
    """
    assert len(model_logits.shape) == 3
    return torch.argmax(model_logits[:, -1:, :], dim=-1)


@torch.no_grad()
def generate(
    model: torch.nn.Module,
    input: torch.Tensor,
    gen_length: int,
    token_choice: Callable[[torch.Tensor], torch.Tensor] = token_choice_greedy
) -> torch.Tensor:
    """
    Generate new tokens autoregressively.

    Args:
        model: The transformer model.
        input: Initial token sequence of shape [batch, seq_len].
        gen_length: Number of tokens to generate.
        token_choice: Function to select next token from logits.

    Returns:
        Generated tokens of shape [batch, gen_length] (without the input).
    """
    assert len(input.shape) == 2
    model.eval()

    current_seq = input.to(DEVICE)
    output_tokens = []

    for _ in range(gen_length):
        token = token_choice(model(current_seq))
        output_tokens.append(token)
        current_seq = torch.cat([current_seq, token], dim=-1)

    return torch.cat(output_tokens, dim=-1)


print(generate(model, torch.tensor([[1]]), 10))

# %% [markdown]
# ### Nucleus sampling and temperature
#
# Tokens are sorted by probability; one is kept if those before it do not reach `top_p` yet. The most likely always is.

# %%
@torch.no_grad()
def get_dist_after_with_temp_and_topp(
    model_logits: torch.Tensor, top_p: float, t: float
) -> torch.Tensor:
    """
    Apply temperature scaling and top-p (nucleus) sampling.

    Args:
        model_logits: Logits of shape [batch, seq_len, vocab_size].
        top_p: Cumulative probability threshold for nucleus sampling.
               0.0 = greedy (only most probable token)
               1.0 = full distribution
        t: Temperature for softmax. Higher = more uniform, lower = more peaked.

    Returns:
        Probability distribution of shape [batch, seq_len, vocab_size] with
        low-probability tokens zeroed out and remaining probabilities rescaled.
    """
    assert len(model_logits.shape) == 3

    probs = (model_logits / t).softmax(dim=-1)
    ordered, indices = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = before < top_p
    kept[..., 0] = True
    ordered = ordered * kept
    result = torch.zeros_like(probs).scatter(-1, indices, ordered / ordered.sum(dim=-1, keepdim=True))

    return result


@torch.no_grad()
def token_choice_adv(
    model_logits: torch.Tensor, top_p: float, t: float
) -> torch.Tensor:
    """
    Select next token using temperature and top-p sampling.

    Args:
        model_logits: Logits of shape [batch, seq_len, vocab_size].
        top_p: Nucleus sampling threshold.
        t: Temperature.

    Returns:
        Selected token indices of shape [batch, 1].
    """
    probs = get_dist_after_with_temp_and_topp(
        model_logits=model_logits[:, -1:, :], top_p=top_p, t=t
    )
    dist = torch.distributions.Categorical(probs=probs)
    return dist.sample()

# %%
##### TESTS START #####
@torch.no_grad()
def test_nucleus() -> None:
    def test_dist_topp() -> None:
        # Equal probs - should remain equal with top_p=1.0
        res = get_dist_after_with_temp_and_topp(
            torch.tensor([[[1.0, 1.0, 1.0]]]), top_p=1.0, t=1.0
        )
        assert torch.abs(res - torch.tensor([1 / 3, 1 / 3, 1 / 3])).sum() <= 1e-4

        # top_p=0.0 should select only the most probable
        res = get_dist_after_with_temp_and_topp(
            torch.tensor([[[2.0, 3.0, 1.0]]]), top_p=0.0, t=1.0
        )

        assert torch.abs(res - torch.tensor([0.0, 1.0, 0.0])).sum() <= 1e-4

        res = get_dist_after_with_temp_and_topp(
            torch.tensor([[[2.0, 3.0, 1.0]]]), top_p=0.6, t=1.0
        )
        assert torch.abs(res - torch.tensor([0.0, 1.0, 0.0])).sum() <= 1e-4

        res = get_dist_after_with_temp_and_topp(
            torch.tensor([[[1.0, 3.0, 2.0]]]), top_p=0.71, t=1.0
        )
        assert torch.abs(res - torch.tensor([0.0, 0.7311, 0.2689])).sum() <= 1e-2

        res = get_dist_after_with_temp_and_topp(
            torch.tensor([[[1.0, 3.0, 2.0]]]), top_p=1.0, t=1.0
        )
        assert torch.abs(res - torch.tensor([0.0900, 0.6652, 0.2447])).sum() <= 1e-2

    def test_temperature() -> None:
        # High temperature -> more uniform
        res = get_dist_after_with_temp_and_topp(
            torch.tensor([[[1.0, 1.0, 1.0]]]), top_p=1.0, t=3.0
        )
        assert torch.abs(res - torch.tensor([1 / 3, 1 / 3, 1 / 3])).sum() <= 1e-4

        res = get_dist_after_with_temp_and_topp(
            torch.tensor([[[1.0, 3.0, 2.0]]]), top_p=1.0, t=3.0
        )
        assert torch.abs(res - torch.tensor([0.2302, 0.4484, 0.3213])).sum() <= 1e-2

        # Low temperature -> more peaked
        res = get_dist_after_with_temp_and_topp(
            torch.tensor([[[1.0, 3.0, 2.0]]]), top_p=1.0, t=1 / 3
        )
        assert torch.abs(res - torch.tensor([0.0024, 0.9503, 0.0473])).sum() <= 1e-2

        res = get_dist_after_with_temp_and_topp(
            torch.tensor([[[1.0, 3.0, 2.0]]]), top_p=0.94, t=1 / 3
        )
        assert torch.abs(res - torch.tensor([0.0, 1.0, 0.0])).sum() <= 1e-4

    def test_batching() -> None:
        res = get_dist_after_with_temp_and_topp(
            torch.tensor([
                [[1.0, 3.0, 2.0], [1.0, 4.0, 8.0]],
                [[8.0, 4.0, 1.0], [3.0, 1.0, 2.0]]
            ]),
            top_p=0.7,
            t=1.0,
        )
        expected = torch.tensor([
            [[0.0, 0.7311, 0.2689], [0.0, 0.0, 1.0]],
            [[1.0, 0.0, 0.0], [0.7311, 0.0, 0.2689]],
        ])
        assert torch.abs(res - expected).sum() <= 1e-2

    test_dist_topp()
    test_temperature()
    test_batching()

test_nucleus()

#####  TESTS END  #####

# %% [markdown]
# Continuations of 200 test sequences: the model sees 16 tokens and writes 48 more. A step of the true process follows the
# rule of its sequence or is the previous token plus one. The coefficients of each sequence are found from the sequence
# itself: those that explain most of its steps.

# %%
import itertools

from glassformer.labs.gpt_oss.experiments.generation import behaviour

prompts = test_tokens[:200, :16]
pairs = torch.tensor(list(itertools.product(range(VOCAB_SIZE), repeat=2)))
states = test_tokens[:200].unfold(1, 2, 1)[:, :-1]
explained = ((states @ pairs.T) % VOCAB_SIZE == test_tokens[:200, 2:, None]).sum(dim=1)
coefficients = pairs[explained.argmax(dim=-1)]
torch.manual_seed(0)
choices = {
    "greedy": token_choice_greedy,
    "temperature 0.5": functools.partial(token_choice_adv, top_p=1.0, t=0.5),
    "temperature 1": functools.partial(token_choice_adv, top_p=1.0, t=1.0),
    "temperature 1.5": functools.partial(token_choice_adv, top_p=1.0, t=1.5),
    "top-p 0.9": functools.partial(token_choice_adv, top_p=0.9, t=1.0),
    "temp. 1.5, top-p 0.9": functools.partial(token_choice_adv, top_p=0.9, t=1.5),
}
found = {"true sequences": behaviour(test_tokens[:200, :64], coefficients, 16)}
for title, choice in choices.items():
    new = generate(model, prompts, 48, choice)
    found[title] = behaviour(torch.cat([prompts, new], dim=1), coefficients, 16)

print(f"{'':22}{'rule':>8}{'+1':>8}{'neither':>9}{'repeated':>10}{'cycling':>9}")
for title, each in found.items():
    steps = f"{each.rule:8.3f}{each.increment:8.3f}{each.neither:9.3f}"
    print(f"{title:22}{steps}{each.repeated:10.3f}{each.cycling:9.3f}")

# %%
context = test_tokens[:1, :40]
with torch.no_grad():
    logits = model(context)
figure, panels = plt.subplots(1, 4, figsize=(10, 2.6), sharey=True, layout="constrained")
for axes, (top_p, t) in zip(panels, ((1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (0.8, 2.0))):
    axes.bar(range(VOCAB_SIZE), get_dist_after_with_temp_and_topp(logits, top_p, t)[0, -1], edgecolor="black")
    axes.set(title=f"temperature {t:g}, top-p {top_p:g}", xlabel="next token", ylim=(0, 1))
panels[0].set_ylabel("probability")
plt.show()

# %% [markdown]
# `repeated` is the share of runs of four tokens that occurred before in the same continuation; `cycling` the share of
# continuations whose second half is two or more rounds of one cycle. The picture shows one next token: temperature scales
# all logits, top-p removes the tail and keeps the proportions of the rest.
#
# ### Accuracy per token

# %%
import matplotlib.pyplot as plt


@torch.no_grad()
def calc_per_token_acc(
    model: torch.nn.Module, data_loader: torch.utils.data.DataLoader
) -> np.ndarray:
    """
    Calculate accuracy for each position in the sequence.

    Args:
        model: The transformer model.
        data_loader: Data loader with (x, y) pairs.

    Returns:
        Array of shape [seq_len] with accuracy at each position.
    """
    model.eval()

    hits = [model(x.to(DEVICE)).argmax(dim=-1) == y.to(DEVICE) for x, y in data_loader]
    per_token_acc = torch.cat(hits).float().mean(dim=0).cpu().numpy()
    return per_token_acc


per_token_acc = calc_per_token_acc(model, TEST_LOADER)
plt.figure(figsize=(10, 5))
plt.plot(np.arange(per_token_acc.shape[0]), per_token_acc, label="model")
plt.plot(optimum, "k--", label="optimum")
plt.legend()
plt.xlabel("Position in sequence")
plt.ylabel("Accuracy")
plt.title("Per-Position Prediction Accuracy")
plt.grid(True, alpha=0.3)
plt.show()

# %%
gap = optimum - per_token_acc
for start, stop in itertools.pairwise((0, 3, 12, 64)):
    print(
        f"positions {start:2} to {stop - 1:2}: {gap[start:stop].sum() / 64:.4f} of the {gap.mean():.4f} that is lost, "
        f"{gap[start:stop].mean():.3f} at each"
    )

# %% [markdown]
# ## Your report
#
# The model is the course's, trained with the course's AdamW at 0.01. It reaches about 83 % on the test sequences, where
# at least 65 % is asked; the optimum is 88.7 %.

# %% [markdown]
# **Cross-entropy.** At each step one mean cross-entropy compares the logits of all positions of all sequences of the
# batch with the tokens that follow them.

# %% [markdown]
# **Generation.** The whole sequence so far passes through the model, the next token is chosen from the logits of the
# last position and appended, and the longer sequence passes through the model again.

# %% [markdown]
# **Nucleus sampling.** A step of a continuation follows the rule of its sequence, is the previous token plus one, or is
# neither, which the true process never does. Sampled from the full distribution at temperature 1, a third of the steps
# are such errors. An error stays in the context of all later steps, which is then no sequence of the process any more.
# The nucleus of 0.9 removes the tail of each distribution, and with it a third of the errors: 22 % are left. At
# temperature 1.5 it takes the errors from 48 % to 38 %.
#
# The nucleus costs variety. With it, 51 % of the runs of four tokens occurred before in the same continuation, against
# 37 % without it and 49 % in the true sequences, and 29 % of the continuations end in a cycle, against 13 % without it
# and 15 % of the true ones. Greedy decoding is the extreme case, a nucleus of one token: it has the fewest errors, 4 %,
# but only
# 2 % of its steps are plus one, where the process has 8 %, and 62 % of its continuations end in
# a cycle. So nucleus sampling lies between the two, and cannot tell a rare genuine step from an error of the same
# probability: it cuts by probability alone.

# %% [markdown]
# **Temperature.** Temperature divides all logits before the softmax. At 0.5 errors fall to 12 %, and the continuations
# come near to greedy ones: half of them end in a cycle. At 1.5 nearly half of the steps are errors, only 28 % follow
# the rule, and no continuation ends in a cycle. The picture of one next token shows how: a high temperature gives
# probability to tokens that the model holds to be nearly impossible. None of the temperatures tried gives the mixture
# of the true process, since errors and genuine steps of plus one rise together.

# %% [markdown]
# **Accuracy per token.** Accuracy is low at the first three positions, for the optimum as well: two hidden coefficients
# need two equations, hence four tokens. Then both curves rise, the optimum to about 0.9 within three positions, the
# model more slowly, over some ten. Later both are flat, the optimum below 1 because a tenth of the steps is noise, and
# the model about 0.04 below the optimum. Per position the model loses most between positions 3 and 11, 0.13 on average,
# where the coefficients have to be found from few tokens that may be noise; of the sum over all positions the larger
# part, 60 %, lies at positions 12 to 63, because they are most of the sequence. Part of the loss at position 0 is one
# of this attention: without a sink, it cannot tell a first token from a run of the same token.
