"""Recipes: what the training loop gets of them, and where data and pretrained weights come from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from glassformer.labs.sentiment.recipes import FROM_SCRATCH, TrainingRecipe, sst2
from refusals import refused


def test_epochs_become_steps() -> None:
    config = TrainingRecipe(epochs=3, batch_size=32, learning_rate=1e-3, weight_decay=0.1).config(100, seed=5)
    assert (config.steps, config.warmup_steps, config.eval_every) == (12, 1, 4)
    assert (config.learning_rate, config.weight_decay, config.seed) == (1e-3, 0.1, 5)


@pytest.mark.parametrize("field", ["epochs", "batch_size"])
def test_impossible_sizes_are_refused(field: str) -> None:
    with refused(f"{field} = 0"):
        dataclasses.replace(FROM_SCRATCH.training, **{field: 0})


def test_few_texts_get_more_passes_and_the_short_version_one() -> None:
    training = dataclasses.replace(FROM_SCRATCH.training, epochs=6, batch_size=64, min_updates=300)
    assert training.config(6916, 0).steps == 6 * 109
    few = training.config(240, 0)
    assert (few.steps, few.eval_every) == (300, 4)
    assert training.shortened().config(6916, 0).steps == 109
    assert training.shortened().config(240, 0).steps == 100
    assert dataclasses.replace(training, min_updates=0).shortened().config(240, 0).steps == 4


def test_the_scratch_encoder_takes_the_vocabularys_size_and_padding() -> None:
    config = FROM_SCRATCH.encoder_config(vocab_size=123, num_classes=4, pad_id=7)
    assert (config.vocab_size, config.num_classes, config.pad_id) == (123, 4, 7)
    assert config.hidden_dim == FROM_SCRATCH.model["hidden_dim"]


def test_sst2_has_the_published_numbers_of_sentences(shared_data: Path) -> None:
    data = sst2(shared_data)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [6920, 872, 1821]
    assert data.classes == ("negative", "positive")
    assert [sum(example.label for example in part) for part in (data.train, data.test)] == [3610, 909]


def test_missing_files_are_named(tmp_path: Path) -> None:
    with refused(r"sst2_train\.tsv"):
        sst2(tmp_path)
