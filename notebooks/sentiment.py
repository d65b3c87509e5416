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
# # Sentiment: build a transformer and train it to judge reviews
#
# **Aims.** After this lesson you can
#
# - turn texts into rows of ids, and say what padding may and may not do;
# - write attention, several heads, the residual path and normalisation, and join them to a classifier;
# - train it, and recognise an accuracy that means nothing;
# - draw attention, and say what its weights do not show.
#
# **What you should know.** Python classes; matrix products; softmax and cross-entropy; how PyTorch computes a gradient.
#
# **How it works.** You write thirteen short answers, each in place of the line `raise NotImplementedError()`. After
# each, `check(...)` runs your code on small and on larger inputs and compares it with the library `glassformer`: values,
# and gradients too where an answer has any (the line that it prints says which). If something differs, it shows the
# smallest of these inputs that fails; `check.case` then holds it.
# Dropout is off, except in cases with `dropout` 1, which drops everything. Before a number is shown, **Predict** asks
# for your guess. Write it down first.
#
# **Differences from the course's document.** This lesson follows a university assignment, called *the course's
# document* here. You do not need it. Its twenty sentences are not copied: section 5.2 has twenty of ours in the same
# form. Padding is left out of attention and of the mean; section 5.4 measures what happens otherwise. Training uses
# AdamW with the weight decay that the course gives for Adam.
#
# ## Setup

# %% tags=["setup"]
# %matplotlib inline
import math
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from glassformer.course import lesson
from glassformer.data.tokenizer import split_words

check = lesson("sentiment")
torch.manual_seed(42)
# One thread: faster for networks this small, and the same numbers in every run on one machine.
torch.set_num_threads(1)

# %% tags=["hide-input"] jupyter={"source_hidden": true}
from functools import partial

from IPython.display import Markdown, display
from sklearn.model_selection import train_test_split

import glassformer
from glassformer.data.examples import CLASSES, split_by_text
from glassformer.data.sentiment import leaky_examples, reviews
from glassformer.errors import InputError
from glassformer.figures.attention_maps import attention_grid, attention_map
from glassformer.labs.sentiment.course_training import analyze_complexity, overtakes
from glassformer.labs.sentiment.experiments.recipes import COURSE_TFIDF
from glassformer.labs.sentiment.figures import (
    draw_recurrent_and_parallel,
    draw_timeline,
    draw_training_curves,
)
from glassformer.labs.sentiment.model_diagram import architecture
from glassformer.labs.sentiment.model_diagram import block as block_diagram
from glassformer.labs.sentiment.tfidf import TfidfClassifier
from glassformer.labs.wording import below
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.observe.cost import count_operations
from glassformer.training.classification import wilson


def count(*modules: nn.Module) -> int:
    """Trained parameters."""
    return sum(weight.numel() for module in modules for weight in module.parameters())


def interval(right: int, of: int) -> str:
    """A share with its 95 % interval (Wilson 1927)."""
    low, high = wilson(right / of, of)
    return f"{right / of:.0%} [{low:.0%}, {high:.0%}] of {of}"


# %% [markdown]
# # Part 1: What attention changes
#
# ## 1.1 Attention by hand
#
# Each position has a **key** (what it can be found by) and a **value** (what it passes on); a **query** says what is
# looked for. The better a query and a key fit, the more of the value is taken.
#
# Three words of a review: *dull*, *but*, *superb*. A fourth position asks, with the query $q = (2, 2, 0, 0)$. The
# words' keys are $k_1 = (0, 0, 1, 1)$, $k_2 = (1, 0, 0, 5)$, $k_3 = (1, 1, 3, 0)$; their values are the numbers
# $-1$, $0$ and $+1$.
#
# 1. Products $q \cdot k_j$: $0$, $2$, $4$.
# 2. Divided by $\sqrt{4} = 2$: $0$, $1$, $2$. These are the scores.
# 3. Softmax: $1/s$, $e/s$, $e^2/s$ with $s = 1 + e + e^2$, about eleven. So *superb* gets about two thirds.
# 4. The weighted mean of the values: $(e^2 - 1) / s$, a little more than one half. The query reads praise.
# 5. With *superb* masked, its score is $-\infty$ and $s = 1 + e$. The mean is $-1 / (1 + e)$: blame.

# %%
query = torch.tensor([2.0, 2, 0, 0])
keys = torch.tensor([[0.0, 0, 1, 1], [1, 0, 0, 5], [1, 1, 3, 0]])
values = torch.tensor([-1.0, 0, 1])
scores = keys @ query / math.sqrt(4)
allowed = torch.tensor([True, True, False])
masked = scores.masked_fill(~allowed, -math.inf)
for name, each in (("all words", scores), ("without superb", masked)):
    weights = each.softmax(-1)
    print(
        f"{name:>14}: weights",
        *(f"{weight:.3f}" for weight in weights),
        f"-> {weights @ values:+.3f}",
    )
e = math.e
print(f"by hand: {(e**2 - 1) / (1 + e + e**2):+.3f} and {-1 / (1 + e):+.3f}")

# %% [markdown]
# ## 1.2 Two ways to read a text
#
# A recurrent network reads word by word: what the first word says reaches the last one through every state between. In
# attention, each position reads every other one directly, and all positions are computed at once.

# %%
draw_recurrent_and_parallel()

# %% [markdown]
# The figure is a drawing; the next cell measures how strongly an input affects the last position. The gradient of an
# output with respect to an input says by how much the output changes if each coordinate of the input changes a little;
# its norm, the length of this vector, is the size of the effect. The cell prints the norm for an input some positions
# back, divided by that for the input one position back, in untrained networks of width 64. The transformer block is
# PyTorch's: attention as above, where all words are query, key and value in turn, and what Part 4 adds to it.
#
# **Predict** how this number changes from 1 to 63 positions back, for a recurrent network and for a transformer block.

# %%
torch.manual_seed(0)
networks = {name: getattr(nn, name)(64, 64, batch_first=True) for name in ("RNN", "GRU", "LSTM")}
networks["transformer block"] = nn.TransformerEncoderLayer(
    64, 8, 256, dropout=0.0, batch_first=True
)
distances = (1, 4, 16, 63)
print(f"{'positions back':>18}", *(f"{distance:>8}" for distance in distances))
for name, network in networks.items():
    x = torch.randn(16, 64, 64, requires_grad=True)
    found = network(x)
    # A random direction: the sum over the coordinates is constant behind a normalisation.
    last = (found[0] if isinstance(found, tuple) else found)[:, -1]
    (last * torch.randn_like(last)).sum().backward()
    norms = x.grad.norm(dim=-1).mean(dim=0)
    print(f"{name:>18}", *(f"{norms[-1 - distance] / norms[-2]:8.0e}" for distance in distances))

# %% [markdown]
# In the recurrent networks the influence decreases exponentially, in the block it hardly depends on the distance. This
# is before training. It does not show that a recurrent network cannot learn to use a distant word: the gates of a GRU
# or an LSTM can learn to keep a state.
#
# ## 1.3 The whole model
#
# What you will build, from top to bottom: embeddings, positions, two blocks, a mean over the tokens (`<CLS>` among
# them), and a linear classifier. Sizes and parameter counts are read from the library's encoder of the same sizes.

# %%
sizes = {
    "d_model": 64,
    "num_heads": 8,
    "num_layers": 2,
    "d_ff": 256,
    "max_length": 32,
    "num_classes": 2,
}
reference = Encoder(EncoderConfig(500, 2, 64, 256, 8, 32, num_classes=2, activation="relu"))
architecture(reference)

# %% [markdown]
# # Part 2: From text to vectors
#
# ## 2.1 Tokens
#
# `split_words` is given. It lower-cases a text and splits it into words and punctuation marks.

# %%
print(list(split_words("A superb film! I didn't sleep.")))

# %% [markdown]
# ### Exercise: the vocabulary
#
# Give each frequent word an id. Ids 0, 1 and 2 are special: `<PAD>` fills rows, `<UNK>` stands for an unknown word,
# `<CLS>` begins a text. The other ids go to the most frequent words of all texts, most frequent first, until the
# vocabulary has `size` entries. Words of equal frequency stand in alphabetical order, so that the result does not
# depend on the order of the texts.
#
# <details><summary>Hint 1</summary>
#
# A `Counter` can be updated with the words of one text after another. Three of the `size` places are taken.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `sorted(counts, key=lambda word: (-counts[word], word))[: size - 3]` are the words in their order; ids start at 3.
#
# </details>

# %% nbgrader={"grade": false, "grade_id": "vocabulary", "locked": false, "schema_version": 3, "solution": true}
PAD = 0
UNK = 1
CLS = 2


def build_vocabulary(texts: list[str], size: int) -> dict[str, int]:
    """The id of each token, special ones included: at most ``size`` entries."""
    vocabulary = {"<PAD>": PAD, "<UNK>": UNK, "<CLS>": CLS}
    ### BEGIN SOLUTION
    counts = Counter()
    for text in texts:
        counts.update(split_words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    for word in ranked[: size - 3]:
        vocabulary[word] = len(vocabulary)
    return vocabulary
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "vocabulary-check", "locked": true, "points": 1, "schema_version": 3, "solution": false}
check("vocabulary", build_vocabulary)

# %% [markdown]
# ### Exercise: encode a text
#
# A row of exactly `max_length` ids: `<CLS>`, the ids of the words, and padding. A word outside the vocabulary is
# `<UNK>`; words that do not fit are cut off.
#
# <details><summary>Hint 1</summary>
#
# Three steps: ids of the words, cut, fill up. `vocabulary.get(word, UNK)` is the id of a word.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With `ids = [CLS, ...][:max_length]`, the row is `ids + [PAD] * (max_length - len(ids))`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "encode", "locked": false, "schema_version": 3, "solution": true}
def encode(text: str, vocabulary: dict[str, int], max_length: int) -> list[int]:
    """``max_length`` ids."""
    ### BEGIN SOLUTION
    ids = [CLS] + [vocabulary.get(word, UNK) for word in split_words(text)]
    ids = ids[:max_length]
    return ids + [PAD] * (max_length - len(ids))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "encode-check", "locked": true, "points": 1, "schema_version": 3, "solution": false}
check("encode", encode)

# %% [markdown]
# The way back, and a test. Some words of the test text are in none of the texts.


# %%
def decode(ids: list[int], vocabulary: dict[str, int]) -> str:
    """The words of the ids, without padding and ``<CLS>``."""
    words = {index: word for word, index in vocabulary.items()}
    return " ".join(words[index] for index in ids if index not in (PAD, CLS))


samples = [
    "A lovely film! It's warm and funny.",
    "This book is dreadful. I disliked it.",
    "Slow and empty talk.",
]
vocabulary = build_vocabulary(samples, 100)
row = encode("A lovely, clever zeppelin!", vocabulary, 10)
print(f"{len(vocabulary)} entries; the most frequent words: {list(vocabulary)[3:8]}")
print(row, "=", decode(row, vocabulary))

# %% [markdown]
# ## 2.2 Why position matters
#
# Attention compares words and does not know where they are. So a vector that depends on the position is added to each
# word. Coordinates $2i$ and $2i + 1$ of position $p$ are a sine and a cosine of wavelength
# $2 \pi \cdot 10000^{2i/d}$:
#
# $$t_{p, 2i} = \sin\left(p / 10000^{2i/d}\right), \qquad t_{p, 2i+1} = \cos\left(p / 10000^{2i/d}\right)$$
#
# ### Exercise: sinusoidal positions
#
# <details><summary>Hint 1</summary>
#
# Compute the angles $p / 10000^{2i/d}$ as a matrix `[position, d_model / 2]` first. Sines belong into the even columns,
# cosines into the odd ones.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `angles = position[:, None] / 10000 ** (even / d_model)` with `even = torch.arange(0, d_model, 2)`; then
# `table[:, 0::2] = angles.sin()`, and the cosines likewise.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "positions", "locked": false, "schema_version": 3, "solution": true}
def sinusoidal_positions(max_length: int, d_model: int) -> torch.Tensor:
    """The table of positions 0, 1, ..., ``[max_length, d_model]``, in float32; ``d_model`` is even."""
    ### BEGIN SOLUTION
    position = torch.arange(max_length).double()
    even = torch.arange(0, d_model, 2)
    angles = position[:, None] / 10000 ** (even / d_model)
    table = torch.zeros(max_length, d_model)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()
    return table
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "positions-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("positions", sinusoidal_positions)

# %%
table = sinusoidal_positions(50, 64)
figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
drawn = axes.pcolormesh(table.T, cmap="cividis")
axes.set(xlabel="place in the text", ylabel="coordinate", title="What is added at each place")
figure.colorbar(drawn, ax=axes)
plt.show()
products = table @ table.T
print("Products of two rows 5 places apart:", *(f"{products[p, p + 5]:.4f}" for p in (0, 20, 40)))

# %% [markdown]
# The product of two rows depends on their distance alone, since $\sin a \sin b + \cos a \cos b = \cos(a - b)$. So
# relative places are available to attention.
#
# ## 2.3 The embedding layer
#
# ### Exercise: embeddings
#
# A token is a row of a learned table, multiplied by $\sqrt{d_{model}}$. The positions of a text of `n` tokens are the
# first `n` rows of their table. Their sum goes through dropout.
#
# <details><summary>Hint 1</summary>
#
# The table of positions holds more rows than the text has tokens. Which of them are needed?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `self.embedding(ids) * math.sqrt(self.d_model)` is the first part; `x + self.pe[: x.shape[1]]` is the sum.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "embeddings", "locked": false, "schema_version": 3, "solution": true}
class TokenEmbedding(nn.Module):
    """``sqrt(d_model) * table[id]``."""

    def __init__(self, vocab_size: int, d_model: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.d_model = d_model
        # So that tokens are about as large as positions.
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        ### BEGIN SOLUTION
        return self.embedding(ids) * math.sqrt(self.d_model)
        ### END SOLUTION


class TransformerEmbeddings(nn.Module):
    """``dropout(token embeddings + positions)``."""

    def __init__(self, vocab_size: int, d_model: int, max_length: int = 512, dropout: float = 0.1):
        super().__init__()
        self.token_embedding = TokenEmbedding(vocab_size, d_model)
        self.register_buffer("pe", sinusoidal_positions(max_length, d_model))
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        ### BEGIN SOLUTION
        x = self.token_embedding(input_ids)
        return self.dropout(x + self.pe[: x.shape[1]])
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "embeddings-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("embeddings", TransformerEmbeddings)

# %%
torch.manual_seed(0)
layer = TransformerEmbeddings(vocab_size=100, d_model=64).eval()
# <CLS>, three words of which two are equal, <UNK>, padding.
input_ids = torch.tensor([[2, 10, 5, 10, 1, 0, 0]])
with torch.no_grad():
    alone = layer.token_embedding(input_ids)[0]
    placed = layer(input_ids)[0]
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained", sharey=True)
for ax, vectors, title in zip(
    axes, (alone, placed), ("tokens alone", "with positions added"), strict=True
):
    drawn = ax.pcolormesh(vectors[:5, :8].T, cmap="PuOr", vmin=-2.5, vmax=2.5)
    ax.set(title=title, xticks=[place + 0.5 for place in range(5)])
    ax.set_xticklabels(["<CLS>", "word a", "word b", "word a", "<UNK>"])
axes[0].set_ylabel("coordinate")
figure.colorbar(drawn, ax=axes)
plt.show()
for name, vectors in (("tokens alone", alone), ("with positions", placed)):
    print(
        f"distance between the equal words at places 1 and 3, {name}: "
        f"{(vectors[1] - vectors[3]).norm():.2f}"
    )

# %% [markdown]
# Word a has the same column twice on the left, and two different ones on the right.
#
# # Part 3: Attention
#
# ## 3.1 What a row says
#
# An invented example: random scores, and more on the word itself and on its neighbours. Row *i* shows how word *i*
# divides its attention, so each row sums to 1. Column *j* shows which words read word *j*.

# %%
words = ["The", "cat", "sat", "on", "the", "mat"]
invented = (
    np.random.default_rng(42).random((6, 6)) + 1.5 * np.eye(6) + np.eye(6, k=1) + np.eye(6, k=-1)
)
attention_map(
    np.exp(invented) / np.exp(invented).sum(axis=1, keepdims=True), words, title="Invented weights"
)

# %% [markdown]
# ## 3.2 Scaled dot-product attention
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)V$$
#
# ### Exercise: attention
#
# What section 1.1 did by hand, for every query at once. `mask` is True where a query may attend to a key, and each
# query has at least one such key. Return the output and the weights. Axes before the last two are batches: leave them
# alone. If `dropout` is given, apply it to the weights before they multiply the values; return them as they were before
# it. (The check gives a known function in its place: the square.)
#
# <details><summary>Hint 1</summary>
#
# Scores are `[..., query, key]`. A row of them becomes a distribution over keys. What score has the weight 0?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])`, then `masked_fill(~mask, -math.inf)` if there is a mask, then
# `softmax(-1)`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "attention", "locked": false, "schema_version": 3, "solution": true}
def scaled_dot_product_attention(Q, K, V, mask=None, dropout=None):
    """The output ``[..., query, d_v]`` and the weights ``[..., query, key]``."""
    ### BEGIN SOLUTION
    scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    output = (weights if dropout is None else dropout(weights)) @ V
    return output, weights
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attention-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("attention", scaled_dot_product_attention)

# %% [markdown]
# Why $\sqrt{d_k}$? For independent queries and keys of variance 1, the division keeps the variance of a score at 1.
#
# **Predict** the largest of 200 weights for vectors of width 1024, with the division and without it.

# %%
torch.manual_seed(0)
for width in (4, 64, 1024):
    q, k = torch.randn(2, 1, 200, width)
    largest = scaled_dot_product_attention(q, k, k)[1].amax(-1).mean()
    without = scaled_dot_product_attention(q * math.sqrt(width), k, k)[1].amax(-1).mean()
    print(
        f"width {width:4}: mean of the largest weight {largest:.2f}, without the division "
        f"{without:.2f}"
    )
weights = scaled_dot_product_attention(q[:, :6, :8], k[:, :6, :8], k[:, :6, :8])[1][0]
print("sums of the rows:", weights.sum(-1).numpy())
attention_map(weights.numpy(), words, title="Weights of random queries and keys of width 8")

# %% [markdown]
# Without the division nearly all weight falls on one key where vectors are wide, and the gradient of such a softmax is
# nearly 0.
#
# ## 3.3 Several heads
#
# ### Exercise: multi-head attention
#
# Three linear layers, `W_q`, `W_k` and `W_v`, make a query, a key and a value of width `d_model` from the vector of
# each position. One softmax is one way of reading. Several heads read in several ways: queries, keys and values are cut
# into `num_heads` pieces of width $d_k$, each head attends with its own piece, and a fourth layer, `W_o`, mixes what
# they found. All four layers have a bias.
#
# <details><summary>Hint 1</summary>
#
# Attention works on the last two axes. So heads must become an axis before them: `[batch, head, position, d_k]`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `self.W_q(x).unflatten(-1, (self.num_heads, self.d_k)).transpose(1, 2)` cuts; `heads.transpose(1, 2).flatten(2)`
# joins again.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "multi-head", "locked": false, "schema_version": 3, "solution": true}
class MultiHeadAttention(nn.Module):
    """``W_o(concatenated heads)``, and the weights ``[batch, head, query, key]``."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1):
        super().__init__()
        assert d_model % num_heads == 0, "d_model must be a multiple of num_heads"
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        # Four linear layers from d_model to d_model: self.W_q, self.W_k, self.W_v and self.W_o.
        ### BEGIN SOLUTION
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        ### END SOLUTION
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        ### BEGIN SOLUTION
        Q, K, V = (
            part(x).unflatten(-1, (self.num_heads, self.d_k)).transpose(1, 2)
            for part in (self.W_q, self.W_k, self.W_v)
        )
        heads, weights = scaled_dot_product_attention(Q, K, V, mask, self.dropout)
        return self.W_o(heads.transpose(1, 2).flatten(2)), weights
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "multi-head-check", "locked": true, "points": 3, "schema_version": 3, "solution": false}
check("multi-head", MultiHeadAttention)

# %% [markdown]
# **Predict** how many more parameters eight heads of width 8 have than one head of width 64.

# %%
torch.manual_seed(0)
eight = MultiHeadAttention(64, 8).eval()
one = MultiHeadAttention(64, 1)
print(f"8 heads: {count(eight):,} parameters; 1 head: {count(one):,}")
with torch.no_grad():
    output, weights = eight(torch.randn(2, 10, 64))
print("output", list(output.shape), "weights", list(weights.shape))
panel_names = [f"Head {head + 1}" for head in range(8)]
attention_grid(
    weights[0].reshape(2, 4, 10, 10).numpy(),
    title="Untrained, random input",
    panel_names=panel_names,
)

# %% [markdown]
# None: the same matrices are only cut in other places. The heads differ only because their random weights do.
# Section 5.5 shows those of a trained model.
#
# # Part 4: The block
#
# ## 4.1 Layer normalisation
#
# ### Exercise: layer normalisation
#
# Each position is shifted and scaled to mean 0 and standard deviation 1, whatever the others are; `gamma` and `beta`
# are learned. Use the standard deviation with $n - 1$ and add `eps` to it, as the course's document does.
#
# <details><summary>Hint 1</summary>
#
# Mean and deviation are over the last axis, one of each for every position. Keep that axis, so that they broadcast.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x.mean(-1, keepdim=True)` and `x.std(-1, keepdim=True)`; then `gamma * (x - mean) / (std + eps) + beta`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "layer-norm", "locked": false, "schema_version": 3, "solution": true}
class LayerNorm(nn.Module):
    """Normalises every position on its own."""

    def __init__(self, features: int, eps: float = 1e-6):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        ### BEGIN SOLUTION
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.gamma * (x - mean) / (std + self.eps) + self.beta
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "layer-norm-check", "locked": true, "points": 1, "schema_version": 3, "solution": false}
check("layer-norm", LayerNorm)

# %% [markdown]
# PyTorch's LayerNorm divides by the deviation with $n$ and adds `1e-5` to the variance, not to the deviation.
#
# **Predict** for which inputs the two differ most.

# %%
torch.manual_seed(0)
ours = LayerNorm(64)
theirs = nn.LayerNorm(64)
x = torch.randn(2, 10, 64) * 5 + 10
with torch.no_grad():
    normalised = {"input": x, "the course's": ours(x), "PyTorch's": theirs(x)}
    figure, axes = plt.subplots(1, 3, figsize=(11, 2.8), layout="constrained")
    for ax, (name, numbers), colour in zip(
        axes, normalised.items(), ("grey", "tab:blue", "tab:orange"), strict=True
    ):
        ax.hist(numbers.flatten(), bins=40, color=colour)
        mean = round(float(numbers.mean()), 2) + 0.0
        ax.set_title(f"{name}\nmean {mean:.2f}, deviation {numbers.std():.4f}")
    plt.show()
    ratio = (normalised["the course's"] / normalised["PyTorch's"]).median()
    print(f"ratio {ratio:.5f}; sqrt(63 / 64) = {math.sqrt(63 / 64):.5f}")
    unit = torch.randn(64)
    unit = (unit - unit.mean()) / unit.std()
    for deviation in (1.0, 1e-2, 1e-3, 1e-4):
        of_ours, of_theirs = (
            norm(deviation * unit).square().mean().sqrt() for norm in (ours, theirs)
        )
        print(
            f"deviation {deviation:.0e}: size of the output {of_ours:.3f} (course), "
            f"{of_theirs:.3f} (PyTorch)"
        )

# %% [markdown]
# At ordinary sizes they differ by a constant factor, for which `gamma` can compensate. Where a position hardly varies,
# `eps` decides. The block below uses PyTorch's, as published models do.
#
# ## 4.2 Feed-forward network
#
# ### Exercise: feed-forward
#
# Two linear layers with a ReLU between them, the same for every position: wider by `d_ff / d_model`, then back. Dropout
# stands between the ReLU and the second layer.
#
# <details><summary>Hint 1</summary>
#
# `nn.Linear` works on the last axis. Nothing here needs to know about positions.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `self.linear2(self.dropout(F.relu(self.linear1(x))))`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "feed-forward", "locked": false, "schema_version": 3, "solution": true}
class FeedForward(nn.Module):
    """``linear2(dropout(relu(linear1(x))))``."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        # Two layers: self.linear1 and self.linear2.
        ### BEGIN SOLUTION
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        ### END SOLUTION
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        ### BEGIN SOLUTION
        wide = F.relu(self.linear1(x))
        return self.linear2(self.dropout(wide))
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "feed-forward-check", "locked": true, "points": 1, "schema_version": 3, "solution": false}
check("feed-forward", FeedForward)

# %% [markdown]
# ## 4.3 The block: Add & Norm
#
# ### Exercise: the block
#
# Each part writes into a stream that passes it by. Attention's output, after dropout, is *added* to its input, and the
# sum is normalised; then the same with the feed-forward network. Return the output and attention's weights.
#
# <details><summary>Hint 1</summary>
#
# Twice: part, dropout, add, norm. The second time, what is added to is the output of the first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x = self.norm1(x + self.dropout(attended))`, and `self.norm2(x + self.dropout(self.feed_forward(x)))`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "block", "locked": false, "schema_version": 3, "solution": true}
class TransformerBlock(nn.Module):
    """``h = norm1(x + dropout(attention(x)))``, then ``norm2(h + dropout(feed_forward(h)))``."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        # The parts: self.attention, self.feed_forward, and two of PyTorch's LayerNorm, self.norm1 and self.norm2.
        ### BEGIN SOLUTION
        self.attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        ### END SOLUTION
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        ### BEGIN SOLUTION
        attended, weights = self.attention(x, mask)
        x = self.norm1(x + self.dropout(attended))
        changed = self.feed_forward(x)
        return self.norm2(x + self.dropout(changed)), weights
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "block-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("block", TransformerBlock)

# %%
torch.manual_seed(0)
first = TransformerBlock(64, 8, 256)
print(
    f"{count(first):,} parameters, {count(first.feed_forward) / count(first):.0%} of them in the "
    "feed-forward network"
)
block_diagram(reference)

# %% [markdown]
# **Predict** what twelve untrained blocks in a row do to twenty different positions, with the
# residual path and without it. The cell prints the mean cosine between two positions.

# %%
torch.manual_seed(0)
stack = [TransformerBlock(64, 8, 256).eval() for _ in range(12)]


@torch.no_grad()
def likeness(residual: bool) -> list[float]:
    """The mean cosine between two positions, after each block."""
    x = torch.randn(1, 20, 64, generator=torch.Generator().manual_seed(0))
    found = []
    for each in stack:
        if residual:
            x = each(x)[0]
        else:
            x = each.norm2(each.feed_forward(each.norm1(each.attention(x)[0])))
        cosines = F.cosine_similarity(x[0, :, None], x[0, None, :], dim=-1)
        found.append(float((cosines.sum() - 20) / (20 * 19)))
    return found


print("after block            1      4      8     12")
for residual in (True, False):
    cosine = likeness(residual)
    print(
        f"{'with' if residual else 'without':>7} residuals",
        *(f"{cosine[at]:6.2f}" for at in (0, 3, 7, 11)),
    )

# %% [markdown]
# Without the residual path all positions become nearly equal within a few blocks: attention averages over positions, and
# no path leads what is specific to a position around it.
#
# # Part 5: The classifier
#
# ## 5.1 From words to one verdict
#
# ### Exercise: pooling
#
# One vector for each text: the mean over its *real* positions. A text without any gets zeros.
#
# <details><summary>Hint 1</summary>
#
# A mean is a sum divided by a count. What is the count of a text, and which rows must not enter its sum?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `(x * real[..., None]).sum(1)` divided by `real.sum(1, keepdim=True).clamp(min=1)`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "pooling", "locked": false, "schema_version": 3, "solution": true}
def mean_over_real(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The mean ``[batch, width]`` of ``x`` ``[batch, position, width]`` where ``real`` is True."""
    ### BEGIN SOLUTION
    total = (x * real[..., None]).sum(1)
    return total / real.sum(1, keepdim=True).clamp(min=1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "pooling-check", "locked": true, "points": 1, "schema_version": 3, "solution": false}
check("pooling", mean_over_real)

# %% [markdown]
# ### Exercise: the classifier
#
# Embeddings, blocks, a last normalisation, pooling, dropout, a linear layer. No query may attend to padding. A mask of
# shape `[batch, 1, 1, key]` broadcasts over heads and queries. Return the logits and a list of each block's weights.
#
# <details><summary>Hint 1</summary>
#
# `real` is needed twice: for the mask that every block gets, and for pooling.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In a loop over `self.transformer_blocks`: `x, weights = block(x, real[:, None, None, :])`. Then
# `mean_over_real(self.ln_f(x), real)`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "classifier", "locked": false, "schema_version": 3, "solution": true}
class MiniTransformer(nn.Module):
    """Logits ``[batch, num_classes]``, and the weights of each block."""

    def __init__(
        self, vocab_size, d_model, num_heads, num_layers, d_ff, max_length, num_classes, dropout=0.1
    ):
        super().__init__()
        self.embeddings = TransformerEmbeddings(vocab_size, d_model, max_length, dropout)
        self.transformer_blocks = nn.ModuleList(
            TransformerBlock(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)
        )
        self.ln_f = nn.LayerNorm(d_model)
        self.classifier = nn.Linear(d_model, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids, attention_mask=None):
        # True where a token is real. With attention_mask, the caller says which tokens are.
        real = input_ids != PAD if attention_mask is None else attention_mask.bool()
        ### BEGIN SOLUTION
        x = self.embeddings(input_ids)
        attention_weights = []
        for block in self.transformer_blocks:
            x, weights = block(x, real[:, None, None, :])
            attention_weights.append(weights)
        pooled = mean_over_real(self.ln_f(x), real)
        return self.classifier(self.dropout(pooled)), attention_weights
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "classifier-check", "locked": true, "points": 3, "schema_version": 3, "solution": false}
check("classifier", MiniTransformer)

# %%
torch.manual_seed(0)
untrained = MiniTransformer(vocab_size=500, **sizes).eval()
parts = {"embeddings": untrained.embeddings, "blocks": untrained.transformer_blocks}
parts |= {"last norm": untrained.ln_f, "classifier": untrained.classifier}
for name, part in parts.items():
    print(f"{name:>10}: {count(part):7,} parameters, {count(part) / count(untrained):.1%}")

# %% [markdown]
# Section 2.2 said that attention does not know where words are. **Predict** how much the logits of
# two sentences differ that have the same words in another order: with positions, and with positions
# of 0.

# %%
pair = ["The cat sat on the mat", "The mat sat on the cat"]
rows = torch.tensor([encode(text, build_vocabulary(pair, 20), 8) for text in pair])
pe = untrained.embeddings.pe.clone()
for name, factor in (("with", 1.0), ("without", 0.0)):
    untrained.embeddings.pe.copy_(factor * pe)
    with torch.no_grad():
        logits, _ = untrained(rows)
    print(
        f"{name:>7} positions: largest difference of a logit "
        f"{(logits[0] - logits[1]).abs().max():.0e}"
    )

# %% [markdown]
# With positions of 0 the logits are equal but for rounding.
#
# ## 5.2 Data
#
# Twenty sentences in the form of the course's data, ten of praise and ten of blame, ten copies of each. A fifth is held
# out at random, as much praise as blame: the split is stratified, with the course's function and seed.

# %%
toy = leaky_examples()
print(
    f"{len(toy)} texts, {sum(each.label for each in toy)} positive; "
    f"{len({each.text for each in toy})} different ones:"
)
print("  ", toy[1].text, "/", toy[-1].text)
toy_train, toy_held_out = train_test_split(
    toy, test_size=0.2, random_state=42, stratify=[each.label for each in toy]
)
for name, part in (("train", toy_train), ("validate", toy_held_out)):
    print(f"{len(part)} to {name} on, {sum(each.label for each in part)} of them positive")

# %% [markdown]
# ## 5.3 Training
#
# ### Exercise: a training step
#
# One update on one batch: training mode, old gradients away, logits, cross-entropy, gradients, update. Return the loss
# as a number. The model returns a pair of which the logits come first.
#
# <details><summary>Hint 1</summary>
#
# PyTorch *adds* new gradients to old ones. `F.cross_entropy` takes logits: it contains the softmax.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `model.train()` and `optimizer.zero_grad()`, then `loss = F.cross_entropy(model(input_ids)[0], labels)`,
# `loss.backward()`, `optimizer.step()`, `loss.item()`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "training-step", "locked": false, "schema_version": 3, "solution": true}
def training_step(model, optimizer, input_ids: torch.Tensor, labels: torch.Tensor) -> float:
    """Update ``model`` once; the loss before the update."""
    ### BEGIN SOLUTION
    model.train()
    optimizer.zero_grad()
    logits, _ = model(input_ids)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    return loss.item()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "training-step-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("training-step", training_step)

# %% [markdown]
# The loop around it: ten epochs, batches of 16, learning rate `0.001`. `judge` measures loss and
# accuracy.


# %%
def tensors(examples, vocabulary: dict[str, int], max_length: int = 32):
    """Ids ``[text, position]`` and labels."""
    rows = [encode(each.text, vocabulary, max_length) for each in examples]
    return torch.tensor(rows), torch.tensor([each.label for each in examples])


@torch.no_grad()
def judge(model, ids, labels, **options) -> tuple[float, float]:
    """Mean loss in nats, and accuracy in percent."""
    logits, _ = model.eval()(ids, **options)
    accuracy = (logits.argmax(-1) == labels).double().mean().item()
    return F.cross_entropy(logits, labels).item(), 100 * accuracy


class SeesPadding(nn.Module):
    """The model of the course's document: padding is attended to, and is part of the mean."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids, torch.ones_like(input_ids))


def train_transformer(
    train, held_out, seed: int = 0, epochs: int = 10, around=None, max_length: int = 32
):
    """A trained model, its vocabulary, and loss and accuracy after each epoch.

    ``around`` wraps the model.
    """
    torch.manual_seed(seed)
    vocabulary = build_vocabulary([each.text for each in train], 500)
    model = MiniTransformer(len(vocabulary), **{**sizes, "max_length": max_length})
    model = around(model) if around else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    parts = {"train": tensors(train, vocabulary), "val": tensors(held_out, vocabulary)}
    history = {f"{part}_{kind}": [] for part in parts for kind in ("loss", "acc")}
    for _ in range(epochs):
        for batch in torch.randperm(len(train)).split(16):
            training_step(model, optimizer, *(part[batch] for part in parts["train"]))
        for part, (ids, labels) in parts.items():
            for kind, value in zip(("loss", "acc"), judge(model, ids, labels), strict=True):
                history[f"{part}_{kind}"].append(value)
    return model.eval(), vocabulary, history


model, vocabulary, history = train_transformer(toy_train, toy_held_out, seed=42)
for epoch in (0, 4, 9):
    print(
        f"epoch {epoch + 1:2}:",
        *(f"{name} {series[epoch]:.3f}" for name, series in history.items()),
    )

# %% [markdown]
# ## 5.4 What the curves are worth

# %%
draw_training_curves(history, "Twenty sentences, ten copies each, split at random")

# %% [markdown]
# The curves look perfect. But every held-out text is a copy of a training text.
#
# **Predict** the accuracy when the same sentences are split by text: four of the twenty, with all their copies, are new
# to the model.

# %%
found = []
for seed in range(10):
    by_text = split_by_text(toy, (0.8, 0.2), seed)
    found.append(train_transformer(*by_text, seed=seed)[2]["val_acc"][-1])
error = np.std(found, ddof=1) / math.sqrt(len(found))
print("by seed:", ", ".join(f"{accuracy:.0f} %" for accuracy in found))
print(f"mean {np.mean(found):.0f} %, standard error {error:.0f} points; guessing gives 50 %")

# %% [markdown]
# Four texts a split are few, so one split says nothing; the mean does. The perfect score was recognition of sentences.
#
# ### A split that measures generalisation
#
# The library has 240 short reviews whose words say the verdict ("plain"). A fifth is held out by text, and the
# vocabulary is made from the training texts alone.

# %%
plain = [each for each in reviews() if each.kind == "plain"]
train, held_out = split_by_text(plain, (0.8, 0.2), seed=0)
model, vocabulary, history = train_transformer(train, held_out)
seen = history["train_acc"][-1]
unseen = history["val_acc"][-1]
best = max(history["val_acc"])
print(
    f"at the end {seen:.1f} % of the training texts and {unseen:.1f} % of the new ones are right, "
    f"at best {best:.1f} %"
)
print(f"new texts: {interval(round(unseen * len(held_out) / 100), len(held_out))}")
print(f"a gap of {seen - unseen:.1f} points; the course's document speaks of overfitting above 10")
draw_training_curves(history, "Plain reviews, split by text")

# %% [markdown]
# So the model overfits, and is still clearly better than guessing.
#
# ### What padding does
#
# The course's document attends to padding and averages over it. **Predict** what happens to the verdict on a text when
# only its padding grows: for a model that sees padding, and for yours.

# %%
fits = [each for each in held_out if PAD in encode(each.text, vocabulary, 17)]
for name, around in (("seen", SeesPadding), ("left out", None)):
    padded, ids_of, _ = train_transformer(train, held_out, around=around, max_length=128)
    positive = []
    for length in (16, 32, 64, 128):
        with torch.no_grad():
            positive.append(padded(tensors(fits, ids_of, length)[0])[0].softmax(-1)[:, 1])
    moved = torch.stack(positive) - positive[0]
    flipped = ((positive[-1] > 0.5) != (positive[0] > 0.5)).sum()
    print(
        f"padding {name:>8}: a probability moves by up to {below(moved.abs().max().item())};",
        end=" ",
    )
    print(f"{flipped} of {len(fits)} verdicts differ between 16 and 128 tokens")

# %% [markdown]
# No error is raised in either case. With padding left out, nothing changes but by rounding.
#
# ## 5.5 Attention of the trained model


# %%
def read(text: str) -> tuple[list[str], torch.Tensor, list[torch.Tensor]]:
    """Tokens, probabilities and weights ``[head, query, key]`` of each block, without padding."""
    ids = [index for index in encode(text, vocabulary, 32) if index != PAD]
    with torch.no_grad():
        logits, weights = model(torch.tensor([ids]))
    names = {index: word for word, index in vocabulary.items()}
    return [names[index] for index in ids], logits[0].softmax(-1), [each[0] for each in weights]


sentences = [
    "I love this wonderful film.",
    "This book is dull and badly written.",
    "Superb cast, but a dull story.",
]
panel_names = [f"Layer {layer + 1}, head {head + 1}" for layer in range(2) for head in range(8)]
for text in sentences:
    tokens, probabilities, weights = read(text)
    grid = torch.cat(weights).reshape(4, 4, len(tokens), len(tokens)).numpy()
    title = f"{text}  {CLASSES[int(probabilities.argmax())]}, {probabilities.max():.1%}"
    display(attention_grid(grid, tokens, title=title, panel_names=panel_names))
    for layer, each in enumerate(weights, start=1):
        received = each.mean(1)  # [head, key]
        most, keys = received.max(1)
        readings = (f"{tokens[key]} {share:.0%}" for share, key in zip(most, keys, strict=True))
        print(f"layer {layer}, what each head reads most:", ", ".join(readings))

# %% [markdown]
# In layer 1 some heads read one word from nearly every position, and often one that judges; the heads of layer 2
# spread their weights. The third sentence praises and blames. Which word a head of layer 1 reads most, *superb*, *cast* or
# *dull*, differs between heads, and the maps do not say which of these words decides.
#
# ### Exercise: how much attention a word receives
#
# One number for each key: the mean of its weights over all heads and over all *real* queries. Padding queries have
# weights too; they mean nothing.
#
# <details><summary>Hint 1</summary>
#
# In `[batch, head, query, key]`, two axes go away. The last one stays. Which queries count differs between texts.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `weights.mean(1)` is `[batch, query, key]`. Over its queries you already have a mean: `mean_over_real`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "attention-received", "locked": false, "schema_version": 3, "solution": true}
def attention_received(weights: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """From ``[batch, head, query, key]`` to ``[batch, key]``; ``real`` is ``[batch, query]``."""
    ### BEGIN SOLUTION
    by_query = weights.mean(1)
    return mean_over_real(by_query, real)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attention-received-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("attention-received", attention_received)

# %% [markdown]
# # Part 6: Comparison, cost, use
#
# ## 6.1 A baseline that could win
#
# TF-IDF of the 500 most frequent words (of equally frequent ones the first in the alphabet) without English stop words,
# and a logistic regression, on the same split. Then all 160 other reviews of the library, whose verdict turns on a
# negation, a contrast or irony.
#
# **Predict** who wins on the plain reviews, and what either makes of a negation.

# %%
tfidf = TfidfClassifier(train, COURSE_TFIDF)
asked = [*held_out, *(each for each in reviews() if each.kind != "plain")]
ids, labels = tensors(asked, vocabulary)
with torch.no_grad():
    ours = model(ids)[0].argmax(-1)
verdicts = {
    "transformer": ours.tolist(),
    "TF-IDF": tfidf.probabilities([each.text for each in asked]).argmax(1),
}


def by_kind(verdicts: dict[str, list[int]]) -> None:
    """Print the accuracy of each judge on each kind of review."""
    for kind in dict.fromkeys(each.kind for each in asked):
        of = [at for at, each in enumerate(asked) if each.kind == kind]
        for name, verdict in verdicts.items():
            print(
                f"{kind:>9}, {name:>11}: "
                f"{interval(sum(verdict[at] == asked[at].label for at in of), len(of))}"
            )


by_kind(verdicts)
NEGATIONS = {
    "not",
    "n't",
    "never",
    "no",
    "none",
    "nobody",
    "nothing",
    "nowhere",
    "neither",
    "nor",
    "without",
    "cannot",
}
negated = sum(not NEGATIONS.isdisjoint(split_words(each.text)) for each in train)
print(f"{negated} of {len(train)} training texts contain one of {', '.join(sorted(NEGATIONS))}")
written = dict.fromkeys(sorted(NEGATIONS - {"n't"}), "")
written |= {f"{verb}n't": verb for verb in ("is", "was", "do", "does", "did", "would", "could")}
negative = tfidf.probabilities([f"{negation} superb" for negation in written])
positive = tfidf.probabilities([f"{rest} superb" for rest in written.values()])
unseen = int((negative == positive).all(axis=1).sum())
print(
    f"{unseen} of {len(written)} negations ({', '.join(written)}) leave the probabilities of "
    "TF-IDF unchanged"
)
print(
    f"{len(NEGATIONS & set(vocabulary))} of {len(NEGATIONS)} are in the transformer's vocabulary "
    f"of {len(vocabulary)}"
)
print(f"{count(model):,} parameters against {tfidf.num_parameters:,}")

# %% [markdown]
# On plain reviews the intervals overlap, and the word counts are far smaller: one would take them. On negation both are
# below chance. The word counts cannot see the negations that were tried: they are stop words, which are left out, or the
# word `n't`, which is in no training text and has no weight. To the transformer they are `<UNK>`, one unknown word like any
# other, since hardly a training text contains one. The accuracy on plain reviews shows none of this.
#
# ## 6.2 Cost
#
# The sizes of the course's section on cost: `d_model` 512, 8 heads, `d_ff` 2048. `analyze_complexity` counts as the
# course's document does, and what is executed; PyTorch's own counter checks the latter.
#
# **Predict** from which length on attention's two products take more operations than the feed-forward network.

# %%
lengths = [32, 128, 512, 1024, 2048]
results = [analyze_complexity(512, length, 8, 2048) for length in lengths]
big = Encoder(EncoderConfig(2, 1, 512, 2048, 8, 2048, dropout=0.0)).eval().layers[0]
print("one block, millions of operations")
print(
    f"{'tokens':>7}{'attention':>11}{'feed-forward':>14}{'total':>9}{'executed':>10}{'counted by torch':>18}"
)
for length, result in zip(lengths, results, strict=True):
    with torch.no_grad():
        counted = count_operations(partial(big, torch.zeros(1, length, 512)))
    assert counted == result["executed_total"]
    millions = [
        result[name] / 1e6 for name in ("attention", "feedforward", "total", "executed_total")
    ]
    print(
        "{:7,}{:11,.1f}{:14,.1f}{:9,.1f}{:10,.1f}{:18,.1f}".format(length, *millions, counted / 1e6)
    )
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
for name, key, mark in (("attention", "attention", "o"), ("feed-forward", "feedforward", "s")):
    left.loglog(lengths, [result[key] for result in results], marker=mark, label=name)
left.set(xlabel="tokens", ylabel="operations, the course's count", title="One text")
left.legend()
right.loglog(lengths, [8 * length**2 for length in lengths], marker="o", color="tab:green")
right.set(xlabel="tokens", ylabel="numbers", title="All weights of 8 heads")
plt.show()
for d_model, d_ff in ((512, 2048), (64, 256)):
    print(
        f"d_model {d_model}, d_ff {d_ff}: "
        f"attention takes more from {overtakes(d_model, d_ff):,} tokens on"
    )

# %% [markdown]
# The course's count omits the projections, counts one of two products in each part, and a multiplication with its
# addition once. The crossing is the same in both counts, one token more than `d_ff`. For a review of thirty tokens the
# quadratic part does not matter. The weights take quadratic memory only if they are kept: a fused kernel computes the
# output without storing them.
#
# ## 6.3 Applications

# %%
draw_timeline()

# %% [markdown]
# The largest published size grew more than a thousandfold from 2017 to 2021, and among these models not since. Of
# several well-known ones it was not published.
#
# - **Language:** translation, search, summaries, dialogue. Output can be fluent and wrong, and is weaker in languages
#   with little text.
# - **Code:** completion, repair, translation between languages. The result must be tested.
# - **Several media:** captions, questions about images, images from text. Synthetic images and voices pass as real.
# - **Science:** protein structures (AlphaFold), drug design, proofs. A prediction is a hypothesis until it is measured.
#
# One architecture serves all of them, so an improvement spreads to all, and so does a fault. Judge a model by its use:
# who decides with its output, what an error costs, and whether the decision can be contested. Section 6.1 has an
# example: right on most plain reviews, wrong on most negations, and the accuracy does not say so.
#
# ## 6.4 The course's questions
#
# 1. How does attention capture long-range dependencies better than an RNN?
# 2. Why several heads instead of one?
# 3. Where are the computational bottlenecks, and what can be done about them?
# 4. Transformers, CNNs and RNNs: when which?
# 5. What are the ethical concerns with large language models such as GPT-4?
# 6. Which developments are exciting, and which concerning?
# 7. What was hard to implement, and what surprised?
#
# Answer them yourself.

# %% [markdown] tags=["published"]
# These are the answers of the lab's published report, and so are the sections below. The report has
# the numbers of its own, larger runs.

# %% tags=["hide-input", "published"] jupyter={"source_hidden": true}
from glassformer.labs.sentiment.published import published

display(Markdown(published("The course's questions")))

# %% [markdown]
# # Summary
#
# You built every part of a transformer, and each agrees with an independent one. You trained it where a perfect score was
# a leak, and judged it on texts that were new. You saw what its heads read, and tested what its verdicts rest on.
#
# ## Key takeaways

# %% tags=["hide-input", "published"] jupyter={"source_hidden": true}
display(Markdown(published("Takeaways")))

# %% [markdown]
# ## From earlier models to transformers

# %% tags=["hide-input", "published"] jupyter={"source_hidden": true}
display(Markdown(published("From earlier models to transformers")))

# %% [markdown]
# ## Looking forward and reflection

# %% tags=["hide-input", "published"] jupyter={"source_hidden": true}
display(Markdown(published("Looking forward")))
display(Markdown(published("Reflection")))

# %% [markdown]
# # What to try next
#
# - Remove one head at a time: set its columns of `W_o` to 0. Is any head indispensable?
# - Train on the reviews of all kinds. Does the model learn negation from so few texts?
# - Replace the mean by the vector of `<CLS>`. Which part of the model does that change, and what must now carry more?
# - Normalise before each part instead of after it. Which of your checks notice?
# - Shuffle the words of the held-out texts. How many verdicts change?
# - `glassformer lab sentiment --data FILE` runs the lab on your own labelled texts.
#
# # On a real model
#
# SmolLM2 was trained to predict the next word, never on these reviews. Each text of section 6.1 is put before it with a
# question; its verdict is the more probable of the words *positive* and *negative*.
#
# **Predict** on which kinds of review it beats the model that you trained, and on which neither is better than a coin.

# %%
QUESTION = "Review: {}\nSentiment:"
try:
    lm = glassformer.load("smollm2")
except InputError as error:
    print(f"left out: {error}")
else:
    yes, no = (int(lm.tokens(word)[0, -1]) for word in (" positive", " negative"))
    prompts = [lm.tokens(QUESTION.format(each.text)) for each in asked]
    preferences = torch.zeros(len(asked))
    for length in {prompt.shape[1] for prompt in prompts}:  # texts of one length need no padding
        of = [at for at, prompt in enumerate(prompts) if prompt.shape[1] == length]
        with torch.no_grad():
            last = lm.model(torch.cat([prompts[at] for at in of]))[:, -1]
        preferences[of] = (last[:, yes] - last[:, no]).float()
    by_kind({"SmolLM2": (preferences > 0).long().tolist(), **verdicts})

# %% [markdown]
# SmolLM2 judges negations better than either of ours. On irony it is right less often than a coin:
# it goes by the words, which there say the opposite. Where the intervals of two judges do not
# overlap, the difference is clear. Where they do, count the texts that only one of the two gets
# right: both judged the same ones. (The numbers of SmolLM2 are printed only where it can be
# loaded.)
