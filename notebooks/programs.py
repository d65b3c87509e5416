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
# # Write a program, compile it into a transformer, prove it, break it
#
# The language, the compiler and the proofs are described in [docs/programs.md](../docs/programs.md).
#
# ## A program
#
# How many different letters does a text have up to each position? A letter counts where it occurs for the first time.

# %%
# %matplotlib inline
import copy
import math
import operator
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from glassformer.figures.attention_maps import attention_map
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding
from glassformer.observe.capture import capture
from glassformer.observe.interchange import agreement, exchange, exchange_in_program, places
from glassformer.programs import (
    compile_program,
    indices,
    select,
    selector_width,
    tokens,
    verify_program,
)
from glassformer.programs.graph import draw_graph
from glassformer.programs.parts import describe, stages, stream_variables
from glassformer.programs.saved import load_program, save_program
from glassformer.text import rounded_up

same_letter = select(tokens, tokens, operator.eq)
before = select(indices, indices, operator.lt, "before")
earlier = selector_width((same_letter & before).named("same letter before"), "earlier occurrences")
first = (earlier == 0).named("first occurrence")
distinct = selector_width(
    select(first, first, lambda key, _: key, "first occurrences"), "different letters"
)

distinct("abacab", causal=True)

# %% [markdown]
# A program is a value. Its parts and the values that they can have, for texts of up to six of three
# letters:

# %%
model = compile_program(distinct, "abc", max_len=6, causal=True)
print(draw_graph(distinct, model.domains))

# %% [markdown]
# ## The transformer
#
# Every head and every coordinate of the residual stream has a name.

# %%
print(describe(model))

# %% [markdown]
# ## Heads and stream
#
# The weights of the heads on one text. The first head selects earlier occurrences of the query's letter, the second one
# the first occurrences of letters. What is missing to 1 in a row goes to the sink.

# %%
text = "abacab"
with (
    torch.no_grad(),
    capture(model, what=("weights", "embedding", "residual_between", "residual")) as seen,
):
    model(model.encode(text))
weights = {each.layer: each.values[0, 0].numpy() for each in seen.records if each.what == "weights"}
attention_map(weights[0], list(text), list(text), f"layer 0: {model.heads[0][0]}")

# %%
attention_map(weights[1], list(text), list(text), f"layer 1: {model.heads[1][0]}")

# %% [markdown]
# The stream, decoded: what each variable is where it is written. Of the earlier occurrences it
# holds only what the second head needs, whether there are any.

# %%
found = {(each.what, each.layer): each.values[0] for each in seen.records}
stream = [found["embedding", 0]]
for layer in range(len(model.layers)):
    stream += [found["residual_between", layer], found["residual", layer]]
for variable in stream_variables(model):
    rows = stream[variable.born][:, [each.index for each in variable.coordinates]].tolist()
    values = [variable.decode(row) for row in rows]
    ends = [
        " to ".join(dict.fromkeys(map(str, (each[0], each[-1])))) if each else "" for each in values
    ]
    shown = [each or f"{row[0]:.2f}" for each, row in zip(ends, rows, strict=True)]
    print(
        f"{stages(model)[variable.born]:<18} {variable.name:<29} "
        f"{'  '.join(f'{each:>6}' for each in shown)}"
    )

# %% [markdown]
# ## The proof
#
# All 1,092 texts are run. Where there are too many of them, a bound on the errors decides.

# %%
print(verify_program(model))

# %%
long = compile_program(distinct, "abcdefgh", max_len=12, causal=True)
print(verify_program(long, limit=1000))

# %% [markdown]
# ## A broken weight
#
# One bias of the last network is changed. The certificate gives the shortest text on which that matters.

# %%
bias = model.layers[1].ffn.up.bias
kept = bias[2].item()
with torch.no_grad():
    bias[2] -= 1
print(verify_program(model))
with torch.no_grad():
    bias[2] = kept
print(verify_program(model).verdict)

# %% [markdown]
# ## An intervention on a variable
#
# What would the program say about `abacab` if the earlier occurrences were those of `aabbcc`? In the transformer the
# coordinates of that variable are copied from one text to the other.

# %%
where = places(model)
for name, place in where.items():
    print(f"{name}: {stages(model)[place.time]}, coordinates {place.coordinates}")
one = model.encode("abacab")
other = model.encode("aabbcc")
name = "earlier occurrences"
wanted = exchange_in_program(model, name, one, other)
print("the program:    ", wanted.wanted[0].tolist())
print("the transformer:", exchange(model, where[name], one, other)[0].round(decimals=6).tolist())

# %% [markdown]
# The same for all pairs of 100 random texts: the share on which the two agree at every position.

# %%
drawn = torch.randint(3, (100, 6), generator=torch.Generator().manual_seed(0))
pairs = torch.cartesian_prod(torch.arange(100), torch.arange(100))
wanted = exchange_in_program(model, name, drawn[pairs[:, 0]], drawn[pairs[:, 1]])
print(
    f"{len(wanted.tokens):,} pairs on which the exchange matters, agreement "
    f"{agreement(model, where[name], wanted):.1%}"
)

# %% [markdown]
# ## A file
#
# JSON carries the weights and all names, but not the program. With its program, the model can be verified again.

# %%
with tempfile.TemporaryDirectory() as directory:
    path = Path(directory) / "distinct.json"
    save_program(model, path)
    stored = load_program(path)
    print(f"{path.stat().st_size:,} bytes;", stored.run("abacab"), stored.program)
stored.program = distinct
verify_program(stored).verdict

# %% [markdown]
# On the command line: `glassformer program mine.py --run-python --verify --out model.json`,
# `glassformer program model.json abacab`, and `glassformer explore model.json`.
# `gf.explore(model, "abacab").serve()` opens the page with the program's graph, and everything
# above while you type.

# %% [markdown]
# ## Weights by hand: an adder of 78 parameters
#
# No program is needed to choose weights. Those of the next transformer are chosen by hand. It has one layer, two heads
# and a stream of one coordinate, and adds any two numbers of ten digits. Tokens are the digits, the lowest first. A text
# is `0 a 0 b 0`, and the transformer continues it with the eleven digits of the sum. Task and rules are
# [AdderBoard](https://github.com/anadim/AdderBoard)'s (Papailiopoulos 2026): a plain forward pass, in which each digit is
# the most likely one and is read by the next step.
#
# Let a(k), b(k) and c(k) be the digits of the numbers and of their sum at place k, 0 where there is none. At the position
# before c(k), the transformer computes
#
# ```text
# u = a(k-1) + b(k-1) - c(k-1)   9 or 10 if a carry goes into place k, otherwise 0 or -1
# z = a(k) + b(k) + 2 u / 19     near the sum of the two digits and the carry
# x = z - 10 step(z)             near c(k); the step rises from 0 at z = 9.2 to 1 at z = 9.75
# ```
#
# - Queries and keys are constants, which rotary positions turn with a period of 11. So the first head attends to c(k-1),
#   b(k-1) and a(k-1), at the distances 0, 11 and 22, and the second to b(k) and a(k), at 10 and 21.
# - Two ReLU units are the step.
# - The logit of digit i is 2 i x - i², which is largest for the digit nearest to x.


# %%
class Adder(nn.Module):
    """Logits of the next digit after each position."""

    def __init__(self) -> None:
        super().__init__()
        # Of the two pairs of coordinates that are turned, the second one has the period 11.
        self.rotary = RotaryEmbedding(head_dim=4, base=(11 / (2 * math.pi)) ** 2)
        self.embedding = nn.Embedding(10, 1)
        attention = GroupedQueryAttention(
            hidden_dim=1, num_heads=2, head_dim=4, num_kv_heads=1, bias=True
        )
        block = Block(
            hidden_dim=1, attention=attention, ffn=MLP(hidden_dim=1, ff_dim=2), norm_eps=1e-5
        )
        block.attention_norm = nn.Identity()
        block.ffn_norm = nn.Identity()
        self.layers = nn.ModuleList([block])
        self.output = nn.Linear(1, 10)

    def forward(self, tokens):
        rotation = self.rotary.rotation(tokens.shape[1])
        return self.output(self.layers[0](self.embedding(tokens), rotation=rotation))


@torch.no_grad()
def build_adder() -> Adder:
    adder = Adder().eval()
    for weight in adder.parameters():
        weight.zero_()
    attention = adder.layers[0].attention
    ffn = adder.layers[0].ffn
    digits = torch.arange(10.0)
    adder.embedding.weight[:, 0] = -2 / 9.5 * digits
    attention.value.weight[0, 0] = -9.5 / 2  # values are the digits again
    attention.output.weight[0, 0] = 3 / 9.5  # times the first head's mean of three
    attention.output.weight[0, 4] = 2.0  # times the second head's mean of two
    attention.key.bias[1] = 1.0
    # The scores of these keys are 30 above all others.
    sharpness = 30 / (1 - math.cos(2 * math.pi / 11))
    for head, distance in enumerate((0, 10)):
        angle = -2 * math.pi * distance / 11
        # The second pair are the coordinates 1 and 3. Scores are divided by the root of 4.
        attention.query.bias[4 * head + 1] = 2 * sharpness * math.cos(angle)
        attention.query.bias[4 * head + 3] = 2 * sharpness * math.sin(angle)
    ffn.up.weight[:, 0] = 1 / (9.75 - 9.2)
    ffn.up.bias[0] = -9.2 / (9.75 - 9.2)
    ffn.up.bias[1] = -9.75 / (9.75 - 9.2)
    ffn.down.weight[0, 0] = -10.0
    ffn.down.weight[0, 1] = 10.0
    adder.output.weight[:, 0] = 2 * digits
    adder.output.bias[:] = -digits.square()
    return adder


adder = build_adder()
num_parameters = sum(weight.numel() for weight in adder.parameters())
assert num_parameters == 78
print(f"{num_parameters} parameters, zeros among them")

# %% [markdown]
# It adds AdderBoard's special pairs and 2,000 random ones.


# %%
def addition_texts(pairs):
    """The text `0 a 0 b 0` of each pair, then the digits of the sum, the lowest digits first."""
    zero = np.zeros((len(pairs), 1), dtype=np.int64)
    a = pairs[:, [0]] // 10 ** np.arange(10) % 10
    b = pairs[:, [1]] // 10 ** np.arange(10) % 10
    total = pairs.sum(1, keepdims=True) // 10 ** np.arange(11) % 10
    return torch.from_numpy(np.concatenate([zero, a, zero, b, zero, total], axis=1))


@torch.no_grad()
def add(model, pairs):
    texts = addition_texts(pairs)[:, :23]
    for _ in range(11):
        texts = torch.cat([texts, model(texts)[:, -1:].argmax(-1)], dim=1)
    return (texts[:, 23:].numpy() * 10 ** np.arange(11)).sum(1)


most = 10**10 - 1
special = [(0, 0), (0, 1), (most, 0), (most, 1), (1, most), (most, most), (5 * 10**9, 5 * 10**9)]
special += [(1111111111, 8888888889), (1234567890, 9876543210)]
pairs = np.concatenate([special, np.random.default_rng(2025).integers(0, 10**10, (2000, 2))])
sums = add(adder, pairs)
assert (sums == pairs.sum(1)).all()
print(
    f"{len(pairs):,} of {len(pairs):,} sums are right; the last of the special ones is "
    f"{sums[len(special) - 1]:,}"
)

# %% [markdown]
# ### The proof, for all pairs
#
# There are 10²⁰ pairs, too many to run. The proof is by induction over places: if the digits of the sum so far are
# right, so is the next one. It has four parts.
#
# 1. **Arithmetic.** z is near the sum of the two digits and the carry. All 20,000 cases of two digits at each of two
#    places and a carry into the lower one are enumerated, in whole numbers.


# %%
cases = np.indices((10, 10, 2, 10, 10)).reshape(5, -1)


def arithmetic_error() -> float:
    """The largest distance of z from the sum of the two digits and the carry."""
    low_a, low_b, carry, a, b = cases
    low = low_a + low_b + carry
    total = a + b + low // 10
    u = low_a + low_b - low % 10
    return float(np.abs(19 * (a + b) + 2 * u - 19 * total).max()) / 19


assert arithmetic_error() == 2 / 19
print(f"{cases.shape[1]:,} cases: z is at most 2 / 19 off")

# %% [markdown]
# 2. **Attention.** The matrices of queries and keys are 0. So the attention weights depend on
#    positions alone, and the stream in front of the step is a linear function of the digits. Its
#    coefficients are read off the network: it runs in float64 on a text of zeros, and on texts with
#    a single 1. What is left of the coefficients of z is the *leak*. No digit is above 9.


# %%
@torch.no_grad()
def leak(model) -> float:
    """The largest difference of what the step reads from z, before any digit of the sum."""
    double = copy.deepcopy(model).double()
    texts = torch.cat([torch.zeros(1, 33), torch.eye(33)]).long()
    with capture(double, what="residual_between") as seen:
        double(texts)
    (stream,) = [record.values[..., 0] for record in seen.records]
    largest = []
    for k in range(11):
        position = 22 + k
        constant = stream[0, position]
        coefficients = stream[1:, position] - constant
        wanted = torch.zeros(33, dtype=torch.float64)
        if k > 0:
            wanted[position] = -2 / 19  # c(k-1)
            wanted[11 + k] = 2 / 19  # b(k-1)
            wanted[k] = 2 / 19  # a(k-1)
        if k < 10:
            wanted[12 + k] = 1  # b(k)
            wanted[1 + k] = 1  # a(k)
        difference = (coefficients - wanted).abs()
        difference[[0, 11, 22]] = 0  # the zeros of the text
        largest.append(9 * difference.sum() + constant.abs())
    return float(torch.stack(largest).max())


print(f"leak: at most {rounded_up(leak(adder), 2)}")

# %% [markdown]
# 3. **Rounding.** The network may be computed in float32 and in any order. Then N roundings in a
#    row change a number by at most the share γ(N) = N r / (1 - N r) of the sum of the sizes of its
#    terms, where r is the unit roundoff. Angles are products of a position, at most 32, and the
#    frequency; a sine or cosine is taken to be within two roundings. The product of the lengths of
#    query and key turns errors of angles into errors of scores. If every score is off by at most s,
#    each attention weight changes by a factor of at most exp(2 s).


# %%
def gamma(roundings: int) -> float:
    total = roundings * 2.0**-24
    return total / (1 - total)


@torch.no_grad()
def rounding(model) -> tuple[float, float]:
    """The largest errors by rounding of the stream before the step, and after it."""
    attention = model.layers[0].attention
    ffn = model.layers[0].ffn
    length = (
        attention.query.bias.double().reshape(2, 4).norm(dim=1).max()
        * attention.key.bias.double().norm()
        / 2
    )
    angles = 2 * (gamma(3) * 32 * 2 * math.pi / 11 + gamma(2))  # of the query and of the key
    scores = float(length) * (angles + gamma(24))
    largest = model.embedding.weight.abs().max().double()
    read = (
        attention.value.weight[:, 0].abs().double() * largest + attention.value.bias.abs().double()
    )
    heads = float((attention.output.weight[0].abs().double().reshape(2, 4) * read).sum())
    size = float(largest) + heads + float(attention.output.bias.abs())
    before = heads * math.expm1(2 * scores) + gamma(128) * size
    inside = ffn.up.weight[:, 0].abs().double() * 20 + ffn.up.bias.abs().double()
    size = (
        20 + float((ffn.down.weight[0].abs().double() * inside).sum()) + float(ffn.down.bias.abs())
    )
    return before, gamma(16) * size


before, after = rounding(adder)
print(
    f"rounding: at most {rounded_up(before, 2)} before the step, and {rounded_up(after, 2)} in it"
)

# %% [markdown]
# 4. **The step and the output.** With the three errors e, z is at most 9 + e or at least 10 - e. The step is 0 or 1 there,
#    so that x is about e away from c(k). Between its two bends the step is linear: its ends suffice. The logits
#    2 i x - i² of two digits differ by at least 1 - 2 e, if x is at most e away from one of them.
#
# `prove` checks all that from the weights. It takes for granted that the layers compute what their documentation says.


# %%
@torch.no_grad()
def prove(model) -> tuple[bool, float]:
    """Whether every digit of every sum is right, and the largest distance of x from the digit."""
    attention = model.layers[0].attention
    digits = torch.arange(10.0)
    per_digit = model.embedding.weight[1, 0]
    before, after = rounding(model)
    error = arithmetic_error() + leak(model) + before
    ffn = copy.deepcopy(model.layers[0].ffn).double()
    bends = -ffn.up.bias / ffn.up.weight[:, 0]
    z = torch.tensor([-error, 9 + error, 10 - error, 19 + error], dtype=torch.float64)
    x = z + ffn(z[:, None])[:, 0]
    wrong = float((x - (z - torch.tensor([0, 0, 10, 10]))).abs().max())
    distance = error + wrong + after
    conditions = [
        # Attention depends on positions alone, with the period 11 alone.
        not attention.query.weight.any() and not attention.key.weight.any(),
        not attention.query.bias[0::2].any() and not attention.key.bias[0::2].any(),
        math.isclose(model.rotary.base, (11 / (2 * math.pi)) ** 2),
        torch.allclose(model.embedding.weight[:, 0], per_digit * digits, rtol=2.0**-23, atol=0),
        bool((bends > 9 + error).all() and (bends < 10 - error).all()),
        torch.equal(model.output.weight[:, 0], 2 * digits)
        and torch.equal(model.output.bias, -digits.square()),
        1 - 2 * distance > 2 * gamma(4) * 300,  # no logit is larger than 300
        all(float(weight.abs().max()) < 1e9 for weight in model.parameters()),  # nothing overflows
    ]
    return all(conditions), distance


holds, distance = prove(adder)
assert holds
print(
    f"addition HOLDS for all {10**20:.0e} pairs: "
    f"x is at most {rounded_up(distance, 3)} away from the digit"
)

# %% [markdown]
# The bound covers what the network holds, and ten adders with one changed weight are not proved.

# %%
with torch.no_grad(), capture(adder, what="residual") as seen:
    adder(addition_texts(pairs))
(stream,) = [record.values[..., 0] for record in seen.records]
found = float((stream[:, 22:33] - addition_texts(pairs)[:, 23:]).abs().max())
assert found <= distance
print(f"the largest distance in these {len(pairs):,} sums is {found:.4f}")

changes = [
    ("layers.0.attention.query.bias", 1, -350.0),
    ("layers.0.attention.query.bias", 5, 200.0),
    ("layers.0.attention.output.weight", 4, -0.2),
    ("layers.0.attention.output.bias", 0, 0.5),
    ("layers.0.attention.value.bias", 0, 0.5),
    ("layers.0.ffn.up.bias", 0, 1.5),
    ("layers.0.ffn.down.weight", 1, 2.0),
    ("embedding.weight", 7, 0.2),
    ("output.weight", 3, 0.5),
    ("output.bias", 3, 3.0),
]
for name, index, change in changes:
    broken = build_adder()
    with torch.no_grad():
        broken.get_parameter(name).view(-1)[index] += change
    assert not prove(broken)[0]
print(f"not proved: {len(changes)} of {len(changes)} broken adders")
