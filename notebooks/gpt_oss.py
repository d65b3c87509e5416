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
# A solution of the course's homework, in its order: the parts of a small GPT-OSS, their tests, data, training,
# generation, and the report. Each part that the course leaves blank is a class or a function of
# `glassformer.labs.gpt_oss`, under the course's name; its source is shown before its test.
#
# The course's own cells are not copied into this project. Each of its tests is replaced by one of ours for the same
# fact. Where the course's document is present, one cell below reads the course's tests and its data generator from it
# and runs them on the same classes and functions.
#
# More experiments (other optimizers, variants of the model, longer trainings, attention sinks) are one command:
# `glassformer lab gpt-oss`.

# %%
# %matplotlib inline
import functools
import inspect
import itertools
import math
import os
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from IPython.display import Markdown
from torch.utils.data import DataLoader, TensorDataset

from glassformer.data.bayes import optimal_accuracy
from glassformer.data.recurrence import RecurrenceConfig, make_split, obeys_recurrence
from glassformer.generation.sampling import SamplingRule
from glassformer.kernels import experts as expert_kernel
from glassformer.kernels import rotation
from glassformer.kernels.pattern import Pattern
from glassformer.labs import gpt_oss as lab
from glassformer.labs.gpt_oss import (
    GroupedQueryAttention,
    MixtureOfExperts,
    RotaryPositionalEmbedding,
    Router,
    SWAttention,
    SwiGLUFeedForward,
    Transformer,
    TransformerBlock,
    calc_per_token_acc,
    calculate_attention,
    calculate_sliding_attention,
    eval_acc,
    generate,
    get_dist_after_with_temp_and_topp,
    token_choice_adv,
    token_choice_greedy,
    train,
)
from glassformer.labs.gpt_oss.course import _band
from glassformer.labs.gpt_oss.experiments.generation import behaviour
from glassformer.layers.attention import attend
from glassformer.layers.experts import MixtureOfExperts as LibraryExperts
from glassformer.layers.feedforward import SwiGLU
from glassformer.layers.positions import RotaryEmbedding

torch.manual_seed(0)
CPU = torch.device("cpu")


def source(*parts: object) -> Markdown:
    """The source of what the course leaves blank."""
    code = [textwrap.dedent(inspect.getsource(part)) for part in parts]
    return Markdown("\n".join(f"```python\n{part}```" for part in code))


def same(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Print the largest difference between two tensors; an error if they differ by more than rounding."""
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    print(f"{what}: equal, largest difference {float((found - expected).abs().max()):.0e}")


# %% [markdown]
# ## SwiGLU feed-forward
#
# $\mathrm{result} = W_2(\mathrm{SiLU}(W_1 x) \odot V x)$: one projection gates the other. The library calls $W_1$, $V$
# and $W_2$ gate, up and down.

# %%
source(SwiGLUFeedForward, SwiGLU.__init__, SwiGLU.forward)

# %%
feed_forward, x = SwiGLUFeedForward(8, 16), torch.randn(2, 3, 8)
with torch.no_grad():
    first = x @ feed_forward.gate.weight.T
    gated = first / (1 + torch.exp(-first)) * (x @ feed_forward.up.weight.T)
    same("SwiGLU and its formula", feed_forward(x), gated @ feed_forward.down.weight.T)

# %% [markdown]
# ## Rotary positional embedding
#
# Each pair of coordinates turns by an angle proportional to the position, each pair at a speed of its own. The pairs
# here are (0, d/2), (1, d/2 + 1), ..., as in GPT-OSS and as the course's expected values have it. Cosines and sines are
# computed in advance.

# %%
source(RotaryPositionalEmbedding, RotaryEmbedding.rotation_at, RotaryEmbedding.forward, rotation.definition)

# %% [markdown]
# Turning a pair is multiplying a complex number by $e^{i p \theta}$. This is another way to compute the same:


# %%
def rotated(x: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Rotary embedding of [..., position, head_dim] with complex numbers."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** (-torch.arange(half) / half)
    angles = (start + torch.arange(x.shape[-2]))[:, None] * speeds
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


rope, x = RotaryPositionalEmbedding(16), torch.randn(2, 3, 9, 16)
same("rotation and complex numbers", rope(x), rotated(x))
same("the same from position 40 on", rope(x, start_pos=40), rotated(x, start=40))
same("lengths before and after", rope(x).norm(dim=-1), x.norm(dim=-1))

# %% [markdown]
# What a score then depends on is the *distance* of query and key: moving both by 100 positions changes nothing.

# %%
one_query, one_key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0))


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
# A key equal to the query matches best at distance 0. The score does not fall steadily with the distance: the pairs
# turn at different speeds, and wherever most of them come back into step, it comes close to its first value again.
#
# ## Grouped query attention
#
# By hand: rotate, weight the keys of each head, compare each query with each key, mask what lies ahead, softmax,
# average the values. Consecutive query heads share a key-value head, which is repeated for them.

# %%
source(calculate_attention, GroupedQueryAttention)

# %% [markdown]
# The check is a loop over sequences, heads and queries. It gives each query only the keys that it may see, so it needs
# no mask.


# %%
def attention_in_a_loop(q, k, v, key_weights, scale, before=None):
    """Attention for one query at a time, over the keys up to its own; ``before`` limits how many before it."""
    output = torch.empty_like(q)
    q, k = rotated(q), rotated(k)
    for batch, head, at in itertools.product(*map(range, q.shape[:3])):
        shared = head * k.shape[1] // q.shape[1]
        seen = slice(0 if before is None else max(0, at - before), at + 1)
        products = k[batch, shared, seen] @ q[batch, head, at] * key_weights[head] * scale
        output[batch, head, at] = products.softmax(dim=0) @ v[batch, shared, seen]
    return output


q, k, v, weights = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(4)
by_hand = calculate_attention(q, k, v, weights, rope, 0.25, CPU)
same("attention and the loop", by_hand, attention_in_a_loop(q, k, v, weights, 0.25))

# %% [markdown]
# The library computes the same in one call, `attend`, with PyTorch's fused kernel.

# %%
fused = attend(rope(q), rope(k), v, Pattern(causal=True), scale=0.25, key_weights=weights)
same("attention by hand and attend()", by_hand, fused)
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
for axes, w in zip(panels, (0.0, 1.0, 4.0), strict=True):
    scores = small_q @ (w * small_k).T / 2**0.5
    attention = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), float("-inf")).softmax(dim=-1)
    axes.imshow(attention, cmap="Greys", vmin=0, vmax=1)
    for row, column in itertools.product(range(3), repeat=2):
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
source(calculate_sliding_attention, _band, SWAttention)

# %%
for window_size in (0, 2, 20):
    found = calculate_sliding_attention(q, k, v, weights, rope, 0.25, CPU, window_size)
    same(f"window_size {window_size:2} and the loop", found, attention_in_a_loop(q, k, v, weights, 0.25, window_size))
same("window_size 20 and no window, 9 tokens", found, by_hand)

# %% [markdown]
# The mask of `window_size = 2`, read from the layer itself: a query sees a key where the derivative of the output at
# the query with respect to the input at the key is not zero. The right picture shows the same for two layers in
# sequence.

# %%
torch.manual_seed(0)
reaches = {}
layers = [SWAttention(16, 2, 8, window_size=2) for _ in range(2)]
for title, parts in (
    ("full causal", [GroupedQueryAttention(16, 2, 8)]),
    ("window_size = 2", layers[:1]),
    ("through two such layers", layers),
):
    jacobian = torch.autograd.functional.jacobian(torch.nn.Sequential(*parts), torch.randn(1, 10, 16))
    reaches[title] = jacobian[0, :, :, 0].abs().sum(dim=(1, 3)) > 0
distance = torch.arange(10)[:, None] - torch.arange(10)
for (title, reach), farthest in zip(reaches.items(), (9, 2, 4), strict=True):
    assert torch.equal(reach, (distance >= 0) & (distance <= farthest)), title
figure, panels = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained")
for axes, (title, reach) in zip(panels, reaches.items(), strict=True):
    axes.imshow(reach, cmap="Greys", vmin=0, vmax=1.6)
    axes.set(title=title, xlabel="key", ylabel="query")
plt.show()

# %% [markdown]
# Two layers of window 2 reach four tokens back.
#
# ## Mixture of experts
#
# The router scores all experts, keeps the best `top_k` of them, and weighs these by a softmax over their scores. The
# last function below defines what a mixture computes. The library's `mix_experts` gives the same, and lets each token
# pass through the experts that it chose only.

# %%
source(Router.__init__, Router.forward, Router.choose, MixtureOfExperts, LibraryExperts.forward, LibraryExperts.mix)

# %%
source(expert_kernel.definition)

# %%
torch.manual_seed(0)
mixture, x = MixtureOfExperts(8, 16, num_experts=4, top_k=2), torch.randn(2, 3, 8)
with torch.no_grad():
    routing_weights, chosen = mixture.router(x)
    expected = torch.zeros_like(x)
    for row, column in itertools.product(range(2), range(3)):
        token = x[row, column]
        scores = mixture.router.score(token)
        best = sorted(range(4), key=lambda expert: -float(scores[expert]))[:2]
        assert chosen[row, column].tolist() == best
        total = scores[best].exp().sum()
        for expert in best:
            inside = F.silu(mixture.gate[expert] @ token) * (mixture.up[expert] @ token)
            expected[row, column] += scores[expert].exp() / total * (mixture.down[expert] @ inside)
    same("mixture and one token at a time", mixture(x), expected)
same("routing weights of a token and 1", routing_weights.sum(dim=-1), torch.ones(2, 3))
print("weights and indices:", list(routing_weights.shape), list(chosen.shape), " output:", list(mixture(x).shape))

# %% [markdown]
# ## Transformer block
#
# Pre-norm: each part reads the normalised stream and adds to it.

# %%
source(TransformerBlock)

# %%
transformer_block, x = TransformerBlock(16, 32, 2, 8), torch.randn(2, 5, 16)
with torch.no_grad():
    for part in (transformer_block.attention_norm, transformer_block.ffn_norm):
        same("RMSNorm and its formula", part(x), x / (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt())
    transformer_block.attention.output.weight.zero_()
    transformer_block.ffn.down.weight.zero_()
    same("with both output matrices at zero: input and output", transformer_block(x), x)

# %% [markdown]
# ## The model

# %%
source(Transformer)

# %% [markdown]
# The facts that the course tests, and one more: a change of token 5 changes no prediction before position 5.

# %%
SIZES = {"hidden_dim": 32, "ff_dim": 64, "num_heads": 4, "head_dim": 8}
variants = {
    "plain": {},
    "windows": {"use_sliding_window_alternating": True, "window_size": 4},
    "experts": {"use_moe": True, "num_experts": 4, "top_k": 2},
    "grouped heads": {"num_kv_heads": 2},
}
tokens = torch.randint(0, 100, (2, 8), generator=torch.Generator().manual_seed(1))
changed = tokens.clone()
changed[:, 5] = (changed[:, 5] + 1) % 100
for name, options in variants.items():
    built = []
    for _ in range(2):
        torch.manual_seed(7)
        built.append(Transformer(100, 4, **SIZES, **options).eval())
    with torch.no_grad():
        logits, again, other = built[0](tokens), built[1](tokens), built[0](changed)
        same(f"{name:>13}: the library's decoder with these weights", logits, built[0].decoder()(tokens))
    assert logits.shape == (2, 8, 100)
    assert torch.equal(logits, again)  # the same seed, the same model
    torch.testing.assert_close(logits[:, :5], other[:, :5])
    assert not torch.allclose(logits[:, 5:], other[:, 5:])
    kinds = [f"{type(each.attention).__name__} + {type(each.ffn).__name__}" for each in built[0].layers]
    print(f"{'':>15}{' | '.join(kinds[:2])}, twice")
    assert kinds[:2] == kinds[2:]
plain = Transformer(100, 2, **SIZES)
print(plain.embedding, plain.final_norm, plain.output_proj, f"{len(plain.layers)} layers", sep="\n")

# %% [markdown]
# ## Data
#
# A hidden pair of coefficients $(a, b)$ makes each token from the two before, $x_t = a x_{t-2} + b x_{t-1} \bmod 7$;
# with probability 0.1 a step is $x_{t-1} + 1$ instead. The first values are hidden too. Training sequences come from
# generators that no test sequence uses. `make_split` draws both: 1,000 test sequences and 10,000 for training.

# %%
DATA = RecurrenceConfig(order=2, vocab_size=7, next_prob=0.1, seq_len=64)
split = make_split(DATA, num_train=10_000, num_test=1_000, seed=0)
train_loader, test_loader = (
    DataLoader(TensorDataset(part.inputs, part.targets), batch_size=128) for part in (split.train, split.test)
)
test_tokens = split.test.tokens
numbers = [set(part.generators.numbers(DATA).tolist()) for part in split]
print(f"{len(numbers[0]):,} different generators in training, {len(numbers[1])} in the test", end=", ")
print(f"{len(set.intersection(*numbers))} in both")
for row in range(3):
    print(" ".join(f"{token}" for token in test_tokens[row, :32].tolist()), "...")

# %% [markdown]
# Bayes' rule over all 2,401 generators gives the exact distribution of every next token. No model has a higher expected
# accuracy, so this is the line to measure against.

# %%
optimum = optimal_accuracy(test_tokens, DATA).measured.numpy()
print("optimum at positions 0 to 7:", optimum[:8].round(3), " mean of all 64:", optimum.mean().round(4))

# %% [markdown]
# ## Training and evaluation
#
# The course's model and budget: AdamW at 0.01, 8 epochs of 10,000 sequences in batches of 128. The last line checks
# that the test accuracy is what the course asks for. Initial weights are drawn as in the library's decoder.

# %%
source(train, eval_acc)


# %%
def report_accuracy(epoch: int, model: torch.nn.Module, accuracies: list[float]) -> None:
    """What ``train`` calls before the first epoch and after each; it counts epochs from 0."""
    when = f"after epoch {epoch + 1}" if accuracies else "before training"
    accuracies.append(float(eval_acc(model, test_loader)))
    print(f"{when}: test accuracy {accuracies[-1]:.4f}", flush=True)


torch.manual_seed(0)
model = Transformer(DATA.vocab_size, n_layers=4, hidden_dim=64, ff_dim=128, num_heads=4, head_dim=16)
accuracies: list[float] = []
adamw = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = train(model, adamw, train_loader, functools.partial(report_accuracy, accuracies=accuracies), num_epochs=8)
print("mean training loss of each epoch:", *(f"{loss:.4f}" for loss in losses))
assert accuracies[-1] >= 0.65

# %% [markdown]
# ## Using the model
#
# ### Generation
#
# The whole sequence passes through the model at every step.

# %%
source(token_choice_greedy, generate)

# %%
greedy = generate(model, torch.tensor([[1]]), 10)
print("after token 1:", *greedy[0].tolist())
with torch.no_grad():
    written = torch.cat([torch.tensor([[1]]), greedy], dim=1)
    assert torch.equal(model(written)[:, :-1].argmax(dim=-1), greedy)  # each token is the best after those before it

# %% [markdown]
# ### Nucleus sampling and temperature
#
# Tokens are sorted by probability; one is kept if those before it do not reach `top_p` yet. The most likely always is.

# %%
source(get_dist_after_with_temp_and_topp, token_choice_adv, SamplingRule.distribution, SamplingRule._truncated)


# %%
def nucleus_by_hand(logits: list[float], top_p: float, t: float) -> list[float]:
    """Temperature and nucleus for one row of logits, token by token, with Python's numbers."""
    powers = [math.exp(logit / t) for logit in logits]
    kept, reached = {}, 0.0
    for token in sorted(range(len(logits)), key=lambda token: -powers[token]):
        if kept and reached >= top_p:
            break
        kept[token] = powers[token] / sum(powers)
        reached += kept[token]
    return [kept.get(token, 0.0) / reached for token in range(len(logits))]


rows = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
for top_p, t in itertools.product((0.0, 0.3, 0.7, 0.95, 1.0), (1 / 3, 1.0, 3.0)):
    hand = torch.tensor([[nucleus_by_hand(row, top_p, t) for row in each] for each in rows.tolist()])
    torch.testing.assert_close(get_dist_after_with_temp_and_topp(rows, top_p, t), hand)
print("15 settings, each for 2 x 3 distributions of 7 tokens: equal to the nucleus by hand")
for title, top_p, t in (("full", 1.0, 1.0), ("top-p 0.7", 0.7, 1.0), ("temperature 3", 1.0, 3.0), ("greedy", 0.0, 1.0)):
    print(f"{title:>14}:", *(f"{p:.3f}" for p in get_dist_after_with_temp_and_topp(rows, top_p, t)[0, 0].tolist()))
torch.manual_seed(0)
drawn = torch.cat([token_choice_adv(rows[:1], 0.7, 1.0) for _ in range(4000)]).flatten().bincount(minlength=7) / 4000
print("   4,000 draws:", *(f"{share:.3f}" for share in drawn.tolist()), " (top-p 0.7, the last position)")
print("      expected:", *(f"{p:.3f}" for p in get_dist_after_with_temp_and_topp(rows, 0.7, 1.0)[0, -1].tolist()))

# %% [markdown]
# ### The course's own tests
#
# Read from the course's document, if it is present: in the directory that the environment variable
# `GLASSFORMER_COURSE_TEXTS` names, or in `shared/seeds` beside the repository. The last check runs the course's data
# generator: each of its steps has to follow the rule of its sequence or to be the previous token plus one.


# %%
def cut(text: str, begin: str, end: str) -> str:
    """The part of ``text`` from ``begin`` up to the next ``end``."""
    start = text.index(begin)
    return text[start : text.index(end, start + len(begin))]


def course_data(names: dict) -> None:
    """Sequences of the course's generator are those of ``DATA``."""
    np.random.seed(0)  # noqa: NPY002 - the course's generator draws from it
    hidden = [names["generate_recursive"](2, 7, 0.1) for _ in range(200)]
    sequences = []
    for each in hidden:
        steps = names["SeqGen"](*each)
        sequences.append([*each[0], *(next(steps) for _ in range(65))])
    coefficients = torch.tensor(np.array([each[1] for each in hidden]))
    kinds = obeys_recurrence(torch.tensor(np.array(sequences)), coefficients, 7)
    assert bool((kinds.rule | kinds.increment).all())
    print(f"data generator: {kinds.rule.numel():,} steps, {(~kinds.rule).float().mean():.3f} of them off the rule")


folder = Path(os.environ.get("GLASSFORMER_COURSE_TEXTS", "../../shared/seeds"))
document = folder / "gpt_oss.txt"
if document.exists():
    text = document.read_text(encoding="utf-8")
    names = {**vars(lab), "torch": torch, "np": np}
    for about in ("rope", "calculate_attention", "calculate_sliding_attention", "transformer", "nucleus"):
        exec(cut(text, f"def test_{about}()", f"\ntest_{about}()"), names)
        with torch.no_grad():
            names[f"test_{about}"]()
        print(f"test_{about} passed")
    exec(cut(text, "def generate_recursive", "#[do not modify]"), names)
    course_data(names)
else:
    print("The course's document is not here.")

# %% [markdown]
# ### What continuations look like
#
# Continuations of 200 test sequences: the model sees 16 tokens and writes 48 more. A step of the true process follows
# the rule of its sequence or is the previous token plus one. The coefficients are those of the sequence's generator.

# %%
prompts, coefficients = test_tokens[:200, :16], split.test.generators.coefficients[:200]
torch.manual_seed(0)
choices = {
    "greedy": token_choice_greedy,
    "temperature 0.5": functools.partial(token_choice_adv, top_p=1.0, t=0.5),
    "temperature 1": functools.partial(token_choice_adv, top_p=1.0, t=1.0),
    "temperature 1.5": functools.partial(token_choice_adv, top_p=1.0, t=1.5),
    "top-p 0.9": functools.partial(token_choice_adv, top_p=0.9, t=1.0),
    "temp. 1.5, top-p 0.9": functools.partial(token_choice_adv, top_p=0.9, t=1.5),
}
found = {"true sequences": behaviour(test_tokens[:200, :64], coefficients, 16, vocab_size=7)}
for title, choice in choices.items():
    new = generate(model, prompts, 48, choice)
    found[title] = behaviour(torch.cat([prompts, new], dim=1), coefficients, 16, vocab_size=7)

print(f"{'':22}{'rule':>8}{'+1':>8}{'neither':>9}{'repeated':>10}{'cycling':>9}")
for title, each in found.items():
    steps = f"{each.rule:8.3f}{each.increment:8.3f}{each.neither:9.3f}"
    print(f"{title:22}{steps}{each.repeated:10.3f}{each.cycling:9.3f}")
errors = found["temperature 1"].errors
print("standard errors at temperature 1:", ", ".join(f"{name} {error:.3f}" for name, error in errors.items()))

# %%
context = test_tokens[:1, :40]
with torch.no_grad():
    logits = model(context)
figure, panels = plt.subplots(1, 4, figsize=(10, 2.6), sharey=True, layout="constrained")
for axes, (top_p, t) in zip(panels, ((1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (0.8, 2.0)), strict=True):
    axes.bar(range(7), get_dist_after_with_temp_and_topp(logits, top_p, t)[0, -1], edgecolor="black")
    axes.set(title=f"temperature {t:g}, top-p {top_p:g}", xlabel="next token", ylim=(0, 1))
panels[0].set_ylabel("probability")
plt.show()

# %% [markdown]
# `repeated` is the share of runs of four tokens that occurred before in the same continuation; `cycling` the share of
# continuations whose second half is two or more rounds of one cycle. The picture shows one next token: temperature
# scales all logits, top-p removes the tail and keeps the proportions of the rest.
#
# ### Accuracy per token

# %%
source(calc_per_token_acc, lab.course_training._hits)

# %%
by_position = calc_per_token_acc(model, test_loader)
with torch.no_grad():
    right = model(split.test.inputs).argmax(dim=-1) == split.test.targets
np.testing.assert_allclose(by_position, right.double().mean(dim=0).numpy(), atol=2e-3)  # a tie may fall either way
figure, axes = plt.subplots(figsize=(10, 4.5), layout="constrained")
axes.plot(by_position, label="model")
axes.plot(optimum, "k--", label="optimum")
axes.set(xlabel="position", ylabel="test accuracy", title="Accuracy at each position", ylim=(0, 1))
axes.legend(loc="lower right")
axes.grid(alpha=0.3)
plt.show()

# %%
gap = optimum - by_position
for start, stop in itertools.pairwise((0, 3, 12, 64)):
    print(
        f"positions {start:2} to {stop - 1:2}: {gap[start:stop].sum() / 64:.4f} of the {gap.mean():.4f} that is lost, "
        f"{gap[start:stop].mean():.3f} at each; model {by_position[start:stop].mean():.3f}"
    )
print("model at positions 0 to 15:", by_position[:16].round(2))

# %% [markdown]
# ## Your report
#
# The model has the course's sizes and is trained with the course's AdamW. All numbers are of one training and of 200
# continuations; the table above gives standard errors for one row. The next cell prints what the text below speaks of,
# and checks what it says.

# %%
greedy, cool, full, hot = map(found.get, ("greedy", "temperature 0.5", "temperature 1", "temperature 1.5"))
nucleus, hot_nucleus, true = (found[name] for name in ("top-p 0.9", "temp. 1.5, top-p 0.9", "true sequences"))
others = [each for each in found.values() if each is not greedy and each is not true]
print(f"test accuracy {accuracies[-1]:.1%}, of the optimum {optimum.mean():.1%}")
print(
    f"errors without the nucleus {full.neither:.0%} and {hot.neither:.0%}, with it {nucleus.neither:.0%} and "
    f"{hot_nucleus.neither:.0%}; at temperature 0.5 {cool.neither:.0%}, greedy {greedy.neither:.0%}"
)
print(
    f"continuations in a cycle: greedy {greedy.cycling:.0%}, at 0.5 {cool.cycling:.0%}, at 1 {full.cycling:.0%}, "
    f"with the nucleus {nucleus.cycling:.0%}, at 1.5 {hot.cycling:.0%}; true {true.cycling:.0%}"
)
assert true.neither == 0
assert nucleus.neither < full.neither
assert hot_nucleus.neither < hot.neither
assert nucleus.repeated > full.repeated  # and makes continuations more regular
assert nucleus.cycling > full.cycling
assert all(greedy.neither < each.neither and greedy.cycling > each.cycling for each in others)
assert greedy.increment < true.increment
assert cool.neither < full.neither < hot.neither
assert cool.cycling > full.cycling > hot.cycling
assert optimum[:3].max() < optimum[8:].min()
assert by_position[:3].max() < by_position[16:].min()
assert gap[3:12].mean() > gap[12:].mean()
assert gap[12:].sum() > gap[3:12].sum()

# %% [markdown]
# **Cross-entropy.** At each step one mean cross-entropy compares the logits of all positions of all sequences of the
# batch with the tokens that follow them.

# %% [markdown]
# **Generation.** The whole sequence so far passes through the model, the next token is chosen from the logits of the
# last position and appended, and the longer sequence passes through the model again.

# %% [markdown]
# **Nucleus sampling.** A step of a continuation follows the rule of its sequence, is the previous token plus one, or is
# neither, which the true process never does: an error. An error stays in the context of all later steps, which is then
# no sequence of the process any more. The nucleus removes the tail of each distribution, and with it a part of the
# errors, at either temperature.
#
# The nucleus makes continuations more regular: more of the runs of four tokens occurred before in the same
# continuation, since errors break such runs. It also costs variety: more continuations end in a cycle. Greedy decoding
# is the extreme case, a nucleus of one token: it has the fewest errors, but fewer of its steps are plus one than of the
# process, and most of all its continuations end in a cycle. So nucleus sampling lies between the two, and cannot tell a
# rare genuine step from an error of the same probability: it cuts by probability alone.

# %% [markdown]
# **Temperature.** Temperature divides all logits before the softmax. A low one has fewer errors, and its continuations
# come nearer to greedy ones: more of them end in a cycle. A high one has more errors, and fewer continuations in a
# cycle. The picture of one next token shows how: a high temperature gives probability to tokens that the model holds to
# be nearly impossible. None of the temperatures tried gives the mixture of the true process, which has no errors.

# %% [markdown]
# **Accuracy per token.** Accuracy is low at the first three positions, for the optimum as well: two hidden coefficients
# need two equations, hence four tokens. Then both curves rise, the optimum fast, the model more slowly. Later both are
# nearly flat, the optimum below 1 because the noise, plus one in a tenth of the steps, cannot be foreseen, and the
# model below the optimum. Per position the model loses most between positions 3 and 11, where the coefficients have to
# be found from few tokens that may be noise; of the sum over all positions the larger part lies at positions 12 to 63,
# because they are most of the sequence. Part of the loss at position 0 is one of this attention: without a sink, it
# cannot tell a first token from a run of the same token.
