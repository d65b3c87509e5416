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
# # Look inside a language model
#
# SmolLM2-135M-Instruct from its GGUF file: which heads finish a sentence about two people, how it continues what it has
# seen, where an answer appears, where attention rests, and how to steer it. The weights stay as they are in the file.
# `make models` installs the file; `glassformer.load` also takes your own GGUF file or a directory of Hugging Face.

# %%
import torch

import glassformer
from glassformer.figures.attention_maps import compare_heads
from glassformer.labs.wording import at_least
from glassformer.observe.capture import capture
from glassformer.observe.detectors import head_scores, repeated_tokens
from glassformer.observe.edits import add, forbid, put, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.sweep import ablation_sweep

torch.set_grad_enabled(False)
lm = glassformer.load("smollm2")
model = lm.model


def best(tokens, count=4):
    shares, found = model(tokens)[0, -1].softmax(-1).topk(count)
    return ", ".join(
        f"{word!r} {share:.1%}"
        for word, share in zip(lm.strings(found), shares.tolist(), strict=True)
    )


print(lm)
print(
    lm.generate([{"role": "user", "content": "What is the capital of France?"}], max_new_tokens=20)
)

# %% [markdown]
# ## Two people, and which of them is meant
#
# Two names, one of which returns: the sentence ends with the other one, the indirect object. The heads below read a
# name from the last token.

# %%
text = "When Mary and John went to the store, John gave a drink to"
tokens = lm.tokens(text)
mary = lm.token(" Mary")
john = lm.token(" John")
print(best(tokens))
with capture(model, queries=-1) as seen:
    model(tokens)
rows = torch.stack([weights[0, :, 0] for weights in seen.weights.values()])  # layer, head, key
words = lm.strings(tokens[0])
for key in (1, 9):
    order = rows[..., key].flatten().argsort(descending=True)[:5].tolist()
    reads = ", ".join(f"{at // 9}.{at % 9} {rows[at // 9, at % 9, key]:.2f}" for at in order)
    print(f"{words[key]!r} at {key} is read by {reads}")

# %% [markdown]
# What each head adds directly to the logit of the one name over the other, and what its removal
# does. Removal by zeros takes away what a head gives in *every* text; the mean over texts with a
# third name takes away what it knows of *this* one. Heads of layer 1 matter only to the first.

# %%
template = "When {} and {} went to the store, {} gave a drink to"
pairs = {("Mary", "John"): "Emma", ("Tom", "James"): "Peter"}
texts = [(a, b, pair, third) for pair, third in pairs.items() for a, b in (pair, pair[::-1])]
clean = torch.cat([lm.tokens(template.format(a, b, pair[1])) for a, b, pair, _ in texts])
others = torch.cat([lm.tokens(template.format(a, b, third)) for a, b, _, third in texts])
objects, subjects = torch.tensor(
    [[lm.token(f" {name}") for name in pair] for _, _, pair, _ in texts]
).T


def difference(logits):
    copies = logits[:, -1].unflatten(0, (-1, len(texts)))
    return (
        copies.gather(2, objects.expand(len(copies), -1)[..., None])
        - copies.gather(2, subjects.expand(len(copies), -1)[..., None])
    ).flatten()


swept = ablation_sweep(model, clean, difference)
parts = direct_logits(model, clean, objects, subjects)
with capture(model, what="heads") as seen:
    model(others)
means = [values.mean(0, keepdim=True) for values in seen.last("heads").values()]
print(
    f"{len(texts)} texts, mean difference of the logits {swept.clean:.2f}\n\n"
    "head   zero   mean  direct"
)
for at in swept.effects.flatten().abs().argsort(descending=True)[:10].tolist():
    layer, head = divmod(at, 9)
    with intervene(model, put("heads", means[layer][:, [head]], layers=layer, heads=head)):
        by_mean = difference(model(clean)).mean().item() - swept.clean
    direct = parts.values[parts.names.index(f"layer {layer} head {head}")].mean().item()
    print(f"{layer:>2}.{head}  {swept.effects[layer, head]:+.2f}  {by_mean:+.2f}  {direct:+.2f}")

# %% [markdown]
# The head with the largest effect reads the name that returned and writes *against* it: without it
# " John" becomes likelier and " Mary" a little less likely. Then the last token may not see the
# first name, not the name that returned, or neither of the two.

# %%
with intervene(model, zero("heads", layers=23, heads=3)):
    print("without 23.3:", best(tokens))
hidden_keys = {"the first name": [1], "the name that returned": [9], "either of the two": [1, 9]}
for names, keys in hidden_keys.items():
    with intervene(model, forbid(queries=-1, keys=keys)):
        print(f"the last token may not see {names}:", best(tokens))

with capture(model, queries=slice(9, 14)) as seen:
    model(tokens)
maps = seen.weights["layers.23.attention"][0]
compare_heads(maps[3].numpy(), maps[0].numpy(), words, words[9:], names=("head 23.3", "head 23.0"))

# %% [markdown]
# ## It continues what it has seen
#
# On random tokens that are repeated, some heads attend to the token before, others to the one that followed the last
# time. Without either kind the repetition helps much less.

# %%
repeated = repeated_tokens(49152, 50, 8, seed=0)
scores = head_scores(model, repeated)


def loss_of_halves(*edits):
    with intervene(model, *edits):
        logits = model(repeated)
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].mT, repeated[:, 1:], reduction="none")
    return (
        f"{losses[:, :49].mean():.2f} in the first half, {losses[:, 50:].mean():.2f} in the second"
    )


print("all heads:", loss_of_halves())
for kind in ("induction", "previous"):
    top = scores.top(kind, 5)
    without = [zero("heads", layers=layer, heads=head) for layer, head, _ in top]
    print(
        f"without {', '.join(f'{layer}.{head}' for layer, head, _ in top)} ({kind}): "
        f"{loss_of_halves(*without)}"
    )

# %% [markdown]
# ## Where the answer appears
#
# The rank and the probability of " Paris" if the residual stream after each layer were the last one.

# %%
tokens = lm.tokens("The capital of France is")
lens = logit_lens(model, tokens, queries=-1)[:, 0, 0]
paris = lm.token(" Paris")
for layer in range(24, 31):
    rank = int((lens[layer] > lens[layer, paris]).sum())
    print(f"after {layer} layers: rank {rank}, {lens[layer].softmax(-1)[paris]:.2%}")

# %% [markdown]
# ## Where attention rests
#
# A large weight is not a large effect. Six texts that begin with different words: the share of the attention of later
# tokens that the first one receives; how large its residual stream and its value vectors are, compared with the median
# of later tokens; and the smallest cosine between its value vectors in two of the texts.

# %%
first_words = [
    "The baker",
    "She",
    "Our neighbour",
    "After three days the baker",
    "Every morning a boy",
    "My brother",
]
rest = " opened the window, looked down the empty street and went back to the oven. It was early, and still dark."
shares = []
stream_sizes = []
value_sizes = []
first_values = []
for words in first_words:
    with capture(model, what=("weights", "residual", "v")) as seen:
        model(lm.tokens(words + rest))
    # Axes: layer, token, the values of all heads.
    values = seen.stack("v")[:, 0].transpose(1, 2).flatten(2)
    shares.append(torch.stack([weights[0, :, 1:, 0].mean() for weights in seen.weights.values()]))
    for sizes, vectors in ((stream_sizes, seen.stack("residual")[:, 0]), (value_sizes, values)):
        norms = vectors.norm(dim=-1)
        sizes.append(norms[:, 0] / norms[:, 1:].median(dim=1).values)
    first_values.append(values[:, 0])
shares, stream_sizes, value_sizes = (
    torch.stack(rows).mean(0) for rows in (shares, stream_sizes, value_sizes)
)
# Axes: layer, text, width.
units = torch.nn.functional.normalize(torch.stack(first_values, dim=1), dim=-1)
cosines = (units @ units.mT).amin(dim=(1, 2))
print("layer  attention  stream  value  smallest cosine")
for layer in (0, 5, 11, 15, 20, 25, 29):
    row = (
        f"{layer:>5} {shares[layer]:>10.0%} {stream_sizes[layer]:>7.1f} {value_sizes[layer]:>6.2f}"
    )
    print(row, f"{at_least(float(cosines[layer]), 3):>16}")

# %% [markdown]
# In the four late layers of the table the first token receives more than half of the attention. Its
# stream is several times as large as the median or more, and yet its value vectors are smaller than
# the median and point nearly the same way in all six texts: what is read there says little about
# the text. Such a head is often said to be at rest; what it would do without the first token was
# not measured here.


# %% [markdown]
# ## Steer it
#
# The difference between the means of two groups of sentences, added to the residual stream of one layer while the model
# answers.

# %%
good = [
    "I had a wonderful day.",
    "Everything went right today.",
    "The sun was shining and I felt happy.",
    "I am so grateful.",
]
bad = [
    "I had a terrible day.",
    "Everything went wrong today.",
    "It was raining and I felt sad.",
    "I am so angry.",
]


def mean_of(texts, layer):
    with capture(model, what="residual", layers=layer, queries=-1) as seen:
        for text in texts:
            model(lm.tokens(text))
    return torch.cat([record.values[:, 0] for record in seen.records]).mean(0)


direction = mean_of(good, 18) - mean_of(bad, 18)
question = [{"role": "user", "content": "How was your day?"}]
for strength in (-1.5, 0, 1.5):
    with intervene(model, add("residual", strength * direction, layers=18)):
        print(f"{strength:+}: {lm.generate(question, max_new_tokens=30)!r}")
