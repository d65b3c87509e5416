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
import operator
import tempfile
from pathlib import Path

import torch

from glassformer.figures.attention_maps import attention_map
from glassformer.observe.capture import capture
from glassformer.observe.interchange import agreement, exchange, exchange_in_program, places
from glassformer.programs import compile_program, indices, select, selector_width, tokens, verify_program
from glassformer.programs.graph import draw_graph
from glassformer.programs.parts import describe, stages, stream_variables
from glassformer.programs.saved import load_program, save_program

same_letter, before = select(tokens, tokens, operator.eq), select(indices, indices, operator.lt, "before")
earlier = selector_width((same_letter & before).named("same letter before"), "earlier occurrences")
first = (earlier == 0).named("first occurrence")
distinct = selector_width(select(first, first, lambda key, _: key, "first occurrences"), "different letters")

distinct("abacab", causal=True)

# %% [markdown]
# A program is a value. Its parts and the values that they can have, for texts of up to six of three letters:

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
with torch.no_grad(), capture(model, what=("weights", "embedding", "residual_between", "residual")) as seen:
    model(model.encode(text))
weights = {each.layer: each.values[0, 0].numpy() for each in seen.records if each.what == "weights"}
attention_map(weights[0], list(text), list(text), f"layer 0: {model.heads[0][0]}")

# %%
attention_map(weights[1], list(text), list(text), f"layer 1: {model.heads[1][0]}")

# %% [markdown]
# The stream, decoded: what each variable is where it is written. Of the earlier occurrences it holds only what the
# second head needs, whether there are any.

# %%
found = {(each.what, each.layer): each.values[0] for each in seen.records}
stream = [found["embedding", 0]]
for layer in range(len(model.layers)):
    stream += [found["residual_between", layer], found["residual", layer]]
for variable in stream_variables(model):
    rows = stream[variable.born][:, [each.index for each in variable.coordinates]].tolist()
    values = [variable.decode(row) for row in rows]
    ends = [" to ".join(dict.fromkeys(map(str, (each[0], each[-1])))) if each else "" for each in values]
    shown = [each or f"{row[0]:.2f}" for each, row in zip(ends, rows, strict=True)]
    print(f"{stages(model)[variable.born]:<18} {variable.name:<29} {'  '.join(f'{each:>6}' for each in shown)}")

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
one, other = model.encode("abacab"), model.encode("aabbcc")
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
    f"{len(wanted.tokens):,} pairs on which the exchange matters, agreement {agreement(model, where[name], wanted):.1%}"
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
# On the command line: `glassformer compile mine.py --run-python --verify --out model.json`, `glassformer run-program
# model.json abacab`, and `glassformer explore model.json`. `gf.explore(model, "abacab").serve()` opens the page with
# the program's graph, and everything above while you type.
