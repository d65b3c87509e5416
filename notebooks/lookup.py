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
# # Lookup: cross-attention that finds a fact, in any order
#
# **Aims.** At the end you have written an encoder-decoder from its parts, trained it, and shown that the order of
# its input changes nothing. You can say why, and what such a model cannot look up.
#
# **What one should know.** Python, PyTorch's tensors and modules, what a softmax and a gradient are. Attention is
# explained here.
#
# **How it works.** Cells with an exercise ask for a few lines; the cell below runs `check`, which compares the
# answer with the library's form on many inputs and shows the smallest of them that fails. Dropout is off, except in
# cases with `dropout` 1, which drops everything. Hints are folded. **Predict** asks for a guess before the cell below it
# prints the number. Training takes a minute or two on one core, the rest seconds.
#
# **Where the original exercise contradicts itself.** Its vocabulary has the token `[EOS]`, but its data look up
# `VOCAB['EOS']`, which stops with a `KeyError`: here the token is `[EOS]`. It says that two distinct facts are selected for
# a context, and its code takes one, as here. It asks for a spike of attention *from the query token*, but its decoder
# gets no query: it starts with `[SOS]` (section 9).
#
# The experiment behind this lesson, with three seeds and with more encodings, is `glassformer lab lookup`.
#
# ## 1. Set-up
#
# The vocabulary, facts and sizes of the original exercise, which this lesson follows, and what later cells draw and
# measure with.

# %% tags=["setup"]
# %matplotlib inline
import copy
import math
from itertools import permutations

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import glassformer
from glassformer.course import lesson
from glassformer.course.exercises.lookup import draw_bag
from glassformer.data.in_context_lookup import bag_ceiling, reordered, sample
from glassformer.errors import InputError
from glassformer.labs.lookup import (
    BATCH_SIZE,
    D_FF,
    D_MODEL,
    FACT_PAIRS,
    ID_TO_TOKEN,
    LEARNING_RATE,
    MAX_SEQ_LEN,
    NUM_EPOCHS,
    NUM_HEADS,
    NUM_LAYERS,
    VOCAB,
    VOCAB_SIZE,
)
from glassformer.labs.lookup.experiments.recipes import BAG, SLOTS, shortened
from glassformer.labs.wording import below
from glassformer.training.classification import wilson
from glassformer.training.in_context_lookup import answers, train_in_context

# One thread: faster for networks this small, and the same numbers in every run on one machine.
torch.set_num_threads(1)
check = lesson("lookup")
KEYS, VALUES = draw_bag(check.seed)
PAD = VOCAB["[PAD]"]
SOS = VOCAB["[SOS]"]
EOS = VOCAB["[EOS]"]
torch.manual_seed(0)
np.random.seed(0)  # noqa: NPY002 - the original exercise's generator

# %%
print(f"d_model {D_MODEL}, {NUM_HEADS} heads, {NUM_LAYERS} layer on each side, d_ff {D_FF}")
print(
    f"batches of {BATCH_SIZE}, learning rate {LEARNING_RATE}, {NUM_EPOCHS} epochs, at most "
    f"{MAX_SEQ_LEN} tokens"
)
print(
    "facts:", ", ".join(f"{ID_TO_TOKEN[key]} is {ID_TO_TOKEN[value]}" for key, value in FACT_PAIRS)
)

# %% [markdown]
# ## 2. Data
#
# Three facts, the same in every context. A context states one of them in five tokens: `NAME`, then `COLOR`, the
# key, `ITEM` and the value in any order. The target is the value and `[EOS]`. There is no question: a context has one
# fact, and its value is asked for.


# %%
def generate_synthetic_data(num_samples):
    """Examples with a random fact each, its tokens in a random order."""
    data = []
    for _ in range(num_samples):
        key, value = FACT_PAIRS[np.random.randint(len(FACT_PAIRS))]  # noqa: NPY002
        fact = [VOCAB["COLOR"], key, VOCAB["ITEM"], value]
        np.random.shuffle(fact)  # noqa: NPY002
        enc_input = torch.tensor([VOCAB["NAME"], *fact])
        data.append(
            {
                "enc_input": enc_input,
                "dec_target": torch.tensor([value, EOS]),
                "query_val_id": value,
            }
        )
    return data


def words(tokens):
    """The words of a row of tokens."""
    return " ".join(ID_TO_TOKEN[token] for token in tokens.tolist())


data = generate_synthetic_data(5000)
for shown in data[:4]:
    print(f"{words(shown['enc_input']):32} -> {words(shown['dec_target'])}")

# %% [markdown]
# **Exercise: dataset.** The decoder predicts each token of the target from those before it. So it reads the target
# shifted right by one: `[SOS]` first, the last token left out. An item of the dataset is the encoder's input, the
# decoder's input and the target.
#
# <details><summary>Hint 1</summary>
#
# With the target `BLUE [EOS]` the decoder reads `[SOS] BLUE`: both have the same length.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.cat` joins `torch.tensor([SOS])` and `target[:-1]`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "dataset", "locked": false, "schema_version": 3, "solution": true}
class LookupDataset(Dataset):
    """Items (enc_input, dec_input, dec_target) of ``generate_synthetic_data``'s examples."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, idx):
        ### BEGIN SOLUTION
        example = self.examples[idx]
        target = example["dec_target"]
        dec_input = torch.cat([torch.tensor([SOS]), target[:-1]])
        return example["enc_input"], dec_input, target
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "dataset-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("dataset", LookupDataset)

# %% [markdown]
# **Exercise: collate.** Rows of a batch need one length: shorter ones are filled with `[PAD]` on the right. Two
# masks say where padding is, of the encoder's input and of the decoder's. In them **True means padding**.
#
# <details><summary>Hint 1</summary>
#
# `pad_sequence(rows, batch_first=True, padding_value=PAD)` fills a list of rows.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Pad the first, second and third parts of all items; a mask is then `enc_inputs == PAD`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "collate", "locked": false, "schema_version": 3, "solution": true}
def collate_fn(batch):
    """From items to enc_inputs, dec_inputs, dec_targets, src_padding_mask, tgt_padding_mask."""
    ### BEGIN SOLUTION
    enc_inputs, dec_inputs, dec_targets = (
        pad_sequence([item[part] for item in batch], batch_first=True, padding_value=PAD)
        for part in range(3)
    )
    return enc_inputs, dec_inputs, dec_targets, enc_inputs == PAD, dec_inputs == PAD
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "collate-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("collate", collate_fn)

# %% [markdown]
# **Predict** before you run the next cell: how many different contexts are there, and what share of
# the test examples repeats one from training?


# %%
def loader(examples, shuffle=False):
    """Batches of examples."""
    return DataLoader(
        LookupDataset(examples), batch_size=BATCH_SIZE, shuffle=shuffle, collate_fn=collate_fn
    )


train_data = data[:4000]
val_data = data[4000:4500]
test_data = data[4500:]
train_loader = loader(train_data, shuffle=True)
val_loader = loader(val_data)
test_loader = loader(test_data)
seen = {tuple(example["enc_input"].tolist()) for example in train_data}
repeated = sum(tuple(example["enc_input"].tolist()) in seen for example in test_data)
repeated /= len(test_data)
print(
    f"{len(train_data)} examples for training, {len(val_data)} for validation, {len(test_data)} "
    "for the test"
)
print(
    f"{len(FACT_PAIRS)} facts x {math.factorial(4)} orders = "
    f"{len(FACT_PAIRS) * math.factorial(4)} contexts"
)
print(
    f"in training: {len(seen)} different ones; "
    f"{repeated:.0%} of the test examples repeat one of them"
)

# %% [markdown]
# So test accuracy says little here. Section 8 tries all contexts in all orders instead.
#
# ## 3. Attention, by hand and in a cell
#
# A query is compared with every key; the better a key fits, the more of its value enters the result:
#
#     weights = softmax(q · k / sqrt(d_k)) over all keys        output = sum of weights · values
#
# **By hand.** Let `d_k = 4`, so that the root is 2. The query is `q = (2, 0, 0, 0)`, the keys are `k1 = (ln 3, 0,
# 0, 0)` and `k2 = (0, 5, 0, 0)`, the values `v1 = (4, 0)` and `v2 = (0, 8)`.
#
# 1. Products: `q · k1 = 2 ln 3`, `q · k2 = 0`. Divided by 2, the scores are `ln 3` and `0`.
# 2. Softmax: `exp(ln 3) = 3` and `exp(0) = 1`, so the weights are `3 / 4` and `1 / 4`.
# 3. Output: `3 / 4 · (4, 0) + 1 / 4 · (0, 8) = (3, 2)`.
#
# Without the root the first weight would be `9 / 10`: products grow with `d_k`, and a softmax of large scores is
# all or nothing. And if the two facts trade places, `k2, k1` and `v2, v1`, the sum has the same terms: the output
# stays `(3, 2)`. This is what the title means.
#
# **Exercise: attention.** Write it for tensors `[..., position, width]`. Where `mask` is False, a query must not
# see a key: its weight is 0. Inside the model **True means may be seen**, the opposite of the padding masks.
#
# <details><summary>Hint 1</summary>
#
# One matrix product gives all scores: `q @ k.transpose(-2, -1)`. The softmax is over keys, the last axis.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `scores.masked_fill(~mask, float("-inf"))` before the softmax makes a weight exactly 0.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "attention", "locked": false, "schema_version": 3, "solution": true}
def scaled_dot_product_attention(q, k, v, mask=None):
    """Attention of q [..., query, d_k] to k [..., key, d_k] with values v [..., key, d_v].

    ``mask`` is True where a query may see a key, and broadcasts to [..., query, key]. Returns the
    output [..., query, d_v] and the weights [..., query, key].
    """
    ### BEGIN SOLUTION
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    return weights @ v, weights
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attention-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("attention", scaled_dot_product_attention)

# %%
q = torch.tensor([[2.0, 0, 0, 0]])
k = torch.tensor([[math.log(3), 0, 0, 0], [0, 5, 0, 0]])
v = torch.tensor([[4.0, 0], [0, 8]])
for name, order in (("as above", [0, 1]), ("facts in the other order", [1, 0])):
    output, weights = scaled_dot_product_attention(q, k[order], v[order])
    print(f"{name}: weights {weights[0].numpy().round(4)}, output {output[0].numpy().round(4)}")
output, weights = scaled_dot_product_attention(q, k, v, torch.tensor([[False, True]]))
print(
    f"first key hidden: weights {weights[0].numpy().round(4)}, output {output[0].numpy().round(4)}"
)

# %% [markdown]
# **Exercise: heads.** Several heads look for different things at once. Three maps make queries, keys and values of
# width `d_model`; they are *split* into heads of width `d_model / num_heads`, each head *attends*, and the heads
# are *joined* side by side and mapped once more. Queries come from `x`, keys and values from `source`: the same
# tensor in self-attention, the encoder's output in cross-attention.
#
# <details><summary>Hint 1</summary>
#
# Split `[batch, position, d_model]` into `[batch, head, position, width]`; joining goes back the same way.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)` splits, `.transpose(1, 2).flatten(2)` joins.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "heads", "locked": false, "schema_version": 3, "solution": true}
class MultiHeadAttention(nn.Module):
    """Attention of several heads in ``forward(x, source, mask)``, from x to source."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x, source, mask=None):
        """The output [batch, query, d_model] and the weights [batch, head, query, key]."""
        ### BEGIN SOLUTION
        q = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k = self.key(source).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        v = self.value(source).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        heads, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.output(heads.transpose(1, 2).flatten(2)), weights
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "heads-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("heads", MultiHeadAttention)

# %% [markdown]
# **Exercise: feed_forward.** Two linear maps with a ReLU between them, the same at every position. Dropout is
# applied after the ReLU.
#
# <details><summary>Hint 1</summary>
#
# `self.up` widens to `d_ff`, `self.down` comes back.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.relu` of `self.up(x)`, then `self.dropout`, then `self.down`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "feed_forward", "locked": false, "schema_version": 3, "solution": true}
class PositionWiseFeedForward(nn.Module):
    """Linear, ReLU, dropout, linear."""

    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        ### BEGIN SOLUTION
        inside = torch.relu(self.up(x))
        return self.down(self.dropout(inside))
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "feed_forward-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("feed_forward", PositionWiseFeedForward)

# %% [markdown]
# ## 4. Layers: Add & Norm
#
# Each part of a layer *adds* to its input, and the sum is normalised: `norm(x + dropout(part(x)))`. The addition
# keeps what was there before; the norm keeps its size. An encoder layer has two parts, a decoder layer three.
#
# A layer gets its mask as `[batch, 1, 1, position]`. Scores have the shape `[batch, head, query, key]`; where the mask
# has a 1, PyTorch uses the same values for every head and every query. So each text has one row of truth values, which
# says which of its positions are real and may be seen as keys.
#
# **Exercise: encoder_layer.** Self-attention, Add & Norm, feed-forward, Add & Norm. No positions anywhere.
#
# <details><summary>Hint 1</summary>
#
# The attention returns two things; only the first is added.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The second line reads the first one's result: `x = self.ffn_norm(x + self.dropout(self.ffn(x)))`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "encoder_layer", "locked": false, "schema_version": 3, "solution": true}
class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each followed by Add & Norm."""

    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.ffn = PositionWiseFeedForward(d_model, d_ff, dropout)
        self.dropout = nn.Dropout(dropout)
        self.attention_norm = nn.LayerNorm(d_model)
        self.ffn_norm = nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        """``mask`` [batch, 1, 1, position] is True where a position is real."""
        ### BEGIN SOLUTION
        attended, _ = self.attention(x, x, mask)
        h = self.attention_norm(x + self.dropout(attended))
        return self.ffn_norm(h + self.dropout(self.ffn(h)))
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "encoder_layer-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("encoder_layer", EncoderLayer)

# %% [markdown]
# **Exercise: decoder_layer.** First *causal* self-attention: position `i` may see positions up to `i`, or it would
# read the token that it has to predict. Then cross-attention: queries from the decoder, keys and values from
# `memory`, the encoder's output, all of which but padding may be seen. Then feed-forward. Each is followed by Add &
# Norm.
#
# <details><summary>Hint 1</summary>
#
# `torch.ones(n, n, dtype=torch.bool).tril()` is True on and below the diagonal. A token is seen if it is real *and*
# not later.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Combine with `mask & causal` if there is a mask. The cross-attention is `self.cross_attention(h, memory,
# memory_mask)`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "decoder_layer", "locked": false, "schema_version": 3, "solution": true}
class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each followed by Add & Norm."""

    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads)
        self.cross_attention = MultiHeadAttention(d_model, num_heads)
        self.ffn = PositionWiseFeedForward(d_model, d_ff, dropout)
        self.self_attention_norm = nn.LayerNorm(d_model)
        self.cross_attention_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.ffn_norm = nn.LayerNorm(d_model)

    def forward(self, x, memory, mask=None, memory_mask=None):
        """Masks [batch, 1, 1, position] are True where a position of x, or of memory, is real."""
        ### BEGIN SOLUTION
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        seen = causal if mask is None else mask & causal
        attended, _ = self.self_attention(x, x, seen)
        h = self.self_attention_norm(x + self.dropout(attended))
        read, _ = self.cross_attention(h, memory, memory_mask)
        h = self.cross_attention_norm(h + self.dropout(read))
        return self.ffn_norm(h + self.dropout(self.ffn(h)))
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "decoder_layer-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("decoder_layer", DecoderLayer)

# %% [markdown]
# ## 5. Encoder without positions, decoder with them
#
# **Exercise: encoder.** Embed the tokens, times `sqrt(d_model)`, which brings the small initial weights to size 1; then
# dropout, then the layers. Nothing that depends on a token's position is added. `src_padding_mask` is True at padding;
# the layers want True at real tokens, in a shape that fits `[batch, head, query, key]`.
#
# <details><summary>Hint 1</summary>
#
# `d_model` is `self.embedding.embedding_dim`. A padding mask `[batch, key]` hides the same keys from every head and
# query.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `~src_padding_mask[:, None, None, :]` is that mask for the layers.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "encoder", "locked": false, "schema_version": 3, "solution": true}
class Encoder(nn.Module):
    """Embeddings without positions, then layers: the input is read as a set."""

    def __init__(self, vocab_size, d_model, num_heads, num_layers, d_ff, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.layers = nn.ModuleList(
            EncoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, enc_input, src_padding_mask):
        """One vector for each token."""
        ### BEGIN SOLUTION
        mask = ~src_padding_mask[:, None, None, :]
        x = self.dropout(self.embedding(enc_input) * self.embedding.embedding_dim**0.5)
        for layer in self.layers:
            x = layer(x, mask)
        return x
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "encoder-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("encoder", Encoder)

# %% [markdown]
# **Exercise: positions.** The decoder has to know which token is first. To the embedding at position `p` are added,
# for `i = 0, 1, ...`,
#
#     sin(p / 10000^(2 i / d_model)) in coordinate 2 i        cos(p / 10000^(2 i / d_model)) in coordinate 2 i + 1
#
# <details><summary>Hint 1</summary>
#
# Positions times frequencies, `[length, 1] * [d_model / 2]`, gives all angles. Sines and cosines alternate.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `table[:, 0::2]` are the even coordinates, `table[:, 1::2]` the odd ones.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "positions", "locked": false, "schema_version": 3, "solution": true}
def sinusoids(length, d_model):
    """The table [length, d_model], d_model even, in float32."""
    ### BEGIN SOLUTION
    frequencies = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    angles = torch.arange(length)[:, None] * frequencies
    table = torch.zeros(length, d_model)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()
    return table
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "positions-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("positions", sinusoids)

# %% [markdown]
# **Exercise: decoder.** As the encoder, with `self.positions` added to the scaled embeddings before dropout, and
# with two padding masks: its own, and the encoder's, for the cross-attention.
#
# <details><summary>Hint 1</summary>
#
# `self.positions` has `max_seq_len` rows; the input may have fewer.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x = self.dropout(scaled + self.positions[:length])`, then `layer(x, enc_output, mask, memory_mask)`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "decoder", "locked": false, "schema_version": 3, "solution": true}
class Decoder(nn.Module):
    """Embeddings with sinusoidal positions, then layers that read the encoder's output."""

    def __init__(self, vocab_size, d_model, num_heads, num_layers, d_ff, max_seq_len, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.register_buffer("positions", sinusoids(max_seq_len, d_model), persistent=False)
        self.layers = nn.ModuleList(
            DecoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, dec_input, enc_output, src_padding_mask, tgt_padding_mask):
        """One vector for each position of ``dec_input``."""
        ### BEGIN SOLUTION
        mask = ~tgt_padding_mask[:, None, None, :]
        memory_mask = ~src_padding_mask[:, None, None, :]
        x = self.embedding(dec_input) * self.embedding.embedding_dim**0.5
        x = self.dropout(x + self.positions[: dec_input.shape[1]])
        for layer in self.layers:
            x = layer(x, enc_output, mask, memory_mask)
        return x
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "decoder-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("decoder", Decoder)

# %% [markdown]
# **Exercise: model.** Encoder, decoder, and a projection to logits. A mask that is not given marks what equals
# `[PAD]`.
#
# <details><summary>Hint 1</summary>
#
# Make the missing masks first; both encoder and decoder need the source's.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `self.projection(self.decoder(dec_input, memory, src_padding_mask, tgt_padding_mask))`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "model", "locked": false, "schema_version": 3, "solution": true}
class CrossAttentionLookupModel(nn.Module):
    """From a context and the target so far to logits of the next token at every position."""

    def __init__(self, vocab_size, d_model, num_heads, num_layers, d_ff, max_seq_len, dropout=0.1):
        super().__init__()
        self.encoder = Encoder(vocab_size, d_model, num_heads, num_layers, d_ff, dropout)
        self.decoder = Decoder(
            vocab_size, d_model, num_heads, num_layers, d_ff, max_seq_len, dropout
        )
        self.projection = nn.Linear(d_model, vocab_size)

    def forward(self, enc_input, dec_input, src_padding_mask=None, tgt_padding_mask=None):
        """Logits [batch, target position, vocabulary]."""
        ### BEGIN SOLUTION
        if src_padding_mask is None:
            src_padding_mask = enc_input == PAD
        if tgt_padding_mask is None:
            tgt_padding_mask = dec_input == PAD
        memory = self.encoder(enc_input, src_padding_mask)
        return self.projection(self.decoder(dec_input, memory, src_padding_mask, tgt_padding_mask))
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "model-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("model", CrossAttentionLookupModel)

# %% [markdown]
# **Predict**: this model is not trained. Does another order of the encoder's input change its
# logits by exactly 0?

# %%
model = CrossAttentionLookupModel(
    VOCAB_SIZE, D_MODEL, NUM_HEADS, NUM_LAYERS, D_FF, MAX_SEQ_LEN
).eval()
untrained = copy.deepcopy(model)
enc_input, dec_input, *_ = next(iter(test_loader))
order = torch.randperm(enc_input.shape[1])
with torch.no_grad():
    logits = model(enc_input, dec_input)
    change = (model(enc_input[:, order], dec_input) - logits).abs().max()
print(
    f"{sum(weight.numel() for weight in model.parameters()):,} parameters, logits "
    f"{list(logits.shape)}"
)
print(
    f"the order {order.tolist()} changes a logit by at most {below(change.item())}; the largest "
    f"is {logits.abs().max():.1f}"
)

# %% [markdown]
# By rounding only: attention sums over keys, and a sum does not depend on the order of its terms. Training is not
# needed for that, and cannot undo it.
#
# ## 6. Training
#
# **Exercise: training.** Adam and cross-entropy over all target tokens but padding. After each epoch the model is
# put into evaluation mode (no dropout) and its validation loss is measured. At the end the model has the weights of
# the epoch with the **lowest validation loss**, the first of equals. A loss of an epoch is the mean over its
# batches; that of training is taken before each update.
#
# <details><summary>Hint 1</summary>
#
# `model.state_dict()` holds the very tensors that training goes on to change. Keep a copy.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `copy.deepcopy(model.state_dict())` whenever the loss is below the best so far; `model.load_state_dict(best)` at
# the end.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "training", "locked": false, "schema_version": 3, "solution": true}
def train_model(model, train_loader, val_loader, num_epochs, learning_rate):
    """Train in place and return {"train_loss": [one number an epoch], "val_loss": [the same]}."""
    ### BEGIN SOLUTION
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    loss_of = nn.CrossEntropyLoss(ignore_index=PAD)
    history = {"train_loss": [], "val_loss": []}
    lowest = math.inf
    best = None
    for _ in range(num_epochs):
        model.train()
        losses = []
        for enc_input, dec_input, target, src_padding_mask, tgt_padding_mask in train_loader:
            logits = model(enc_input, dec_input, src_padding_mask, tgt_padding_mask)
            loss = loss_of(logits.flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        history["train_loss"].append(sum(losses) / len(losses))
        model.eval()
        with torch.no_grad():
            held_out = []
            for enc_input, dec_input, target, src_padding_mask, tgt_padding_mask in val_loader:
                logits = model(enc_input, dec_input, src_padding_mask, tgt_padding_mask)
                held_out.append(loss_of(logits.flatten(0, 1), target.flatten()).item())
        val_loss = sum(held_out) / len(held_out)
        history["val_loss"].append(val_loss)
        if val_loss < lowest:
            lowest = val_loss
            best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return history
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "training-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("training", train_model)

# %% [markdown]
# **Predict**: which of the 50 epochs will have the lowest validation loss? What would another
# answer tell you?

# %%
history = train_model(model, train_loader, val_loader, NUM_EPOCHS, LEARNING_RATE)
model.eval()
print("epoch       " + "".join(f"{epoch:9}" for epoch in (1, 2, 5, 10, 20, 30, 40, 50)))
for name, losses in history.items():
    print(
        f"{name:12}"
        + "".join(f"{losses[epoch - 1]:9.5f}" for epoch in (1, 2, 5, 10, 20, 30, 40, 50))
    )
ranked = sorted(range(NUM_EPOCHS), key=lambda epoch: history["val_loss"][epoch])
best, second = (history["val_loss"][epoch] for epoch in ranked[:2])
print(
    f"lowest: epoch {ranked[0] + 1}; the next, of epoch {ranked[1] + 1}, is "
    f"{second / best - 1:.1%} higher"
)

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for (name, losses), style in zip(history.items(), ("--", "-"), strict=True):
    axes.plot(range(1, NUM_EPOCHS + 1), losses, style, label=name.replace("_", " "))
axes.set(title="Loss by epoch (log scale)", xlabel="epoch", ylabel="nats per token", yscale="log")
axes.legend()
plt.show()

# %% [markdown]
# The last epoch is the best one: the loss is still falling, and keeping the best weights changes nothing *here*.
# Validation contexts repeat those of training, so this curve could not show overfitting. The two losses differ in more
# than their contexts: that of training is taken with dropout on, and of each batch before its update.
#
# ## 7. Greedy decoding
#
# **Exercise: decode.** Begin with `[SOS]`, take the most likely next token, append it, and go on. A row that has
# written `[EOS]` is filled with `[PAD]`. Stop when all rows have ended, or after `max_len` tokens.
#
# <details><summary>Hint 1</summary>
#
# Only the logits at the last position count. Keep one truth value a row: has it ended?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `token = logits[:, -1].argmax(-1).masked_fill(ended, PAD)`, then `ended |= token == EOS`.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "decode", "locked": false, "schema_version": 3, "solution": true}
@torch.no_grad()
def greedy_decode(model, enc_input, max_len):
    """The tokens [batch, written] after ``[SOS]``, which is not part of the result."""
    ### BEGIN SOLUTION
    written = torch.full((len(enc_input), 1), SOS)
    ended = torch.zeros(len(enc_input), dtype=torch.bool)
    for _ in range(max_len):
        token = model(enc_input, written)[:, -1].argmax(-1).masked_fill(ended, PAD)
        written = torch.cat([written, token[:, None]], dim=1)
        ended |= token == EOS
        if ended.all():
            break
    return written[:, 1:]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "decode-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("decode", greedy_decode)

# %%
generator = torch.Generator().manual_seed(1)
original = next(iter(test_loader))[0][:6]
scrambled = torch.stack([row[torch.randperm(len(row), generator=generator)] for row in original])
outputs = greedy_decode(model, original, 5), greedy_decode(model, scrambled, 5)
for before, after, first, second in zip(original, scrambled, *outputs, strict=True):
    print(f"original  {words(before):31} -> {words(first)}")
    print(f"scrambled {words(after):31} -> {words(second)}")
print("the outputs are identical:", torch.equal(*outputs))

# %% [markdown]
# ## 8. The scrambling test, over all orders
#
# Six scrambled inputs show little, and equal *words* can hide different *logits*. A test worth its name tries every
# order of every context and compares the logits.
#
# **Exercise: scrambling.** For each context try all orders of its tokens. `predict` turns sources `[batch, source]`
# into logits `[batch, ..., vocabulary]`. Return the largest change of a logit against the context's original order,
# and how many most likely tokens change, summed over all orders and contexts.
#
# <details><summary>Hint 1</summary>
#
# `permutations(range(n))` from itertools gives all orders of n positions, the original first; `context[orders]` is
# one batch.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Compare `logits` with `logits[0]`: the largest absolute difference, and the number of `argmax(-1)` that differ.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "scrambling", "locked": false, "schema_version": 3, "solution": true}
@torch.no_grad()
def scrambling_test(predict, contexts):
    """The largest change of a logit and the number of most likely tokens that change."""
    ### BEGIN SOLUTION
    largest = 0.0
    changed = 0
    for context in contexts:
        orders = torch.tensor(list(permutations(range(len(context)))))
        logits = predict(context[orders])
        original = logits[0]
        largest = max(largest, (logits - original).abs().max().item())
        changed += (logits.argmax(-1) != original.argmax(-1)).sum().item()
    return largest, changed
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "scrambling-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("scrambling", scrambling_test)

# %% [markdown]
# A *control* has to fail, or the test shows nothing: the same model, weight for weight, with positions added in its
# encoder.
#
# **Predict**: will the control also write other words, or only change its logits?

# %%
control = copy.deepcopy(model)
control.encoder.embedding.register_forward_hook(  # before its output is multiplied by sqrt(d_model)
    lambda module, inputs, output: output + sinusoids(*output.shape[1:]) / D_MODEL**0.5
)
contexts = torch.tensor(sorted(seen))
facts = [
    next(value for key, value in FACT_PAIRS if {key, value} <= set(row))
    for row in contexts.tolist()
]
right = greedy_decode(model, contexts, 2) == torch.tensor([[value, EOS] for value in facts])
print(f"{len(contexts)} contexts, of which {right.all(1).double().mean():.1%} are answered right")
for name, watched in (("no positions in the encoder", model), ("control, with positions", control)):

    def written(source, watched=watched):
        """The logits of the two tokens that the model writes, after what it has written itself."""
        first = torch.full((len(source), 1), SOS)
        value = watched(source, first)[:, -1:].argmax(-1)
        return watched(source, torch.cat([first, value], 1))

    largest, changed = scrambling_test(written, contexts)
    tokens = len(contexts) * math.factorial(5) * 2
    print(
        f"{name}: a logit changes by up to {below(largest)}, "
        f"{changed:,} of {tokens:,} tokens change"
    )

# %% [markdown]
# The control's logits change far more than by rounding, so the test sees positions. Its words stay, so that words alone
# would have shown nothing.
#
# ## 9. Where the decoder looks
#
# **Exercise: hook.** A *forward hook* is a function that PyTorch calls after a module: `hook(module, inputs,
# output)`. Put one on the cross-attention of the last decoder layer, run the model, remove the hook, and return the
# weights.
#
# <details><summary>Hint 1</summary>
#
# The module is `model.decoder.layers[-1].cross_attention`; its output is the pair that you wrote above.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `handle = module.register_forward_hook(...)`, then `handle.remove()`; with `try` and `finally` the hook also goes
# where the model raises an error.
#
# </details>


# %% nbgrader={"grade": false, "grade_id": "hook", "locked": false, "schema_version": 3, "solution": true}
@torch.no_grad()
def cross_attention_weights(model, enc_input, dec_input):
    """Weights [batch, head, decoder token, encoder token] of the last cross-attention."""
    ### BEGIN SOLUTION
    found = []
    attention = model.decoder.layers[-1].cross_attention
    handle = attention.register_forward_hook(lambda module, inputs, output: found.append(output[1]))
    try:
        model(enc_input, dec_input)
    finally:
        handle.remove()
    return found[0]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "hook-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("hook", cross_attention_weights)

# %% [markdown]
# **Predict**: the value is predicted at `[SOS]`. A context of the test data holds `ALICE` and
# `GREEN` among `NAME`, `COLOR` and `ITEM`. On which of the five will the weight of `[SOS]` be, in
# each head?


# %% tags=["hide-input"] jupyter={"source_hidden": true}
def plot_cross_attention(attention_matrix, enc_tokens, dec_tokens, title):
    """A heat map for each head: encoder tokens on the X axis, decoder tokens on the Y axis."""
    figure, panels = plt.subplots(
        1, len(attention_matrix), figsize=(11, 1.9), layout="constrained", sharey=True
    )
    for head, (axes, weights) in enumerate(zip(panels, attention_matrix, strict=True), start=1):
        image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(enc_tokens)), words(enc_tokens).split(), rotation=90)
        axes.set_yticks(range(len(dec_tokens)), words(dec_tokens).split())
        axes.set_title(f"head {head}")
        for (row, column), weight in np.ndenumerate(weights.numpy()):
            color = "white" if weight > 0.6 else "black"
            axes.text(
                column, row, f"{weight:.2f}", ha="center", va="center", fontsize=8, color=color
            )
    figure.suptitle(title)
    figure.colorbar(image, ax=panels, label="weight")
    plt.show()


# %%
enc_input, dec_input, *_ = next(iter(test_loader))
row = (enc_input == VOCAB["ALICE"]).any(1).int().argmax()  # the first with this fact
context = enc_input[row : row + 1]
target = dec_input[row : row + 1]
for title, watched in (("before training", untrained), ("after training", model)):
    plot_cross_attention(
        cross_attention_weights(watched, context, target)[0], context[0], target[0], title
    )

# %% [markdown]
# The original exercise expects a spike on the value token. For every fact and head, the weight of
# `[SOS]` on key and value:

# %%
for key, value in FACT_PAIRS:
    context = torch.tensor([[VOCAB["NAME"], VOCAB["COLOR"], key, VOCAB["ITEM"], value]])
    rows = cross_attention_weights(model, context, torch.tensor([[SOS]]))[0, :, 0]
    cells = "  ".join(
        f"head {head}: {row[2]:.2f} / {row[4]:.2f}" for head, row in enumerate(rows, start=1)
    )
    print(
        f"{ID_TO_TOKEN[key]:>5} / {ID_TO_TOKEN[value]:5}  {cells}   largest on the value: "
        f"{rows[:, 4].max():.2f}"
    )

# %% [markdown]
# Facts are fixed, so either token of a fact identifies it, and heads may look at the key instead. Which they choose
# differs between seeds (the lab's report has three). RED alone is not enough: it is the value of one fact and the key of
# another. A weight shows where a head looks, not what the answer needs.
#
# ## 10. What such an encoder cannot look up
#
# The model has learned which of three sets it reads. A real lookup has facts that are new in every context, and a
# question: *which value belongs to this key?* Written as separate tokens, such a context is a *bag*: all its keys,
# all its values, and no pairing.
#
# **Exercise: bag.** Prove it. Write all contexts, as dictionaries from key to value, that have the bag of these
# `KEYS` and `VALUES`, each value once. Whatever a model answers to "what is the value of the first key?", it
# answers the same for all of them. In what share of them is one answer right?
#
# <details><summary>Hint 1</summary>
#
# Each way to assign the values to the keys is a context.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `permutations(VALUES)` gives the values in the order of `KEYS`; of all contexts, count those with the same value
# of the first key.
#
# </details>

# %%
print("keys", KEYS, "values", VALUES)


# %% nbgrader={"grade": false, "grade_id": "bag", "locked": false, "schema_version": 3, "solution": true}
def same_bag():
    """All contexts with this bag, and the largest share of them with one value of the first key.

    Returns {"contexts": [a dictionary from key to value, ...], "share": a number}.
    """
    ### BEGIN SOLUTION
    contexts = [dict(zip(KEYS, values, strict=True)) for values in permutations(VALUES)]
    share = sum(context[KEYS[0]] == VALUES[0] for context in contexts) / len(contexts)
    return {"contexts": contexts, "share": share}
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "bag-check", "locked": true, "points": 2, "schema_version": 3, "solution": false}
check("bag", same_bag)

# %% [markdown]
# For n facts with different values the share is `1 / n`, **for any model and any amount of training**. What binds a
# key to its value without positions is *one* position that embeds both, a *slot*: a row from a table of keys plus a
# row from a table of values. A set of slots holds every pairing.
#
# **Predict**: a reader of a set of slots and one of a bag of tokens are trained for 400 steps on 1 to 8 facts. How often
# is each right with 8 facts? And with 16?

# %%
counts = (1, 2, 4, 8, 16)
asked = 2000
trained = {}
for recipe, split in ((shortened(SLOTS), "unseen"), (shortened(BAG), "all")):
    trained[recipe.encoding] = reader, _ = train_in_context(recipe, seed=0)
    for count in counts:
        facts = sample(recipe.data, asked, seed=99, split=split, num_facts=count)
        share = float((answers(reader, facts, recipe) == facts.answer).double().mean())
        low, high = wilson(share, asked)
        limit = ""
        if recipe.encoding == "bag":
            limit = f", a bag's limit {bag_ceiling(recipe.data, count):.4f}"
        print(
            f"{recipe.encoding:5} {count:2} facts: {share:.3f} right (95 %: {low:.3f} to "
            f"{high:.3f}){limit}"
        )
facts = sample(shortened(SLOTS).data, 1000, seed=7, split="unseen", num_facts=8)
first, second = (
    answers(trained["slots"][0], each, shortened(SLOTS))
    for each in (facts, reordered(facts, seed=1))
)
print("slots in another order: answers changed", int((first != second).sum()), "of 1000")

# %% [markdown]
# Slots were asked about pairings of key and value that training never showed. So where they are right, the model has
# learned to look up, not answers by heart. It is still a set: the order of the slots changes no answer.
#
# ## What to try next
#
# - Give the *control* a training of its own (`glassformer lab lookup` does). Does it write other words when
#   scrambled?
# - Leave the residual additions or the norms out of your layers, and train again. What does the loss say, and when?
# - Remove one head of the cross-attention: set 16 columns of `output.weight` to 0. Is any answer wrong?
# - Write facts as tokens *with* positions, key before value. Do 400 steps suffice to bind them? (The report: not
#   even 4,000.)
# - Make a fourth fact whose value is another's key. Which tokens can a head look at now?

# %% [markdown]
# ## On a real model
#
# SmolLM2 reads facts as sentences, and it *has* positions. The scrambling test again: three facts in all six
# orders, in ten contexts; the model chooses among the three values of the context. Orders of one context are not
# independent, so each 95 % interval is a bootstrap over contexts.
#
# **Predict**: will the order change its answer? Is a fact found best when it stands first, in the middle, or last?

# %%
PEOPLE = ["Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry"]
CITIES = ["Paris", "London", "Rome", "Berlin", "Madrid", "Tokyo", "Vienna", "Dublin"]


def interval(values, rng):
    """A mean and its 95 % interval, by bootstrap."""
    means = rng.choice(values, (4000, len(values))).mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{np.mean(values):.2f} ({low:.2f} to {high:.2f})"


def in_all_orders(lm, rng, num_facts=3):
    """One context in all orders, and which value is chosen in each; 0 is the right one."""
    people, cities = (rng.choice(choice, num_facts, replace=False) for choice in (PEOPLE, CITIES))
    orders = list(permutations(range(num_facts)))
    rows = []
    for order in orders:
        told = "".join(f" {people[i]} lives in {cities[i]}." for i in order)
        asked = [{"role": "user", "content": f"Facts:{told} Where does {people[0]} live?"}]
        rows.append(lm.prompt(asked) + lm.tokenizer.encode(f"{people[0]} lives in"))
    with torch.no_grad():
        logits = lm.model.logits(lm.model.hidden(torch.tensor(rows))[:, -1])
    options = [lm.token(f" {city}") for city in cities]
    return orders, logits[:, options].argmax(-1).numpy()


try:
    lm = glassformer.load("smollm2")
except InputError as missing:
    lm = None
    print(f"left out: {missing}")
if lm is not None:
    rng = np.random.default_rng(0)
    read = [in_all_orders(lm, rng) for _ in range(10)]
    print(
        "share right:",
        interval([np.mean(chosen == 0) for _, chosen in read], rng),
        f"by chance {1 / 3:.2f}",
    )
    for place in range(3):
        at = [
            np.mean(chosen[[order[place] == 0 for order in orders]] == 0) for orders, chosen in read
        ]
        print(f"   where the fact is number {place + 1}: {interval(at, rng)}")

# %% [markdown]
# A set has no middle; a text has one. What this model answers depends on where a fact stands. With
# so few contexts we count only differences between intervals that do not overlap.
