"""What was used before: a recurrent and a convolutional classifier, with about as many parameters as the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.classifier import predict
from glassformer.data.examples import SentimentData
from glassformer.data.tokenizer import MAX_LEN, WordTokenizer
from glassformer.labs.sentiment.experiments.recipes import FROM_SCRATCH
from glassformer.models.text_classifiers import ConvolutionalClassifier, RecurrentClassifier
from glassformer.training.text_recipe import Epoch, TrainingRecipe, fit


@dataclass(frozen=True)
class RivalRecipe:
    """A network that is trained as the encoder from scratch is."""

    name: str
    kind: Literal["recurrent", "convolutional"]
    training: TrainingRecipe = FROM_SCRATCH.training


RIVALS = (RivalRecipe("GRU, both directions", "recurrent"), RivalRecipe("convolutions", "convolutional"))


def build_rival(kind: str, vocab_size: int, num_classes: int, seed: int) -> nn.Module:
    """A new network; its weights follow from ``seed``, and torch's generator is left alone.

    Embeddings are normal with standard deviation ``embedding_dim ** -0.5``, as the encoder's are before they are
    scaled. With torch's default of 1, words too rare to be learned stay loud: on SST-2's validation sentences the
    accuracy is 5 to 9 points lower.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (RecurrentClassifier if kind == "recurrent" else ConvolutionalClassifier)(vocab_size, num_classes)
        nn.init.normal_(model.embedding.weight, std=model.embedding.embedding_dim**-0.5)
    return model


class Rival(NamedTuple):
    """A trained network with its vocabulary, and its training."""

    model: nn.Module
    tokenizer: WordTokenizer
    epochs: list[Epoch]

    def probabilities(self, texts: Sequence[str]) -> Float[Tensor, "text num_classes"]:
        """The probability of each class for each text."""
        return predict(self.model, [self.tokenizer.encode(text, MAX_LEN) for text in texts], self.tokenizer.pad_id)


def train_rival(recipe: RivalRecipe, data: SentimentData, directory: Path | None, seed: int) -> Rival:
    """Build a network for the training texts' vocabulary and :func:`fit` it."""
    tokenizer = WordTokenizer.from_texts([example.text for example in data.train], FROM_SCRATCH.vocab_size)
    model = build_rival(recipe.kind, tokenizer.vocab_size, len(data.classes), seed)
    described = {"rival": asdict(recipe)}
    encode, pad_id = tokenizer.encode, tokenizer.pad_id
    epochs = fit(model, encode, pad_id, data, recipe.training, seed, directory, described)
    return Rival(model, tokenizer, epochs)
