"""The seed's hyperparameters, data, training, decoding and heat map, under the seed's names."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from glassformer.data import lookup
from glassformer.data.lookup import EOS, FACTS, PAD, SOS
from glassformer.errors import require_positive
from glassformer.figures.attention_maps import cross_attention
from glassformer.generation import greedy_decode as decode
from glassformer.labs.loaders import History, Loader, train_epochs
from glassformer.labs.lookup.course_network import CrossAttentionLookupModel
from glassformer.training import Batch
from glassformer.training.sequence_tasks import all_right, target_loss

D_MODEL = 64
NUM_HEADS = 4
NUM_LAYERS = 1
D_FF = 128
BATCH_SIZE = 32
LEARNING_RATE = 1e-4
NUM_EPOCHS = 50
MAX_SEQ_LEN = 10

VOCAB = dict(lookup.VOCAB)
VOCAB_SIZE = len(VOCAB)
ID_TO_TOKEN = dict(lookup.ID_TO_TOKEN)
FACTS_DICT = {VOCAB[key]: VOCAB[value] for key, value in FACTS.items()}
FACT_PAIRS = list(FACTS_DICT.items())


LookupSample: TypeAlias = dict[str, Any]
"""``enc_input`` (five tokens), ``dec_target`` (value and ``[EOS]``), ``query_val_id`` (value)."""


def generate_synthetic_data(num_samples: int) -> list[LookupSample]:
    """Draw examples with NumPy's global generator.

    A context is ``NAME``, followed by ``COLOR``, key, ``ITEM`` and value in a random order.
    """
    require_positive(num_samples=num_samples)
    samples: list[LookupSample] = []
    for _ in range(num_samples):
        # The seed draws from NumPy's global generator.
        key, value = FACT_PAIRS[np.random.randint(len(FACT_PAIRS))]  # noqa: NPY002
        fact = [VOCAB["COLOR"], key, VOCAB["ITEM"], value]
        np.random.shuffle(fact)  # noqa: NPY002
        enc_input = torch.tensor([VOCAB["NAME"], *fact])
        dec_target = torch.tensor([value, EOS])
        samples.append({"enc_input": enc_input, "dec_target": dec_target, "query_val_id": value})
    return samples


class LookupDataset(torch.utils.data.Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Items (enc_input, dec_input, true_target).

    dec_input is the target shifted right, starting with ``[SOS]``.
    """

    def __init__(self, data: Sequence[LookupSample]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor, Tensor]:
        target = self.data[idx]["dec_target"]
        dec_input = torch.cat([target.new_tensor([SOS]), target[:-1]])
        return self.data[idx]["enc_input"], dec_input, target


def collate_fn(batch: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Pad enc_inputs, dec_inputs and dec_targets with ``[PAD]``, and add two padding masks.

    src_padding_mask and tgt_padding_mask are True for padding.
    """
    enc_inputs, dec_inputs, dec_targets = (
        pad_sequence([item[part] for item in batch], batch_first=True, padding_value=PAD)
        for part in range(3)
    )
    return enc_inputs, dec_inputs, dec_targets, enc_inputs == PAD, dec_inputs == PAD


def train_model(
    model: CrossAttentionLookupModel,
    train_loader: Loader,
    val_loader: Loader,
    num_epochs: int = NUM_EPOCHS,
    learning_rate: float = LEARNING_RATE,
) -> History:
    """Train with Adam, and end with the weights of the epoch with the lowest validation loss.

    See :func:`~glassformer.labs.loaders.train_epochs` for arguments, result and errors. An example
    is right if all its tokens are right.
    """
    return train_epochs(
        model,
        train_loader,
        val_loader,
        named=_named,
        measure=_measure,
        num_epochs=num_epochs,
        learning_rate=learning_rate,
        keep_best=True,
    )


def greedy_decode(
    model: CrossAttentionLookupModel, enc_input: Int[Tensor, "batch source"], max_len: int
) -> Int64[Tensor, "batch token"]:
    """Return at most ``max_len`` tokens for each context, up to ``[EOS]``.

    See :func:`glassformer.generation.greedy_decode`.
    """
    return decode(model.network, enc_input, max_len, SOS, EOS)


def plot_cross_attention(
    attention_matrix: Float[Tensor, "*head target source"] | ArrayLike,
    enc_tokens: Sequence[str] | Sequence[int] | Tensor,
    dec_tokens: Sequence[str] | Sequence[int] | Tensor,
) -> None:
    """Show a heat map for each head: encoder tokens on the X axis, decoder tokens on the Y axis."""
    weights = torch.as_tensor(attention_matrix).detach().cpu().double()
    head_names: tuple[str, ...] = ()
    if weights.dim() == 2:
        weights = weights[None]
        head_names = ("",)
    figure = cross_attention(
        weights.numpy(),
        token_words(enc_tokens),
        token_words(dec_tokens),
        head_names=head_names,
        figure=plt.figure(),
    )
    plt.show()
    if not plt.isinteractive():
        plt.close(figure)


def token_words(tokens: Sequence[str] | Sequence[int] | Tensor) -> list[str]:
    """Return the word of each token; words stay unchanged."""
    listed: list[str | int] = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
    return [token if isinstance(token, str) else ID_TO_TOKEN[token] for token in listed]


def _named(batch: tuple[Tensor, ...]) -> Batch:
    names = ("enc_input", "dec_input", "targets", "src_padding_mask", "tgt_padding_mask")
    return dict(zip(names, batch, strict=True))


def _measure(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    logits = model(
        batch["enc_input"], batch["dec_input"], batch["src_padding_mask"], batch["tgt_padding_mask"]
    )
    return target_loss(logits, batch["targets"]), all_right(logits, batch["targets"])
