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
# # The explorer in a notebook
#
# `glassformer explore` opens a page to look inside models. The same page is a widget: whatever the page can do, a cell
# can. Below are its views, each on a model that comes along.
#
# Where this notebook is read without a kernel, as on GitHub, each cell shows a picture of the chosen head instead. Run
# the cells to get the page itself. Widgets need the extra `explore`: `pip install '.[explore]'` in a clone.

# %%
# %matplotlib inline
from tempfile import TemporaryDirectory

import torch

import glassformer as gf

# %% [markdown]
# ## A head that somebody designed
#
# The task: +1 for a letter that occurs once, -1 for one that occurs again. Every number in `Km`, `Qm`, `Vm` and `pos`
# can be changed, and everything that follows from it changes while you type: keys, queries, values, scores, weights,
# outputs. Beside it stands what is proved of the weights for *all* sequences, or a sequence that refutes them.

# %%
unique = gf.explore("unique", "ABCA")
unique

# %% [markdown]
# Python sees what is shown, and can change it: the widget above follows. Here one number of `Vm` is
# edited, and the certificate turns into a counterexample.

# %%
unique.set(cells={"Vm.0.0": "0"})
unique.state

# %% [markdown]
# The same answers are there without a page. `answer` takes what the page asks.

# %%
from glassformer.explorer.messages import AskCheck, AskHead

design = unique.backend.answer("head", AskHead(model="unique"))
weights = design.weights.model_copy(update={"Vm": [[0.0], *design.weights.Vm[1:]]})
check = unique.backend.answer("check", AskCheck(model="unique", weights=weights, text="ABCA"))
print(check.certificate.text)

# %% [markdown]
# ## An encoder that judges reviews
#
# Three layers of four heads. Choose a head among the small pictures; point at a cell to read its weight; draw lines
# between words, or colour the text by what one word reads. `versus` puts a second head beside the first.

# %%
gf.explore(
    "sentiment", "Bland noodles and the worst coffee on our street.", layer=2, head=1, versus=(0, 0)
)

# %% [markdown]
# ## Facts in any order
#
# An encoder without positions reads facts as a set. Drag them into another order: the answer stays, and the attention
# goes along with its fact.

# %%
gf.explore("lookup-facts", view="scramble", part="cross")

# %% [markdown]
# ## The next token, and who computes it
#
# A decoder continues numbers that follow a hidden rule. The view *Sampling* shows the distribution of the next one,
# what temperature, top-k and top-p make of it, and which tokens obey the rule. The view *Experts* shows which experts
# each token went to.

# %%
gf.explore("recurrence", view="sampling", temperature=0.7, top_k=3, layer=1, head=0)

# %% [markdown]
# ## What if a part were missing?
#
# The view *What if* removes heads, forbids edges of attention, steers the residual stream or replaces experts, and
# shows the probabilities before and after. This model continues a repetition; without the one head that attends to the
# letter that followed last time, it does not.

# %%
gf.explore(
    "induction", view="whatif", removed=[{"part": "self", "layer": 1, "head": 1}], layer=1, head=1
)

# %% [markdown]
# ## A model of your own
#
# Any model of glassformer can be handed over, and so can GPT-2, Llama, Mixtral and BERT of transformers. This GPT-2 is
# a small one that was never trained: its heads read all that they may in nearly equal shares.

# %%
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

logging.set_verbosity_error()
torch.manual_seed(0)
small = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=4))
gf.explore(small, [71, 108, 97, 115, 115, 32, 105, 115, 32, 99, 108, 101, 97, 114])

# %% [markdown]
# ## A page to pass on
#
# `save` writes what is shown to one file. It opens in any browser, without a server and without network: heads can be
# chosen, cells read, heads compared. The button *Save page* does the same.

# %%
with TemporaryDirectory() as directory:
    path = unique.save(f"{directory}/unique.html")
    print(f"{path.name}: {path.stat().st_size / 1000:,.0f} kB")

# %% [markdown]
# And `figure` gives the chosen head as a figure of matplotlib, for a paper.

# %%
unique.set(cells={})
unique.figure()
