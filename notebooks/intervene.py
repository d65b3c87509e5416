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
# # Change a model and see what follows
#
# The recipes of [intervene](../docs/intervene.md) and [sweep](../docs/sweep.md) on a bundled model: a decoder of two
# attention-only layers, trained to continue random letters that are repeated.

# %%
import torch

from glassformer.explorer.loading.bundled import bundled
from glassformer.handcraft.induction import build_induction, verify_induction
from glassformer.handcraft.sequences import LETTERS
from glassformer.observe.capture import capture
from glassformer.observe.circuits import composition_scores, ov_circuit, qk_circuit, token_vectors
from glassformer.observe.detectors import attention_faithfulness, head_scores, repeated_tokens
from glassformer.observe.edits import forbid, patch, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.sweep import patch_sweep

torch.set_grad_enabled(False)
loaded = next(entry for entry in bundled() if entry.card.name == "induction").open()
model = loaded.model
tokens = torch.tensor([loaded.encode("GLASSFORMERGLASSF")])


def next_letter(logits):
    share, best = logits[0, -1].softmax(-1).max(-1)
    return f"{loaded.word(int(best))} with {float(share):.1%}"


next_letter(model(tokens))

# %% [markdown]
# ## Find the heads
#
# On random letters that are repeated, which heads attend to the letter before, and which to the letter that followed
# the earlier occurrence?

# %%
repeated = torch.cat([torch.full((32, 1), 26), repeated_tokens(26, 20, 32, seed=5)], 1)
scores = head_scores(model, repeated)
for kind in ("previous", "induction"):
    for layer, head, score in scores.top(kind, 2):
        print(f"{kind:<10} head {layer}.{head}: {score:.2f}")
first_layer, first, _ = scores.top("previous", 1)[0]
second_layer, second, _ = scores.top("induction", 1)[0]

# %% [markdown]
# ## Remove heads
#
# The share of letters of the second half that are predicted from the one before, without each head.


# %%
def copied(*edits):
    with intervene(model, *edits):
        best = model(repeated).argmax(-1)
    return float((best[:, 21:-1] == repeated[:, 22:]).double().mean())


print(f"all heads     {copied():.1%}")
for layer in range(2):
    for head in range(4):
        print(f"without {layer}.{head}   {copied(zero('heads', layers=layer, heads=head)):.1%}")

# %% [markdown]
# Is it this one edge? The last F may not see the letter after the first F; then another letter
# instead.

# %%
for key in (7, 9):
    with intervene(model, forbid(queries=-1, keys=key, layers=second_layer)):
        print(
            f"without the edge to {loaded.word(int(tokens[0, key]))}: {next_letter(model(tokens))}"
        )

# %% [markdown]
# ## Patch from another run
#
# In the second text another letter follows the first F. Which heads carry the difference? 1 is as in the first text.

# %%
other = torch.tensor([loaded.encode("GLASSFIRMERGLASSF")])
target, rival = loaded.encode("OI")[1:]
swept = patch_sweep(
    model, tokens, other, lambda logits: logits[:, -1, target] - logits[:, -1, rival]
)
print(swept.restored.round(decimals=2))
with capture(model, what="heads") as seen:
    model(tokens)
with intervene(model, patch("heads", seen, layers=second_layer, heads=second)):
    print(next_letter(model(other)))

# %% [markdown]
# ## Lenses
#
# What the stream says after each stage, and what each part adds to the logit of O over that of I.

# %%
for stage, logits in enumerate(logit_lens(model, tokens)):
    print(f"after {stage} layers: {next_letter(logits)}")
direct_logits(model, tokens, target, rival).top(4)

# %% [markdown]
# ## Does attention rank causes?
#
# Rank correlation of the last letter's attention with the effect of forbidding each edge, in the mean of all heads, and
# of gradient times input with the same effects.

# %%
faithful = attention_faithfulness(model, tokens, lambda logits: logits[:, -1, target], query=-1)
print(
    f"attention {float(faithful.of_mean[0]):.2f}, gradient x input "
    f"{float(faithful.of_gradients[0]):.2f}"
)

# %% [markdown]
# ## The same circuit by hand
#
# Two heads whose weights are written by hand, and a proof for every text of up to 64 letters.

# %%
by_hand = build_induction(LETTERS, 64)
print(verify_induction(by_hand, LETTERS, limit=1000))

# %% [markdown]
# Both models by their circuits, as shares of tokens. *Copies*: the head raises the logit of the
# token that it reads most. *Matches*: a query scores its own token highest where keys are read
# through what the first head has written, and *directly* where they are not.


# %%
def compare(name, model, first, second):
    embedding, unembedding = token_vectors(model)
    written = ov_circuit(model, 0, first)
    qk = qk_circuit(model, 1, second)
    ov = ov_circuit(model, 1, second)
    through = (qk @ written.T).between(embedding, embedding)
    found = composition_scores(model)
    copies = ov.between(embedding, unembedding).diagonal_share
    matches = through.diagonal_share
    directly = qk.between(embedding, embedding).diagonal_share
    print(f"{name}: copies {copies:.2f}, matches {matches:.2f}, directly {directly:.2f}")
    mean, spread = found.random
    print(
        f"  K-composition {float(found.k[0, first, 1, second]):.3f}; of random matrices "
        f"{mean:.3f} ± {spread:.3f}"
    )


compare("trained", model, first, second)
compare("by hand", by_hand, 0, 0)

# %% [markdown]
# K-composition alone would point to another head. Rows are the heads of the first layer, columns
# those of the second: head `0.0` has more of it with `1.1` than `0.3` has, and without `0.0` all
# letters were still predicted.

# %%
composition_scores(model).k[0, :, 1].round(decimals=3)
