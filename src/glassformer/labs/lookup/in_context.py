"""Training an encoder-decoder to answer from fresh facts: the task for the training loop, and the models of recipes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from glassformer.data.in_context_lookup import Facts, encode, sample
from glassformer.errors import require, require_positive
from glassformer.labs.lookup.recipes import InContextRecipe
from glassformer.layers.blocks import CrossBlock
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.training import Batch, TrainingResult, train

MEASURING_SEED = 10_000_000
"""Contexts that are measured come from seeds from here on, those of training from seeds below."""


class InContextTask:
    """Answering one question about a context of fresh facts; a task for :func:`glassformer.training.train`.

        loss = mean over contexts of -log p(answer | facts, asked key)

    Args:
        recipe: Which contexts, and how they are written down.
        seed: Seed of the contexts; those of update s are a function of the seed and s.
        num_evaluated: Contexts that ``evaluate`` measures, of as many facts as those trained on.

    Raises:
        InputError: ``num_evaluated`` below 1, or a seed that is negative or kept for measuring.
    """

    metric = "accuracy"
    higher_is_better = True
    unit = "questions"

    def __init__(self, recipe: InContextRecipe, seed: int = 0, *, num_evaluated: int = 1000) -> None:
        require_positive(num_evaluated=num_evaluated)
        require(
            0 <= seed < MEASURING_SEED, f"seed = {seed}", f"0 to {MEASURING_SEED - 1}", "Larger ones are for measuring."
        )
        self._recipe, self._seed, self._num_evaluated = recipe, seed, num_evaluated

    def batch(self, step: int, size: int) -> Batch:
        """``{"source": [batch, position(, 2)], "real": [batch, position], "query": [batch, 1], "answer": [batch]}``."""
        recipe = self._recipe
        facts = sample(recipe.data, size, self._seed, split=recipe.split, step=step)
        source, real = encode(facts, recipe.encoding, seed=self._seed, step=step)
        return {"source": source, "real": real, "query": facts.query[:, None], "answer": facts.answer}

    def count(self, batch: Batch) -> int:
        """Questions in ``batch``."""
        return len(batch["answer"])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The loss above, in nats."""
        logits = model(batch["source"], batch["query"], batch["real"])
        return F.cross_entropy(logits[:, -1], batch["answer"])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """ "accuracy" on contexts of training's kind that training does not meet."""
        recipe = self._recipe
        facts = sample(recipe.data, self._num_evaluated, MEASURING_SEED, split=recipe.split)
        return {"accuracy": float((answers(model, facts, recipe) == facts.answer).double().mean())}


@torch.no_grad()
def answers(model: nn.Module, facts: Facts, recipe: InContextRecipe, *, seed: int = 0) -> Int64[Tensor, " batch"]:
    """The most likely token for each question. ``seed`` shuffles bags; other encodings do not use it."""
    source, real = encode(facts, recipe.encoding, seed=seed)
    device = next(model.parameters()).device
    logits = model(source.to(device), facts.query[:, None].to(device), real.to(device))
    return logits[:, -1].argmax(-1).cpu()


def build_model(recipe: InContextRecipe, seed: int) -> EncoderDecoder:
    """The model of ``recipe`` before training; its weights are drawn from ``seed``, torch's generator is left alone.

    What a recipe asks beyond the configuration is done here: tables are shared, an encoder that does not mix has
    zeros in the place of its self-attention, and length scaling is a hook on the cross-attention.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = EncoderDecoder(recipe.model_config())
    if recipe.shared_tables:
        _share_tables(model)
    if not recipe.mixing:
        for block in model.encoder_layers:
            block.attention = _Nothing()
    if recipe.length_scaling == "log":
        for block in model.decoder_layers:
            assert isinstance(block, CrossBlock)
            _scale_by_length(block.cross_attention, recipe.data.max_facts + recipe.data.distractors)
    return model


def train_in_context(
    recipe: InContextRecipe, seed: int, directory: Path | None = None, *, progress: bool = False
) -> tuple[EncoderDecoder, TrainingResult]:
    """Train the model of ``recipe``, going on with what is in ``directory``; the weights are those of the last step.

    Returns:
        The model in evaluation mode on the CPU, and what its training came to.

    Raises:
        InputError: ``directory`` holds the run of another recipe or seed.
        KeyboardInterrupt: The training was interrupted. What it did is saved, if there is a directory.
    """
    model = build_model(recipe, seed)
    # As JSON gives it back, so that a description read from a file equals one that was never written.
    description: dict[str, Any] = json.loads(json.dumps({"recipe": asdict(recipe), "seed": seed}))
    result = train(
        model,
        InContextTask(recipe, seed),
        recipe.training_config(seed),
        directory,
        resume=directory is not None and (directory / "config.json").exists(),
        description=description,
        progress=progress,
    )
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    # Training leaves it on the device that it used; what is measured lies on the CPU.
    return model.cpu().eval(), result


class _Nothing(nn.Module):
    """In the place of an attention: adds nothing to the residual stream."""

    def forward(self, x: Tensor, *, key_padding: Tensor | None = None) -> Tensor:
        """Zeros, whatever is read."""
        del key_padding
        return torch.zeros_like(x)


def _share_tables(model: EncoderDecoder) -> None:
    keys, values = model.source_embeddings
    assert isinstance(keys, nn.Embedding)
    assert isinstance(values, nn.Embedding)
    model.target_embedding.weight = keys.weight
    model.output.weight = values.weight


def _scale_by_length(attention: nn.Module, trained_on: int) -> None:
    """Multiply queries, and so scores, by ``log(n + 1) / log(trained_on + 1)`` for n places to read."""
    factor: list[Tensor] = []

    def count(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        source, real = arguments[1], keywords.get("key_padding")
        # With a cache the keys and values of the memory come instead: [batch, head, position, head_dim].
        kept, places = (source[0], 2) if isinstance(source, tuple) else (source, 1)
        length = kept.new_full((len(kept),), kept.shape[places]) if real is None else real.sum(1).to(kept.dtype)
        factor[:] = [(length + 1).log() / math.log(trained_on + 1)]

    attention.register_forward_pre_hook(count, with_kwargs=True)
    query = attention.query
    assert isinstance(query, nn.Module)
    query.register_forward_hook(lambda _module, _inputs, output: output * factor[0][:, None, None])
