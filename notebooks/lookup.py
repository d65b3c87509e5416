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
# # Lookup: what can an encoder without positions bind?
#
# An encoder-decoder looks facts up. Its encoder is given no positions, so that to it a context is a *set* of tokens:
# the course uses this to show that cross-attention finds things by what they are, and not by where they stand. This
# notebook builds and trains the model, tries all contexts in all orders, looks at the attention, and then asks what
# such a set leaves out.
#
# The whole experiment, with more seeds and up to 1,024 facts, is one command: `glassformer lab lookup`.

# %%
# %matplotlib inline
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")

import numpy as np
import torch
from torch.utils.data import DataLoader

from glassformer.data.in_context_lookup import bag_ceiling, encode, reordered, sample
from glassformer.data.lookup import all_contexts, lookup_batch
from glassformer.labs.lookup import (
    BATCH_SIZE,
    D_FF,
    D_MODEL,
    ID_TO_TOKEN,
    LEARNING_RATE,
    MAX_SEQ_LEN,
    NUM_HEADS,
    NUM_LAYERS,
    VOCAB,
    VOCAB_SIZE,
    CrossAttentionLookupModel,
    LookupDataset,
    collate_fn,
    generate_synthetic_data,
    greedy_decode,
    plot_cross_attention,
    train_model,
)
from glassformer.labs.lookup.course import build_course_model, share_right, side_by_side, written_logits
from glassformer.labs.lookup.in_context import answers, build_model, train_in_context
from glassformer.labs.lookup.plan import shortened
from glassformer.labs.lookup.recipes import BAG, SLOTS
from glassformer.observe.capture import capture
from glassformer.observe.figures.style import BLACK, in_style, line, new_figure
from glassformer.observe.scrambling import scrambling_test

torch.manual_seed(0)
np.random.seed(0)  # noqa: NPY002 - the course's generator
print("torch", torch.__version__)

# %% [markdown]
# ## The facts
#
# Three facts, fixed for ever: RED is BLUE, ALICE is GREEN, CHAIR is RED. A context tells one of them in five tokens:
# `NAME`, and then `COLOR`, the key, `ITEM` and the value in any order. The answer is the value, and `[EOS]`.

# %%
data = generate_synthetic_data(5000)


def words(tokens: torch.Tensor) -> str:
    """The words of a row of tokens."""
    return " ".join(ID_TO_TOKEN[token] for token in tokens.tolist())


for shown in data[:4]:
    print(f"{words(shown['enc_input']):32} -> {words(shown['dec_target'])}")

# %% [markdown]
# There is no query: the context holds one fact alone. And there is little to generalise to. Three facts in 24 orders
# are 72 contexts, and of the 500 held-out examples practically every one was also trained on:

# %%
train, val, test = data[:4000], data[4000:4500], data[4500:]
seen = {tuple(example["enc_input"].tolist()) for example in train}
print(f"different contexts: {len(all_contexts())}, of which {len(seen)} are in the training examples")
print(
    "test examples seen in training:", sum(tuple(example["enc_input"].tolist()) in seen for example in test), "of 500"
)

# %% [markdown]
# So held-out accuracy says little here. What *can* be done is to list all 72 contexts and try each, and to put each
# into all 120 orders of its five tokens. That is done below.
#
# ## The model
#
# The encoder embeds the tokens and adds nothing that would tell where they stand. The decoder has positions, masked
# self-attention, and cross-attention to what the encoder made.

# %%
model = CrossAttentionLookupModel(VOCAB_SIZE, D_MODEL, NUM_HEADS, NUM_LAYERS, D_FF, MAX_SEQ_LEN)
print(f"{sum(weight.numel() for weight in model.parameters()):,} numbers")


def loader(examples: list, shuffle: bool = False) -> DataLoader:
    """Batches as the course makes them."""
    return DataLoader(LookupDataset(examples), batch_size=BATCH_SIZE, shuffle=shuffle, collate_fn=collate_fn)


enc_input, dec_input, dec_target, src_padding_mask, tgt_padding_mask = next(iter(loader(train)))
logits = model(enc_input, dec_input, src_padding_mask, tgt_padding_mask)
print("logits:", list(logits.shape), " [batch, target position, vocabulary]")

# %% [markdown]
# Attention sums over keys, and a sum does not mind the order of its terms. So the invariance needs no training. The
# untrained model already has it, to rounding:

# %%
model.eval()
order = torch.randperm(enc_input.shape[1])
with torch.no_grad():
    change = (model(enc_input[:, order], dec_input) - model(enc_input, dec_input)).abs().max()
print("order", order.tolist(), "changes a logit by at most", f"{change:.1e}")

# %% [markdown]
# ## Training
#
# The course's settings: Adam at 1e-4, batches of 32, and at most 50 epochs, of which five are enough to see it all.
# The weights with the lowest validation loss are kept.

# %%
untrained = build_course_model(0).eval()
model.network.load_state_dict(untrained.state_dict())
history = train_model(model, loader(train, shuffle=True), loader(val), num_epochs=5, learning_rate=LEARNING_RATE)

# %% [markdown]
# Every validation example is right from the first epoch on. Now all contexts there are, and the five tokens scrambled:

# %%
network = model.network
print(f"all {len(all_contexts())} contexts: {share_right(network, all_contexts()):.1%} right\n")
print(*side_by_side(network, all_contexts()[::25], seed=3), sep="\n")

# %% [markdown]
# The same for each context in all orders, `NAME` included. The test looks at the logits and not only at the tokens,
# for a model can be right about every order and still treat them differently:

# %%
contexts = lookup_batch(all_contexts()).source
print(scrambling_test(lambda source: written_logits(network, source), contexts))

# %% [markdown]
# The control: the same network, weight for weight, with positions added in its encoder. Here the test has to fail, or
# else it shows nothing.

# %%
control = build_course_model(0, source_positions="sinusoidal").eval()
control.load_state_dict(network.state_dict())
print(scrambling_test(lambda source: written_logits(control, source), contexts[:6]))

# %% [markdown]
# ## Where the decoder looks
#
# A hook records the cross-attention while the model reads a context. Each row of a panel is a step of the decoder,
# each column a token of the context.

# %%
example = lookup_batch(all_contexts()[30:31])
for name, watched in (("before training", untrained), ("after training", network)):
    with capture(watched, ["decoder_layers.0.cross_attention"]) as watching, torch.no_grad():
        watched(example.source, example.inputs)
    print(name)
    plot_cross_attention(watching.weights["decoder_layers.0.cross_attention"][0], example.source[0], example.inputs[0])

# %% [markdown]
# After training, heads look hard at single tokens when the value is to be written (the row of `[SOS]`). Which tokens
# *determine* the answer? Facts are fixed, so the key names the value, and the value names itself: either would do. The
# exception is RED, the value of one fact and the key of another, which alone does not tell the two apart. The weight
# of each head on the fact's two tokens, averaged over all contexts, and on those that stand in no other fact:

# %%
batch = lookup_batch(all_contexts())
keys = torch.tensor([VOCAB[context.key] for context in all_contexts()])[:, None]
values = torch.tensor([VOCAB[context.value] for context in all_contexts()])[:, None]
fact = (batch.source == keys) | (batch.source == values)
alone = fact & (batch.source != VOCAB["RED"])
for name, watched in (("before", untrained), ("after", network)):
    with capture(watched, ["decoder_layers.0.cross_attention"]) as watching, torch.no_grad():
        watched(batch.source, batch.inputs)
    at_start = watching.weights["decoder_layers.0.cross_attention"][:, :, 0]
    for label, chosen in (("key or value", fact), ("in one fact alone", alone)):
        shares = (at_start * chosen[:, None]).sum(-1).mean(0)
        print(f"{name:7}{label:18}", *(f"head {head + 1}: {share:.3f}  " for head, share in enumerate(shares)))

# %% [markdown]
# The sharpest head puts nearly all its weight on a token that names the fact by itself, and avoids RED. Other heads
# look elsewhere as well; whether the answer needs what they read there, these weights do not tell.
#
# Decoding is greedy, and stops at `[EOS]`:

# %%
context = torch.tensor([[VOCAB[word] for word in ("NAME", "CHAIR", "RED", "COLOR", "ITEM")]])
print(words(context[0]), "->", words(greedy_decode(model, context, 5)[0]))

# %% [markdown]
# ## Does it look anything up?
#
# It has learned which of three sets it was shown. Real lookup has facts that are fresh in every context, and a
# question: keys and values are drawn anew for each example, and the decoder is asked for one key.
#
# To an encoder without positions, written as separate tokens, such a context is a bag: all keys, all values. Every
# assignment of the values to the keys gives the same bag, and each is equally likely. So for n different values the
# best possible answer is right with probability 1/n, *for any model and any amount of training*. Counted by simulation,
# for a reader who always answers with one of the values in the bag:

# %%
bags = shortened(BAG)
rng = np.random.default_rng(0)
for num_facts in (1, 2, 4, 8):
    facts = sample(bags.data, 20_000, seed=1, split="all", num_facts=num_facts)
    guess = facts.values[torch.arange(20_000), torch.from_numpy(rng.integers(num_facts, size=20_000))]
    lucky = float((guess == facts.answer).double().mean())
    print(
        f"{num_facts} facts: a guess is right in {lucky:.3f}, derived ceiling {bag_ceiling(bags.data, num_facts):.3f}"
    )

# %% [markdown]
# The remedy without positions is to bind before the set is made: a *slot* embeds a key and its value together, as the
# sum of a row from a table of keys and one from a table of values. A set of slots still knows which value is whose.
#
# Both are trained on 1 to 8 facts, for a short while on a small vocabulary. Slots are measured on pairings of key and
# value that training never showed.

# %%
slots = shortened(SLOTS)
trained = {recipe.encoding: train_in_context(recipe, seed=0)[0] for recipe in (slots, bags)}
counts = (1, 2, 4, 8, 16)
reached: dict[str, list[float]] = {"slots": [], "bag": []}
for recipe, split in ((slots, "unseen"), (bags, "all")):
    for num_facts in counts:
        facts = sample(recipe.data, 2000, seed=99, split=split, num_facts=num_facts)
        right = answers(trained[recipe.encoding], facts, recipe) == facts.answer
        reached[recipe.encoding].append(float(right.double().mean()))


@in_style
def draw_reached():
    """Accuracy of the two encodings over the number of facts, with the bag's ceiling."""
    figure, (axes,) = new_figure(7.5, 3.8)
    axes.axvspan(1, 8, color="#dddddd", linewidth=0, label="trained on")
    ceiling = [bag_ceiling(bags.data, num_facts) for num_facts in counts]
    axes.plot(counts, ceiling, color=BLACK, linewidth=3.5, alpha=0.35, label="best possible for a bag")
    for series, (name, shares) in enumerate(reached.items()):
        axes.plot(counts, shares, label=name, **{**line(series, len(counts)), "markevery": None})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set(title="Answers from fresh facts", xlabel="facts in the context", ylabel="share right", ylim=(0, 1.04))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


draw_reached()

# %%
for name, shares in reached.items():
    print(f"{name:6}", *(f"{count:3} facts: {share:.3f}  " for count, share in zip(counts, shares, strict=True)))
facts = sample(slots.data, 1000, seed=7, split="unseen", num_facts=8)
moved = reordered(facts, seed=1)
again = [answers(trained["slots"], each, slots) for each in (facts, moved)]
print("slots in another order: answers changed", int((again[0] != again[1]).sum()), "of 1000")

# %% [markdown]
# And where does the slots' model look? At the slot that holds the asked key:

# %%
source = encode(facts, "slots")
for name, watched in (("before", build_model(slots, seed=0).eval()), ("after", trained["slots"])):
    with capture(watched, ["decoder_layers.0.cross_attention"]) as watching, torch.no_grad():
        watched(source.tokens, facts.query[:, None], source.real)
    weights = watching.weights["decoder_layers.0.cross_attention"][:, :, 0]
    right = weights[torch.arange(len(facts)), :, facts.place].mean(0)
    print(f"{name:7}", *(f"head {head + 1}: {share:.3f}  " for head, share in enumerate(right)))

# %% [markdown]
# ## The answer
#
# - An encoder without positions reads a **set**. What the set of tokens tells, it can use: with the course's fixed
#   facts the set names the fact, and the model answers every context in every order, with logits that do not change.
# - What lies in the **order** alone, it cannot have. With fresh facts in separate tokens, which value belongs to which
#   key is such a thing: accuracy ends at 1/n, and the trained model lies on that line.
# - What makes **one position** is bound. With key and value in one slot the model looks fresh facts up, on pairings it
#   has never seen and for more facts than it was trained on, and the order of the slots still means nothing.
