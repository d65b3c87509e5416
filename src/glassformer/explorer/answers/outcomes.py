"""Compute a model's output for a run, with and without changes of the model.

The output is the next token at one position, or the class.
"""

import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import KeptRun, logits_of, outcome_name
from glassformer.explorer.answers.runs import Runs, SizedCache
from glassformer.explorer.answers.words import json_text
from glassformer.explorer.api import require_waiting
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedEncoder,
    LoadedEncoderDecoder,
    LoadedHead,
    LoadedModel,
    LoadedProgram,
)
from glassformer.modes import evaluating
from glassformer.observe.capture import find_hook_points
from glassformer.observe.edits import Edit
from glassformer.observe.hook_points import AttentionPoint, HookPoint, of_kind
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import Readout, readout_of
from glassformer.observe.module_hooks import Phase, scope


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of a run at one position: ``place``, or None for a classifier.

    ``readout`` turns the model's residual stream into logits; None if this map is not linear.
    ``cache`` holds the outcome without changes.
    """

    loaded: LoadedEncoder | LoadedEncoderDecoder | LoadedDecoder
    run: KeptRun
    place: int | None
    points: Sequence[HookPoint]
    readout: Readout | None
    cache: SizedCache

    @property
    def model(self) -> nn.Module:
        """Model of ``loaded``."""
        model: nn.Module = self.loaded.model
        return model

    @property
    def texts(self) -> Tensor | Mapping[str, Tensor]:
        """Arguments of the model, as functions of ``observe`` take them."""
        inputs = self.run.inputs
        if len(inputs) == 1:
            return inputs[0]
        return {"source": inputs[0], "target": inputs[1]}

    def readable(self, what: str) -> Readout:
        """Return the readout; refuse ``what`` if there is none."""
        if self.readout is None:
            raise InputError(
                got=f"{what} of {self.loaded.card.name!r}",
                expected="a model whose logits are a linear map of its normed stream",
                fix="Use another view.",
            )
        return self.readout

    def before(self) -> Float[Tensor, " outcome"]:
        """Return the logits without changes, in float64."""
        key: Hashable = ("outcomes", self.run.message.run, self.run.stamp, self.place)
        logits: Tensor | None = self.cache.get(key)
        if logits is None and self.place == self.run.message.place and self.run.logits is not None:
            logits = _distribution(self.run.logits)
        if logits is None:
            logits = self.after(())
            self.cache.put(key, logits, logits.nbytes)
        return logits

    @torch.no_grad()
    def after(self, edits: Sequence[Edit]) -> Float[Tensor, " outcome"]:
        """Return the logits with edits of the model, in float64."""
        place = -1 if self.place is None else self.place
        with self.loaded.lock, evaluating(self.model), intervene(self.model, *edits):
            logits = logits_of(self.loaded, self.run.inputs, place)
        if logits is None:
            raise InputError(
                got=f"{self.loaded.card.name!r}, which predicts no tokens or classes",
                expected="a decoder, a classifier or an encoder-decoder",
                fix="Choose a model whose card names the view 'whatif'.",
            )
        return _distribution(logits[0])

    @contextmanager
    def at_leisure(self, abandonable: bool = True) -> Iterator[None]:
        """Hold the model for a long computation, and let waiting calls run between two blocks.

        Such calls see the model unchanged, since captures and interventions concern one thread.
        With ``abandonable``, the computation ends between two blocks once its caller has stopped
        waiting.
        """
        lock = self.loaded.lock
        thread = threading.get_ident()

        def pause(*_: Any) -> None:
            if threading.get_ident() == thread:
                lock.give_way()
                if abandonable:
                    require_waiting()

        def after(stream: Tensor, _: Any) -> None:
            pause()
            if stream.requires_grad:
                stream.register_hook(pause)

        with lock.at_leisure(), evaluating(self.model), scope() as hooks:
            for point in self.points:
                if point.role == "block":
                    hooks.insert(point.module, "output", after, Phase.BEFORE)
            pause()
            yield

    def name(self, outcome: int) -> str:
        """Return the token or the name of the class."""
        return json_text(outcome_name(self.loaded)(outcome))

    def chosen(self, outcome: int | None, name: str = "target") -> int:
        """Return the outcome that a request names, or the likeliest one without changes."""
        before = self.before()
        if outcome is None:
            return int(before.argmax())
        if outcome >= len(before):
            raise InputError(
                got=f"{name} = {outcome}",
                expected=f"0 to {len(before) - 1}",
                fix="Name one of the outcomes of the call 'whatif'.",
            )
        return outcome

    def compared(self, ask: m.AskSweep | m.AskPatches | m.AskContributions) -> m.Compared:
        """Return the two outcomes that a request compares; by default the likeliest and None."""
        target = self.chosen(ask.target)
        other = None
        other_name = None
        if ask.other is not None:
            other = self.chosen(ask.other, "other")
            other_name = self.name(other)
        return m.Compared(target=target, name=self.name(target), other=other, other_name=other_name)

    def other_text(self, runs: Runs, text: str) -> KeptRun:
        """Return the run of another text, which must have as many tokens."""
        if isinstance(self.loaded, LoadedEncoderDecoder):
            raise InputError(
                got="two texts of an encoder-decoder",
                expected="a decoder or a classifier",
                fix="Choose another model.",
            )
        other_run = runs.run(m.Ask(model=self.loaded.card.name, text=text), self.loaded)
        num_tokens = len(self.run.message.tokens)
        num_other_tokens = len(other_run.message.tokens)
        if num_tokens != num_other_tokens:
            raise InputError(
                got=f"texts of {num_tokens} and {num_other_tokens} tokens",
                expected="as many in both",
                fix="Change words one for one.",
            )
        return other_run

    @property
    def own_part(self) -> m.Part:
        """Part of the model whose attention has tokens as queries and keys."""
        if isinstance(self.loaded, LoadedEncoderDecoder):
            return "decoder"
        return "self"

    def attentions(self, part: m.Part) -> list[AttentionPoint]:
        """Return the attentions of a part, by layer."""
        return [
            point for point in of_kind(self.points, AttentionPoint) if self._part_of(point) == part
        ]

    def _part_of(self, point: AttentionPoint) -> m.Part:
        if point.cross:
            return "cross"
        if point.source:
            return "encoder"
        return self.own_part

    def attention(self, part: m.Part, layer: int, requested: str) -> AttentionPoint:
        """Return the attention of a layer; ``requested`` is how a refusal quotes the request."""
        points = {point.layer: point for point in self.attentions(part)}
        parts = ", ".join(stack.part for stack in self.run.message.attentions)
        if not points:
            raise InputError(
                got=f"{requested}: part = {part!r}",
                expected=f"one of {parts}",
                fix="See the attentions of the run.",
            )
        if layer not in points:
            raise InputError(
                got=f"{requested}: layer = {layer}",
                expected=f"0 to {max(points)}",
                fix="Count from 0.",
            )
        return points[layer]


def _distribution(logits: Tensor) -> Float[Tensor, " outcome"]:
    logits64 = logits.detach().double().cpu()
    if not logits64.softmax(-1).isfinite().all():
        raise InputError(
            got="logits that are not finite",
            expected="finite ones",
            fix="Change less, or look for NaN in the weights.",
        )
    return logits64


def outcomes_of(
    runs: Runs, ask: m.Ask, place: int | None, loaded: LoadedModel | None = None
) -> Outcomes:
    """Return the outcomes of a run at a position, by default the one whose output it reports."""
    loaded = loaded or runs.model(ask.model)
    if isinstance(loaded, LoadedHead | LoadedProgram):
        raise InputError(
            got=f"{loaded.card.name!r}, a {loaded.card.kind}",
            expected="a model that predicts",
            fix="Choose another one.",
        )
    if ask.changes is not None:
        raise InputError(
            got="a run with changes",
            expected="one without, to which they are compared",
            fix="Name the changes in the request itself.",
        )
    run = runs.run(ask, loaded)
    if isinstance(loaded, LoadedEncoder):
        if place is not None:
            raise InputError(
                got=f"place = {place} of a classifier",
                expected="none, as it judges the whole text",
                fix="Omit it.",
            )
    elif place is not None:
        last = len(run.message.tokens) - 1
        if place > last:
            raise InputError(
                got=f"place = {place}",
                expected=f"0 to {last}",
                fix="Name a position of the text.",
            )
    readout = None
    with suppress(InputError):
        readout = readout_of(loaded.model)
    if place is None:
        place = run.message.place
    points = find_hook_points(loaded.model)
    return Outcomes(loaded, run, place, points, readout, runs.derived)
