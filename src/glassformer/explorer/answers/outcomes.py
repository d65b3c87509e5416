"""A model's output for a run, with and without changes of the model: the next token at one position, or the class."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import KeptRun, logits_of, name_of, visible
from glassformer.explorer.answers.runs import Runs, SizedCache
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedEncoder,
    LoadedEncoderDecoder,
    LoadedHead,
    LoadedModel,
)
from glassformer.models.encoder import Encoder
from glassformer.modes import evaluating
from glassformer.observe.capture import find_hook_points
from glassformer.observe.edits import Edit
from glassformer.observe.hook_points import HookPoint
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import final_norm_and_output


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes of a run at one position.

    Args:
        loaded: The model.
        run: The run.
        place: The position; None for a classifier.
        points: The model's hook points.
        cache: For the outcome without changes.
    """

    loaded: LoadedEncoder | LoadedEncoderDecoder | LoadedDecoder
    run: KeptRun
    place: int | None
    points: Sequence[HookPoint]
    cache: SizedCache

    @property
    def model(self) -> nn.Module:
        """The network."""
        model: nn.Module = self.loaded.model
        return model

    def before(self) -> Float[Tensor, " outcome"]:
        """The logits without changes, in float64.

        Raises:
            InputError: A model without logits, or with logits that are no distribution.
        """
        name: Hashable = ("outcomes", self.run.message.run, self.run.stamp, self.place)
        found: Tensor | None = self.cache.get(name)
        if found is None:
            found = self.after(())[0]
            self.cache.put(name, found, found.nbytes)
        return found

    @torch.no_grad()
    def after(self, edits: Sequence[Edit], copies: int = 1) -> Float[Tensor, "copy outcome"]:
        """The logits of some copies of the text with edits of the model, in float64.

        Raises:
            InputError: As :meth:`before`, and what ``intervene`` refuses.
        """
        with self.loaded.lock, evaluating(self.model), intervene(self.model, *edits):
            logits = self.logits(copies)
        if logits is None:
            raise InputError(
                f"{self.loaded.card.name!r}, which predicts no tokens or classes",
                "a decoder, a classifier or an encoder-decoder",
                "Choose a model whose card names the view 'whatif'.",
            )
        found = logits.detach().double().cpu()
        finite = bool(found.softmax(-1).isfinite().all())
        require(finite, "logits that are not finite", "finite ones", "Change less, or look for NaN in the weights.")
        return found

    def logits(self, copies: int = 1) -> Float[Tensor, "copy outcome"] | None:
        """The model's output for some copies of the text. Hold the lock."""
        rows = [each.repeat(copies, *[1] * (each.dim() - 1)) for each in self.run.inputs]
        return logits_of(self.loaded, rows, -1 if self.place is None else self.place)

    def name(self, outcome: int) -> str:
        """A token, or the name of a class."""
        return visible(name_of(self.loaded)(outcome))

    def chosen(self, asked: int | None, name: str = "target") -> int:
        """The outcome that a request names, or the likeliest before.

        Raises:
            InputError: There is no such outcome.
        """
        before = self.before()
        if asked is None:
            return int(before.argmax())
        known = f"0 to {len(before) - 1}"
        require(asked < len(before), f"{name} = {asked}", known, "Name one of the outcomes of the call 'whatif'.")
        return asked

    def attention(self, part: m.Part, layer: int, asked: str) -> HookPoint:
        """The attention of a layer.

        Raises:
            InputError: There is none.
        """
        attentions = [point for point in self.points if point.role == "attention"]
        found = {(part_of(point, self.points), point.layer): point for point in attentions}
        layers = [each for at, each in found if at == part]
        parts = ", ".join(dict.fromkeys(at for at, _ in found))
        require(len(layers) > 0, f"{asked}: part = {part!r}", f"one of {parts}", "See the attentions of the run.")
        require(layer in layers, f"{asked}: layer = {layer}", f"0 to {max(layers)}", "Count from 0.")
        return found[part, layer]


def outcomes_of(runs: Runs, loaded: LoadedModel, ask: m.Ask, place: int | None = None) -> Outcomes:
    """The outcomes of a run.

    Raises:
        InputError: A hand-designed head, or a place that the text does not have.
    """
    if isinstance(loaded, LoadedHead):
        raise InputError(f"{loaded.card.name!r}, a hand-designed head", "a model that predicts", "Edit its weights.")
    run = runs.run(ask)
    if isinstance(loaded, LoadedEncoder):
        require(place is None, f"place = {place} of a classifier", "none, as it judges the whole text", "Omit it.")
    elif place is not None:
        last = len(run.message.tokens) - 1
        require(place <= last, f"place = {place}", f"0 to {last}", "Name a position of the text.")
    points = find_hook_points(loaded.model)
    return Outcomes(loaded, run, run.place if place is None else place, points, runs.derived)


def part_of(point: HookPoint, points: Sequence[HookPoint]) -> m.Part:
    """The part of the model to which an attention belongs, as runs name it."""
    if point.cross:
        return "cross"
    if point.source:
        return "encoder"
    return "decoder" if any(each.source for each in points) else "self"


@dataclass(frozen=True, eq=False)
class Readout:
    """What turns the residual stream into logits.

    Args:
        norm: The final norm, if there is one.
        output: The projection.
        pool: What makes one position of all; None: each position has its own logits.
    """

    norm: nn.Module | None
    output: nn.Linear
    pool: Any = None

    def logits(self, stream: Float[Tensor, "batch position hidden"]) -> Float[Tensor, "batch position outcome"]:
        """The logits that the stream would give."""
        hidden = stream if self.norm is None else self.norm(stream)
        hidden = hidden if self.pool is None else self.pool(hidden)[:, None]
        logits: Tensor = self.output(hidden)
        return logits

    def direction(self, toward: int, away: int | None) -> Float[Tensor, " hidden"]:
        """The unit vector that raises one logit most, or its difference from another."""
        rows = self.output.weight.detach()
        found = rows[toward] if away is None else rows[toward] - rows[away]
        weight = getattr(self.norm, "weight", None)
        found = found.float() if weight is None else found.float() * weight.detach().float()
        return found / found.norm().clamp_min(1e-30)


def readout_of(loaded: Any) -> Readout | None:
    """The readout of a model; None if its logits are no linear map of one normed stream."""
    model = loaded.model
    if isinstance(loaded, LoadedEncoderDecoder):
        return Readout(model.decoder_norm, model.output)
    if isinstance(model, Encoder):
        return None if model.classifier is None else Readout(model.final_norm, model.classifier, model.pool)
    try:
        norm, output = final_norm_and_output(model)
    except InputError:
        return None
    return Readout(norm, output)
