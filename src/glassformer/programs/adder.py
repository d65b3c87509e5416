r"""An autoregressive transformer that adds two numbers, by hand, with a proof for all pairs.

Tokens are the ten digits, the lowest first. A text is ``0 a 0 b 0`` with n digits of each number, and the transformer
continues it by the n + 1 digits of the sum. Behind it, before digit k of the sum, stand the digits c(k-1) of the sum,
b(k-1) and a(k-1) at the distances 0, n + 1 and 2 (n + 1), and those of b(k) and a(k) at n and 2 n + 1; the zeros of the
text stand for digits that there are not.

One layer, two heads, a residual stream of one coordinate. Queries and keys are constants, turned by positions with the
period n + 1, so the first head is the mean of c(k-1), b(k-1), a(k-1), and the second one of b(k) and a(k). From them::

    u = a(k-1) + b(k-1) - c(k-1)        9 or 10 if a carry goes into place k, otherwise 0 or -1
    z = a(k) + b(k) + 2 u / 19          within 2 / 19 of the sum with the carry

One step of two ReLU units takes 10 off from z = 9.2 to 9.75, and the output's logits ``2 i x - i²`` are largest for the
digit i nearest to x. The attention depends on positions alone; so does the bound of :func:`verify_adder`.

Source: the task and its rules are AdderBoard's (Papailiopoulos 2026, github.com/anadim/AdderBoard).
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.handcraft.bounds import gamma, require_as_built
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding

_LARGEST = 1e9
"""Of a weight, so that no sum of products overflows."""
_MARGIN = 30.0
"""By which wanted keys' scores are ahead of all others."""
_LOW, _HIGH = 9.2, 9.75
"""Where the step begins and ends."""
_OWN = -2 / 9.5
"""What the stream holds of a digit of 1."""


class Adder(nn.Module):
    """The transformer of this module: embedding, one block without norms, output. 78 parameters, zeros among them.

    Args:
        num_digits: Digits of each number. From 6: no pair of coordinates turns faster than a radian per position. To
            18: larger sums are no whole numbers of 64 bits.

    Shape: tokens ``[batch, position]`` to logits of the next digit ``[batch, position, 10]``.
    """

    def __init__(self, num_digits: int = 10) -> None:
        super().__init__()
        fits, fix = 6 <= num_digits <= 18, "Put zeros before shorter numbers."
        require(fits, f"num_digits = {num_digits}", "from 6 to 18", fix)
        self.num_digits = num_digits
        period = num_digits + 1
        # Of the two pairs of coordinates the second turns once in a period.
        self.rotary = RotaryEmbedding(4, (period / (2 * math.pi)) ** 2)
        self.embedding = nn.Embedding(10, 1)
        block = Block(1, GroupedQueryAttention(1, 2, 4, 1, bias=True), MLP(1, 2), 1e-5)
        block.attention_norm, block.ffn_norm = nn.Identity(), nn.Identity()
        self.layers = nn.ModuleList([block])
        self.output = nn.Linear(1, 10)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            digits = torch.arange(10.0)
            self.embedding.weight[:, 0] = _OWN * digits
            attention = block.attention
            ffn: Any = block.ffn
            attention.key.bias[1] = 1.0
            sharpness = _MARGIN / (1 - math.cos(2 * math.pi / period))
            for head, distance in enumerate((0, num_digits)):
                angle = -2 * math.pi * distance / period
                turned = torch.tensor([math.cos(angle), math.sin(angle)])
                # Half-split: coordinates 1 and 3 are the second pair. The score is divided by the root of 4.
                attention.query.bias[4 * head + 1 : 4 * head + 4 : 2] = 2 * sharpness * turned
            attention.value.weight[0, 0] = 1 / _OWN
            attention.output.weight[0, 0], attention.output.weight[0, 4] = 3 / 9.5, 2.0
            width = _HIGH - _LOW
            ffn.up.weight[:, 0] = 1 / width
            ffn.up.bias[0], ffn.up.bias[1] = -_LOW / width, -_HIGH / width
            ffn.down.weight[0, 0], ffn.down.weight[0, 1] = -10.0, 10.0
            self.output.weight[:, 0], self.output.bias[:] = 2 * digits, -digits.square()

    def forward(self, tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position digit"]:
        """Logits of the next digit after each position."""
        rotation = self.rotary.rotation(tokens.shape[1], device=tokens.device)
        return self.output(self.layers[0](self.embedding(tokens), rotation=rotation))

    @torch.inference_mode()
    def add(self, pairs: Int[np.ndarray, "pair 2"]) -> Int[np.ndarray, " pair"]:
        """The sums of pairs of numbers, digit by digit, always the most likely one."""
        most = 10**self.num_digits - 1
        fits = pairs.ndim == 2 and pairs.shape[1] == 2 and bool(((pairs >= 0) & (pairs <= most)).all())
        got = f"pairs of shape {list(pairs.shape)}"
        require(fits, got, f"[pair, 2] of numbers from 0 to {most}", "Make it larger.")
        tokens = torch.from_numpy(addition_texts(pairs, self.num_digits)[:, : 2 * self.num_digits + 3])
        for _ in range(self.num_digits + 1):
            tokens = torch.cat([tokens, self(tokens)[:, -1:].argmax(-1)], dim=1)
        return (tokens[:, -self.num_digits - 1 :].numpy() * 10 ** np.arange(self.num_digits + 1)).sum(1)


def addition_texts(pairs: Int[np.ndarray, "pair 2"], num_digits: int) -> Int[np.ndarray, "pair position"]:
    """The text ``0 a 0 b 0`` of each pair with the digits of the sum after it, the lowest digits first."""
    zero = np.zeros((len(pairs), 1), dtype=np.int64)
    a, b = (pairs[:, [side]] // 10 ** np.arange(num_digits) % 10 for side in range(2))
    total = pairs.sum(1, keepdims=True) // 10 ** np.arange(num_digits + 1) % 10
    return np.concatenate([zero, a, zero, b, zero, total], axis=1)


@dataclass(frozen=True)
class AdderCertificate:
    """Whether an adder is right for all pairs of numbers.

    Attributes:
        holds: Whether the bound proves it.
        num_cases: Cases of the induction step: digits of two places and the carry into the lower.
        num_parameters: Numbers in the weights, zeros among them.
        leak: The largest weight of all unwanted keys together, and of wanted ones' differences from their share.
        error: The largest distance of what the output reads from the right digit, with all errors; below 1/2.
    """

    holds: bool
    num_pairs: int
    num_cases: int
    num_parameters: int
    leak: float
    error: float

    def __str__(self) -> str:
        verdict = "HOLDS" if self.holds else "NOT PROVED"
        return (
            f"addition: {verdict} for all {self.num_pairs:.3g} pairs ({self.num_parameters} parameters)\n"
            f"  cases of the induction step  {self.num_cases:,} at every place\n"
            f"  leak of attention            {self.leak:.2g}\n"
            f"  distance from a digit        {self.error:.3f}, which has to be below 0.5"
        )


@torch.inference_mode()
def verify_adder(model: Adder) -> AdderCertificate:
    """Prove that ``model`` adds all pairs of numbers, from its weights.

    By induction over places: if digit k - 1 of the sum is right, digit k is. The lemmas:

    1. Queries and keys are constants, so the attention weights at each position are the same for all texts. They are
       computed in float64 from the model's weights. Angles are computed in float32, each with two roundings.
    2. The stream before the ReLU network is therefore a linear function of the digits, whose factors are known. All
       digits but five have small factors: 9 times their sum bounds what they add.
    3. For the five, all cases that can occur are enumerated: two digits at each of two places and the carry into the
       lower one, which give the digit of the sum there.
    4. Rounding moves the stream by at most ``gamma(n + 64, u)`` of the sum of the sizes of all terms, u being the unit
       roundoff of the weights; the network multiplies errors by at most ``1 + 10 / 0.55``.
    """
    require_as_built(model, Adder, _LARGEST, like=Adder(model.num_digits))
    block: Any = model.layers[0]
    attention, ffn = block.attention, block.ffn
    constant = not attention.query.weight.any() and not attention.key.weight.any()
    require(constant, "queries or keys that depend on tokens", "constants, turned by positions", "Use Adder().")
    n, roundoff = model.num_digits, torch.finfo(attention.query.bias.dtype).eps / 2
    digits = torch.arange(10.0, dtype=torch.float64)
    own = model.embedding.weight[:, 0].double()
    per_digit = float(own[1])
    linear = float((own - per_digit * digits).abs().max())
    out = _double(attention.output.weight[0]).reshape(2, 4)
    factors = (out @ _double(attention.value.weight[:, 0]) * per_digit).tolist()
    added = float((out @ _double(attention.value.bias)).sum() + attention.output.bias.double())
    value, bias = np.abs(_double(attention.value.weight[:, 0])), np.abs(_double(attention.value.bias))
    terms = np.abs(out) @ (value * float(own.abs().max()) + bias)  # which may cancel
    up, down = (_double(ffn.up.weight[:, 0]), _double(ffn.up.bias)), _double(ffn.down.weight[0])
    bends = [-bias / weight for weight, bias in zip(*up, strict=True) if weight]
    leak = error = 0.0
    cases = 0
    for k in range(n + 1):
        query = 2 * n + 2 + k
        weights, off = _weights(attention, model.rotary, query)
        row = np.array([factors[0] * weights[0], factors[1] * weights[1]]).sum(0)
        row[query] += per_digit
        places = [query, n + 1 + k, k, n + 2 + k, 1 + k]  # c(k-1), b(k-1), a(k-1), b(k), a(k)
        # In the end, digits n of a and b are zeros of the text, and what is at distance 3 n + 2 is one, too.
        others = np.delete(np.abs(row), places if k < n else [*places, 0]).sum()
        ideal = np.array([-2 / 9.5 + 1 / 9.5, 1 / 9.5, 1 / 9.5, 1.0, 1.0])
        found = row[places]
        used = slice(0, 3) if k == n else slice(0, 5)
        leak = float(np.max([leak, others, np.abs(found - ideal)[used].max()]))
        size = 9 * (np.abs(row).sum() + 2 * abs(per_digit)) + 40 + terms.sum() + float(attention.output.bias.abs())
        blur = 9 * others + 9 * off * sum(map(abs, factors))
        blur += gamma(2 * query + 64, roundoff) * size + 2 * linear * (1 + size)
        top, below = range(10 if k < n else 1), (10, 10, 2) if k > 0 else (1, 1, 1)
        table = np.array(list(itertools.product(*map(range, below), top, top)), dtype=np.float64)
        before_a, before_b, carry, a, b = table.T
        before = before_a + before_b + carry
        total = a + b + before // 10
        z = found @ np.array([before % 10, before_b, before_a, b, a]) + added
        cases = max(cases, len(table))
        # Between its bends the network is linear.
        for end in (z - blur, z + blur, *(np.clip(bend, z - blur, z + blur) for bend in bends)):
            x = end + np.maximum(end[:, None] * up[0] + up[1], 0) @ down + float(ffn.down.bias[0])
            inside = np.abs(end[:, None] * up[0]) + np.abs(up[1])
            size = np.abs(end) + inside @ np.abs(down) + abs(float(ffn.down.bias[0])) + 20
            slack = gamma(64, roundoff) * size.max()
            error = float(np.maximum(error, np.abs(x - total % 10).max() + slack))  # NaN stays
    output = model.output
    parabola = torch.equal(output.weight[:, 0].double(), 2 * digits) and torch.equal(output.bias.double(), -(digits**2))
    return AdderCertificate(
        holds=bool(error < 0.5 - gamma(64, roundoff) * 400) and parabola,
        num_pairs=10 ** (2 * n),
        num_cases=cases,
        num_parameters=sum(each.numel() for each in model.parameters()),
        leak=leak,
        error=error,
    )


def _double(tensor: Tensor) -> Float[np.ndarray, " unit"]:
    return tensor.double().numpy()


def _weights(
    attention: GroupedQueryAttention, rotary: RotaryEmbedding, query: int
) -> tuple[Float[np.ndarray, "head key"], float]:
    """The attention weights of a query at this position, and how far off the sum of a head's may be."""
    single = torch.finfo(torch.float32).eps / 2
    frequency = rotary._frequencies.double()[1].item()
    angles = (query - np.arange(query + 1)) * frequency
    q = attention.query.bias.double().numpy().reshape(2, 4)
    k = attention.key.bias.double().numpy()
    require(not q[:, 0::2].any(), "a first pair that is not 0", "constants in the second pair alone", "Use Adder().")
    length = np.hypot(q[:, 1], q[:, 3]) * math.hypot(k[1], k[3]) / 2
    turned = angles + (np.arctan2(q[:, 3], q[:, 1]) - math.atan2(k[3], k[1]))[:, None]
    scores = length[:, None] * np.cos(turned)
    # Angles are products in float32, of two positions. Near a peak their errors count squared.
    blur = 2 * (3 * single * query * frequency + 2 * single)
    off = length[:, None] * (np.abs(np.sin(turned)) * blur + blur**2 / 2 + gamma(24, single))
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return weights, float(2 * (weights * np.expm1(2 * off)).sum(1).max())
