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
# # A transformer that reads reviews
#
# Six parts: why attention, words as vectors, attention itself, a block, a small transformer that is trained to tell
# praise from blame, and what it costs beside simpler methods. Every claim stands next to a cell that could have shown
# the opposite. Some of them do.
#
# The whole experiment, with pretrained models and all seeds, is one command: `glassformer lab sentiment`.

# %%
# %matplotlib inline
import contextlib
import io
import math
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

warnings.filterwarnings("ignore", message="IProgress not found")

import torch
import torch.nn.functional as F
from IPython.display import Markdown, display
from torch.utils.data import DataLoader

from glassformer.data.examples import CLASSES, KINDS, Example, SentimentData, split_by_text
from glassformer.data.sentiment import reviews
from glassformer.labs.kept import read_part
from glassformer.labs.sentiment import (
    LayerNorm,
    MiniTransformer,
    MultiHeadAttention,
    PositionalEncoding,
    SentimentDataset,
    SimpleTokenizer,
    TokenEmbedding,
    TransformerBlock,
    analyze_complexity,
    scaled_dot_product_attention,
    train_transformer,
    visualize_attention,
)
from glassformer.labs.sentiment.answers import answers, from_earlier_models, looking_forward, reflection, takeaways
from glassformer.labs.sentiment.baselines import COURSE_TFIDF, TfidfClassifier
from glassformer.labs.sentiment.compare import accuracy_by_kind
from glassformer.labs.sentiment.growth import measure_growth
from glassformer.labs.sentiment.leak import COURSE_LENGTH, COURSE_MODEL, measure_leak, train_course
from glassformer.labs.sentiment.looks import look_at
from glassformer.labs.sentiment.norms import measure_norms
from glassformer.labs.sentiment.padding import measure_padding
from glassformer.labs.sentiment.pictures import (
    attention_example,
    embeddings_with_and_without_positions,
    norm_histograms,
    per_kind_bars,
    position_encoding,
    recurrent_and_parallel,
    training_curves,
    wilson,
)
from glassformer.labs.sentiment.reach import measure_reach
from glassformer.labs.sentiment.recipes import FROM_SCRATCH
from glassformer.labs.sentiment.results import Results
from glassformer.labs.sentiment.timeline import timeline
from glassformer.labs.sentiment.training_runs import Classifier, train_recipe
from glassformer.observe.complexity_measured import count_operations
from glassformer.observe.figures.coloured_words import attention_rows, coloured_text
from glassformer.observe.figures.complexity_curves import draw_complexity
from glassformer.observe.figures.diagrams import architecture, block

torch.manual_seed(0)
print("torch", torch.__version__)

# %% [markdown]
# ## Part 1: why attention
#
# How does the last word of a sentence learn of the first one? In a recurrence the news is handed on from state to
# state. With attention it takes one step, and all words take theirs at the same time.

# %%
recurrent_and_parallel(["The", "cat", "sat", "on", "the", "mat"])

# %% [markdown]
# A drawing proves nothing, so we measure: how strongly does an input that lies some words back move the last state?
# The numbers are gradients before any training, relative to that of one word back.

# %%
reach = measure_reach((0, 1, 4, 16, 63), lengths=())
print(f"{'words back':>20}", *(f"{distance:>9}" for distance in reach.distances[1:]))
for network in reach.influences:
    print(f"{network.name:>20}", *(f"{value:9.1e}" for value in network.relative[1:]))

# %% [markdown]
# In the recurrent networks, with torch's initial weights, the influence fades exponentially, gates or not; in the
# encoder the distance hardly matters. This says that a distant word *can* be used. Whether training does use it is
# another question.
#
# ### The whole model
#
# This is the model of the course, drawn from the object itself; sizes and counts are read off its weights.

# %%
sizes = {"vocab_size": 500, "max_length": COURSE_LENGTH, "num_classes": 2, **COURSE_MODEL}
untrained = MiniTransformer(**sizes).eval()
architecture(untrained.encoder)

# %% [markdown]
# ### Why positions
#
# Attention compares words and has no idea where they stand. Two sentences of the same words, in another order, go
# through the same blocks; at the end the mean over all words is taken, which is what the classifier sees.

# %%
pair = ["the cat sat on the mat", "the mat sat on the cat"]
small_words = SimpleTokenizer(20)
small_words.build_vocab(pair)


@torch.no_grad()
def pooled(text: str, positions: bool) -> torch.Tensor:
    """What the classifier sees of a text, with or without positions."""
    ids = torch.tensor([small_words.words.encode(text)])
    x = untrained.embeddings(ids) if positions else untrained.embeddings.token_embedding(ids)
    for layer in untrained.transformer_blocks:
        x, _ = layer(x)
    return untrained.ln_f(x).mean(dim=1)


for positions in (False, True):
    first, second = (pooled(text, positions) for text in pair)
    largest = (first - second).abs().max()
    print(f"{'with' if positions else 'without':>7} positions: the two differ by at most {largest:.1e}")

# %% [markdown]
# Without positions the difference is rounding: no training could teach that model who sat on whom.
#
# ## Part 2: words as vectors
#
# The texts: 240 short reviews whose verdict lies in their words, from the 400 that ship with the library. The other
# 160 turn on a negation, a contrast or irony; we keep them for later. A fifth is held out, so that no text stands on
# both sides. The vocabulary comes from the training texts alone.

# %%
plain = [example for example in reviews() if example.kind == "plain"]
others = [example for example in reviews() if example.kind != "plain"]
train, held_out = split_by_text(plain, (0.8, 0.2), seed=0)
print(f"{len(train)} to train on, {len(held_out)} held out, {len(others)} of other kinds")
for example in train[:2] + train[-2:]:
    print(f"  {CLASSES[example.label]}: {example.text}")

# %%
tokenizer = SimpleTokenizer(vocab_size=500)
tokenizer.build_vocab([example.text for example in train])
text = "The acting is wonderful, but the zeppelin is dull!"
ids = tokenizer.tokenize(text, max_length=14)
print("the most frequent words:", *list(tokenizer.vocab)[3:13])
print(ids)
print(" ".join(tokenizer.inverse_vocab[index] for index in ids))
print("decoded:", tokenizer.decode(ids))

# %% [markdown]
# Punctuation is cut off, so that `dull!` is still the word *dull*. Rare words become `<UNK>`, and so does what no
# training text had: *zeppelin* is lost for good, and here the `!` as well. `<PAD>` fills rows up and has to be kept out
# of everything that follows.
#
# Each id then becomes a row of a table, times the root of the width:

# %%
embedding = TokenEmbedding(vocab_size=500, d_model=64)
vectors = embedding(torch.tensor([ids]))
print("ids", [1, len(ids)], "to vectors", list(vectors.shape))
for name, layer in (("as torch makes the table", embedding), ("in the model", untrained.embeddings.token_embedding)):
    print(f"{name}: numbers of size {layer(torch.tensor([ids])).std():.2f}")
print(f"positions: numbers of size {PositionalEncoding(64).pe.square().mean().sqrt():.2f}")

# %% [markdown]
# With torch's own table (deviation 1) the factor 8 would make words much larger than positions. The model starts its
# table smaller, so that the two have about the same say.
#
# Positions are sines and cosines of falling speeds. On the right is why: the product of two of them depends on the
# distance alone, wherever one starts.

# %%
position_encoding()

# %% [markdown]
# Added up, the same word gets two vectors in two places:

# %%
embeddings_with_and_without_positions(untrained, tokenizer, "the story is boring but the cast is wonderful")

# %% [markdown]
# ## Part 3: attention
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)V$$
#
# Four lines of code. The function of the library gives the same, and so does torch's; it hands out the weights too.

# %%
Q, K, V = torch.randn(3, 2, 6, 64)
scores = Q @ K.transpose(-2, -1) / math.sqrt(64)
by_hand = scores.softmax(dim=-1) @ V
output, weights = scaled_dot_product_attention(Q, K, V)
torch.testing.assert_close(output, by_hand)
torch.testing.assert_close(output, F.scaled_dot_product_attention(Q, K, V))

real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
masked, masked_weights = scaled_dot_product_attention(Q, K, V, mask=real[:, None, :])
torch.testing.assert_close(masked, F.scaled_dot_product_attention(Q, K, V, attn_mask=real[:, None, :]))
print("the same by hand, by the course's function and by torch's, masked or not")
print(f"rows sum to {weights.sum(-1).min():.4f} at least and {weights.sum(-1).max():.4f} at most")
print("second text, its last two positions masked:", [round(weight, 3) for weight in masked_weights[1, 0].tolist()])

# %% [markdown]
# The $\sqrt{d_k}$ keeps scores of size 1, whatever the width. Without it a softmax of wide vectors has made up its mind
# before training begins, and such a softmax has hardly a gradient:

# %%
for width in (4, 64, 1024):
    q, k = torch.randn(2, 1, 200, width)
    products = q @ k.transpose(-2, -1)
    scaled, raw = (rows.softmax(-1).amax(-1).mean() for rows in (products / width**0.5, products))
    print(f"width {width:4}: largest of 200 weights {scaled:.2f}; without the root {raw:.2f}")

# %% [markdown]
# ### On a text
#
# The first head of the model, before training, on a sentence of its own vocabulary:

# %%
SENTENCE = "The acting is wonderful, but the story is dull."
sentence_ids = tokenizer.words.encode(SENTENCE)
words = tokenizer.words.pieces(sentence_ids)
with torch.no_grad():
    _, before = untrained(torch.tensor([sentence_ids]))
attention_example(words, before[0][0, 0].numpy(), "Before training, layer 1, head 1")

# %% [markdown]
# Some weights are large already. That is chance, drawn with the weights: nothing here knows a word yet. Whether
# training makes something of it, part 5 has to show.
#
# ### Several heads
#
# Eight heads of width 8 have as many weights as one of width 64, and each has a softmax of its own.

# %%
x = torch.randn(2, 10, 64)
for heads in (1, 8):
    attention = MultiHeadAttention(d_model=64, num_heads=heads).eval()
    mixed, weights = attention(x)
    numbers = sum(weight.numel() for weight in attention.parameters())
    print(f"{heads} x {attention.d_k:2}: {numbers:,} parameters, {list(mixed.shape)}, weights {list(weights.shape)}")

# %% [markdown]
# ## Part 4: a block
#
# ### Layer normalisation
#
# The course divides by the standard deviation with $n - 1$ under the root and adds $10^{-6}$ to it; torch takes $n$,
# and adds $10^{-5}$ to the variance. That looks like the same thing. Numbers with mean 10 and deviation 5 go through
# both:

# %%
norm_histograms(5 * torch.randn(2, 10, 64) + 10)

# %%
norms = measure_norms()
for each in norms.widths:
    if each.width in (8, 64, 512):
        print(f"width {each.width:3}: ratio {each.ratio:.5f}, predicted sqrt((n - 1) / n) = {each.predicted_ratio:.5f}")
for scale in norms.scales:
    if scale.deviation in (1e-2, 1e-4, 1e-6):
        both = f"the course's output has size {scale.course:.3f}, torch's {scale.torch:.3f}"
        print(f"inputs of deviation {scale.deviation:.0e}: {both}")
custom, official = LayerNorm(64), torch.nn.LayerNorm(64)
print("epsilons:", custom.eps, "and", official.eps)

# %% [markdown]
# So the two differ by a factor of 0.99216 at width 64, which the learned scale can undo, and by much more where inputs
# hardly vary, which it cannot. The block uses torch's.
#
# ### Feed-forward
#
# Attention mixes positions; this network then works on each alone. It is wide inside, so it has most of a block's
# weights:

# %%
transformer_block = TransformerBlock(d_model=64, num_heads=8, d_ff=256).eval()


def count(module: torch.nn.Module) -> int:
    """The number of trained numbers."""
    return sum(weight.numel() for weight in module.parameters())


for name, whole in (("block", transformer_block), ("model", untrained)):
    inside = [m for m in whole.modules() if isinstance(m, TransformerBlock)]
    share = sum(count(m.feed_forward) for m in inside) / count(whole)
    print(f"feed-forward: {share:.0%} of the {count(whole):,} parameters of the {name}")
print(f"the table of words: {count(untrained.embeddings) / count(untrained):.0%} of the model")

# %% [markdown]
# ### All of it, with two residual paths

# %%
block(untrained.encoder)

# %% [markdown]
# What the paths beside the boxes are for: twelve fresh blocks in a row, with them and without. How alike do the vectors
# of different positions become?

# %%
stack = [TransformerBlock(64, 8, 256).eval() for _ in range(12)]


@torch.no_grad()
def likeness(residual: bool) -> list[float]:
    """The mean cosine between two positions, after each block."""
    x, found = torch.randn(1, 20, 64, generator=torch.Generator().manual_seed(0)), []
    for layer in stack:
        x = layer(x)[0] if residual else layer.norm2(layer.feed_forward(layer.norm1(layer.attention(x)[0])))
        cosines = F.cosine_similarity(x[0, :, None], x[0, None, :], dim=-1)
        found.append(float((cosines.sum() - 20) / (20 * 19)))
    return found


print("after block      1      4      8     12")
for residual in (True, False):
    values = likeness(residual)
    print(f"{'with' if residual else 'without':>7} paths", *(f"{values[at]:6.2f}" for at in (0, 3, 7, 11)))

# %% [markdown]
# Without the paths every position soon says the same, for attention averages and nothing brings the differences back.
#
# ## Part 5: training
#
# The course's sizes and settings: width 64, two blocks of eight heads, ten epochs in batches of 16. What is new is the
# split: no held-out review has been seen.


# %%
def loader(examples: tuple[Example, ...], shuffle: bool) -> DataLoader:
    """Batches of 16 rows of 32 ids, with labels."""
    rows = SentimentDataset([each.text for each in examples], [each.label for each in examples], tokenizer, 32)
    return DataLoader(rows, batch_size=16, shuffle=shuffle)


torch.manual_seed(0)
model = MiniTransformer(**{**sizes, "vocab_size": len(tokenizer.vocab)})
begun = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()) as told:
    history = train_transformer(model, loader(train, True), loader(held_out, False), num_epochs=10, learning_rate=1e-3)
learning = time.perf_counter() - begun
print(*told.getvalue().splitlines()[::3], sep="\n")

# %%
training_curves(history, f"{len(plain)} plain reviews, split by text")

# %%
right = history["val_acc"][-1] / 100
low, high = wilson(right, len(held_out))
print(f"held out: {100 * right:.1f} %; with {len(held_out)} texts that means {100 * low:.0f} to {100 * high:.0f} %")

# %% [markdown]
# It learns the training texts by heart and gets most new ones right. From epoch 6 on the two halves of the picture
# disagree: the validation loss rises, and so does the accuracy. The model is right more often, and where it is wrong it
# is surer of it.
#
# ### The leak
#
# The course's toy set repeats twenty sentences ten times and then splits at random. The same code, the same settings,
# and two ways of splitting, three seeds each:

# %%
leak = measure_leak(seeds=(0, 1, 2))
print(f"{leak.num_examples} examples, {leak.num_texts} different texts")
for name, runs in (("at random", leak.leaky), ("by text", leak.clean)):
    seen = f"{runs[0].num_seen} of {runs[0].num_validated}"
    accuracies = ", ".join(f"{run.transformer:.0%}" for run in runs)
    print(f"split {name:>9}: {seen:>8} validated texts were trained on; accuracy {accuracies}")
training_curves(leak.leaky_history, "Split at random: a perfect curve")

# %%
training_curves(leak.clean_history, "Split by text: the same examples")

# %% [markdown]
# The first picture shows memory, and calls it validation. With four texts held out, each accuracy of the second kind
# is a number of quarters and worth little by itself. Together they are about what guessing gives.
#
# ### Padding
#
# The course fills every row up to 32 tokens, attends to the padding and takes it into the mean. It learns all the same.
# But then the verdict depends on how far a text was filled up. Each held-out text, alone and filled up:

# %%
padding = measure_padding(seeds=(0,), examples=plain)
for run in padding.runs:
    print(f"padding {run.way}:")
    for filled in run.filled:
        change = f"probability moves by up to {filled.largest_change:.1e}, {filled.flipped:.0%} of verdicts turn"
        print(f"  filled up to {filled.length:3}: {change}")

# %% [markdown]
# ### What it attends to
#
# Our sentence again, now after training. The function also prints the verdict.

# %%
visualize_attention(model, tokenizer, SENTENCE)

# %%
with torch.no_grad():
    _, after = model(torch.tensor([sentence_ids]))


def entropy(layers: list[torch.Tensor]) -> list[float]:
    """Of each layer's weights, the mean over heads and queries, in nats."""
    return [round(float(torch.special.entr(layer).sum(-1).mean()), 2) for layer in layers]


print(f"entropy of equal weights: {math.log(len(sentence_ids)):.2f} nats")
print("layers 1 and 2 before training:", entropy(before))
print("layers 1 and 2 after training: ", entropy(after))
rows = [words.index(word) for word in ("acting", "but", "story")]
attention_rows(words, after[-1][0].mean(dim=0).numpy(), rows, "Last layer, mean over heads: what three words attend to")

# %% [markdown]
# The weights have become a little choosier, and *dull* draws many looks. So does *acting*, though, which is no verdict
# at all. It is tempting to read reasons into such a picture. But weights show where a layer looks; to learn what a word
# *does*, take it away and see. For the same model and sentence:

# %%
mini = Classifier(model.encoder, tokenizer.words, CLASSES)
(look,) = look_at(mini, (SENTENCE,))
received = after[-1][0].mean(dim=(0, 1))[1:].tolist()
print(f"verdict: {CLASSES[look.label]}, {look.probability:.1%}")
print(f"{'':>10}  attention received   effect on the verdict")
for token, weight, effect in zip(look.tokens, received, look.effects, strict=True):
    print(f"{token:>10}{weight:20.2f}{effect:+24.3f}")

# %% [markdown]
# The two words get the same attention. One carries the whole verdict and the other nothing.
#
# ### What each word does
#
# A second classifier, trained with the lab's own recipe: one block, no positions, words hidden at random, smoothed
# labels. It is less sure of itself, so that single words show. Red: without this word its verdict would be less
# probable. Blue and underlined: more probable.

# %%
data = SentimentData(train, held_out, held_out)  # nothing is chosen here, so one part serves for both
with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()):
    trained = train_recipe(FROM_SCRATCH, data, Path(directory), seed=0)
knowing = sum("not" in example.text.lower().split() for example in train)
print(f"of the {len(train)} training texts, {knowing} has the word 'not'")
print(f"{trained.measured.num_parameters:,} parameters, {trained.measured.test_accuracy:.0%} of the held-out texts")
for look in look_at(trained.classifier, (SENTENCE, "Great acting but poor story.", "Not a bad film at all.")):
    title = f"{CLASSES[look.label]}, {look.probability:.0%}"
    display(coloured_text(look.tokens, look.effects, title, signed=True, label="effect on the verdict", largest=1.0))

# %% [markdown]
# *Not a bad film* is judged by *bad*. *Not* pulls the right way and too weakly, but then it was seen just once. So far
# this is a bag of words with a transformer around it. Now the 160 reviews that we kept, and a method that is a bag of
# words by design, without *not*, which is on its list of stop words:

# %%
begun = time.perf_counter()
counts = TfidfClassifier(train, COURSE_TFIDF)
counting = time.perf_counter() - begun
judges = {
    "course's model": lambda texts: mini.probabilities(texts).numpy(),
    "the lab's recipe": lambda texts: trained.classifier.probabilities(texts).numpy(),
    "TF-IDF": counts.probabilities,
}
asked = (*held_out, *others)
asked_texts = [example.text for example in asked]
how_many = {kind: sum(example.kind == kind for example in asked) for kind in KINDS}
per_kind_bars({name: accuracy_by_kind(judge(asked_texts), asked) for name, judge in judges.items()}, how_many)

# %% [markdown]
# On negations all three do clearly worse than a coin, as judges must who add up words; on contrast and irony none does
# better than one. Did they lack examples? With all four kinds in training:

# %%
all_train, all_held_out = split_by_text(reviews(), (0.8, 0.2), seed=0)
mixed_course = train_course(all_train, all_held_out, seed=0)
mixed_counts = TfidfClassifier(all_train, COURSE_TFIDF)
mixed_mini = Classifier(mixed_course.model.encoder, mixed_course.tokenizer.words, CLASSES)
print(f"{len(all_train)} texts to train on, {len(all_held_out)} held out")
all_texts = [example.text for example in all_held_out]
for name, probabilities in (
    ("course's model", mixed_mini.probabilities(all_texts).numpy()),
    ("TF-IDF", mixed_counts.probabilities(all_texts)),
):
    found = accuracy_by_kind(probabilities, all_held_out)
    print(f"{name:>14}:", ", ".join(f"{kind} {found[kind]:.0%}" for kind in KINDS))

# %% [markdown]
# A hundred more texts are no cure, and the course's model now gets fewer of the plain ones right. What about far more
# text? The best model of the published run was pretrained, then trained on thousands of sentences of SST-2; asked about
# the same 400 reviews it says:

# %%
results = read_part(Path("../docs/labs/sentiment/results.json"), Results)
best = results.median(results.asked.model)
print(f"{best.measured.name}:", ", ".join(f"{kind} {best.kinds[kind]:.0%}" for kind in KINDS))

# %% [markdown]
# That helps with contrast and, less, with negation. Irony it gets wrong more often than a coin: there the words say the
# opposite, and the better reader of words falls for it.
#
# ## Part 6: what it costs
#
# The course's comparison, on the plain reviews:

# %%
labels = [example.label for example in held_out]
texts = [example.text for example in held_out]
print(f"{'':24}{'held out':>9}{'parameters':>12}{'training':>10}")
for name, judge, parameters, seconds in (
    ("TF-IDF and regression", "TF-IDF", counts.num_parameters, counting),
    ("MiniTransformer", "course's model", count(model), learning),
):
    right = (judges[judge](texts).argmax(axis=1) == labels).mean()
    print(f"{name:24}{right:9.1%}{parameters:12,}{seconds:8.2f} s")

# %% [markdown]
# As many right, for hundreds of times the parameters and the time. Here one would take the counts.
#
# ### Operations
#
# The course counts $L^2 d$ for attention and $L\,d\,d_{ff}$ for the feed-forward network. Beside it the full count, and
# what torch's `FlopCounterMode` sees while one such block runs:

# %%
big = TransformerBlock(d_model=512, num_heads=8, d_ff=2048, dropout=0.0).eval().as_layer()
lines = [f"{'tokens':>7}{'course':>10}{'full count':>12}{'torch':>10}"]
for length in (32, 128, 512, 1024, 2048):
    costs = analyze_complexity(512, length, 8, 2048)
    with torch.no_grad():
        counted = count_operations(partial(big, torch.zeros(1, length, 512)))
    assert counted == costs["executed_total"]
    shares = (costs[f"executed_{part}"] / counted for part in ("attention", "projections", "feedforward"))
    numbers_of = (costs["total"], costs["executed_total"], counted)
    row = "{:10.3f}{:12.3f}{:10.3f}".format(*(number / 1e9 for number in numbers_of))
    lines.append(f"{length:7,}{row}   " + ", ".join(f"{share:.0%}" for share in shares))
print("10⁹ operations of a block; what scores and values, projections and feed-forward have of them")
print("\n".join(lines))

# %% [markdown]
# The full count agrees with torch's to the last operation. The course's is a sixth to a fifth of it: it leaves out
# the projections, half of the products, and the 2 for a multiplication with its addition. Its comparison of attention
# with feed-forward comes out right all the same.
#
# Does time follow the count? One block at growing lengths, on the fused kernel, with its weights held, and a decoder's
# block (whose feed-forward network has a gate, and so half as many operations again) with a window of 128:

# %%
growth = measure_growth((64, 128, 256, 512, 1024, 2048), rounds=3)
draw_complexity(growth.growths, overtakes=growth.overtakes)

# %% [markdown]
# The quadratic part overtakes the feed-forward network at 2,049 tokens, so for a review it is nothing. Memory is
# quadratic only where somebody keeps the weights. A window makes time linear, which pays once texts are much longer
# than it. Times are those of a small machine; look at the exponents rather than at the milliseconds.
#
# ### Since 2017
#
# The same block carries all of these; what grew is the number of parameters.

# %%
timeline()

# %% [markdown]
# ## The course's questions
#
# The answers lean on the published run of `glassformer lab sentiment`, whose report stands in `docs/labs/sentiment`.
# Their numbers are read from its results.

# %%
Markdown("\n\n".join(answers(results)))

# %% [markdown]
# ## Takeaways

# %%
Markdown(takeaways(results))

# %% [markdown]
# ## From earlier models to this one

# %%
Markdown("\n\n".join(from_earlier_models(results)))

# %% [markdown]
# ## Looking forward

# %%
Markdown(looking_forward(results))

# %% [markdown]
# ## Reflection

# %%
Markdown(reflection(results))
