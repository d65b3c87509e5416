"""A model's output for a run, with and without changes of the model: the next token at one
position, or the class.
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
    """The outcomes of a run at one position: ``place``, or None for a classifier.

    ``readout`` turns the model's residual stream into logits; None if they are no linear map of it.
    ``cache`` is for the outcome without changes.
    """

    loaded: LoadedEncoder | LoadedEncoderDecoder | LoadedDecoder
    run: KeptRun
    place: int | None
    points: Sequence[HookPoint]
    readout: Readout | None
    cache: SizedCache

    @property
    def model(self) -> nn.Module:
        """Of ``loaded``."""
        model: nn.Module = self.loaded.model
        return model

    @property
    def texts(self) -> Tensor | Mapping[str, Tensor]:
        """The arguments of the model as functions of ``observe`` take them."""
        inputs = self.run.inputs
        if len(inputs) == 1:
            return inputs[0]
        return {"source": inputs[0], "target": inputs[1]}

    def readable(self, what: str) -> Readout:
        """The readout."""
        if self.readout is None:
            got = f"{what} of {self.loaded.card.name!r}"
            raise InputError(
                got,
                "a model whose logits are a linear map of its normed stream",
                "Use another view.",
            )
        return self.readout

    def before(self) -> Float[Tensor, " outcome"]:
        """The logits without changes, in float64."""
        name: Hashable = ("outcomes", self.run.message.run, self.run.stamp, self.place)
        found: Tensor | None = self.cache.get(name)
        if found is None and self.place == self.run.message.place and self.run.logits is not None:
            found = _distribution(self.run.logits)
        if found is None:
            found = self.after(())
            self.cache.put(name, found, found.nbytes)
        return found

    @torch.no_grad()
    def after(self, edits: Sequence[Edit]) -> Float[Tensor, " outcome"]:
        """The logits with edits of the model, in float64."""
        with self.loaded.lock, evaluating(self.model), intervene(self.model, *edits):
            logits = logits_of(
                self.loaded, self.run.inputs, -1 if self.place is None else self.place
            )
        if logits is None:
            raise InputError(
                f"{self.loaded.card.name!r}, which predicts no tokens or classes",
                "a decoder, a classifier or an encoder-decoder",
                "Choose a model whose card names the view 'whatif'.",
            )
        return _distribution(logits[0])

    @contextmanager
    def at_leisure(self, abandonable: bool = True) -> Iterator[None]:
        """Hold the model for a long computation of this thread, in which waiting calls are answered
        between two blocks.

        They find the model as it is: captures and interventions concern one thread. With
        ``abandonable``, the computation ends there once its caller has stopped waiting.
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

        with lock.at_leisure(), evaluating(self.model), scope() as here:
            for point in self.points:
                if point.role == "block":
                    here.insert(point.module, "output", after, Phase.BEFORE)
            pause()
            yield

    def name(self, outcome: int) -> str:
        """A token, or the name of a class."""
        return json_text(outcome_name(self.loaded)(outcome))

    def chosen(self, asked: int | None, name: str = "target") -> int:
        """The outcome that a request names, or the likeliest before."""
        before = self.before()
        if asked is None:
            return int(before.argmax())
        if asked >= len(before):
            raise InputError(
                got=f"{name} = {asked}",
                expected=f"0 to {len(before) - 1}",
                fix="Name one of the outcomes of the call 'whatif'.",
            )
        return asked

    def compared(self, ask: m.AskSweep | m.AskPatches | m.AskContributions) -> m.Compared:
        """The outcome that a request names, or the likeliest before, and the other one."""
        target = self.chosen(ask.target)
        if ask.other is None:
            other = None
        else:
            other = self.chosen(ask.other, "other")
        other_name = None if other is None else self.name(other)
        return m.Compared(target=target, name=self.name(target), other=other, other_name=other_name)

    def other_text(self, runs: Runs, text: str) -> KeptRun:
        """The run of a text with as many tokens."""
        if isinstance(self.loaded, LoadedEncoderDecoder):
            raise InputError(
                "two texts of an encoder-decoder",
                "a decoder or a classifier",
                "Choose another model.",
            )
        found = runs.run(m.Ask(model=self.loaded.card.name, text=text), self.loaded)
        one = len(self.run.message.tokens)
        other = len(found.message.tokens)
        if one != other:
            raise InputError(
                got=f"texts of {one} and {other} tokens",
                expected="as many in both",
                fix="Change words one for one.",
            )
        return found

    @property
    def own_part(self) -> m.Part:
        """The part of the attentions whose queries and keys are tokens."""
        if isinstance(self.loaded, LoadedEncoderDecoder):
            return "decoder"
        return "self"

    def attentions(self, part: m.Part) -> list[AttentionPoint]:
        """The attentions of a part, by layer."""
        return [
            point
            for point in of_kind(self.points, AttentionPoint)
            if part == ("cross" if point.cross else "encoder" if point.source else self.own_part)
        ]

    def attention(self, part: m.Part, layer: int, asked: str) -> AttentionPoint:
        """The attention of a layer."""
        found = {point.layer: point for point in self.attentions(part)}
        parts = ", ".join(stack.part for stack in self.run.message.attentions)
        if len(found) <= 0:
            raise InputError(
                got=f"{asked}: part = {part!r}",
                expected=f"one of {parts}",
                fix="See the attentions of the run.",
            )
        if layer not in found:
            raise InputError(
                got=f"{asked}: layer = {layer}",
                expected=f"0 to {max(found)}",
                fix="Count from 0.",
            )
        return found[layer]


def _distribution(logits: Tensor) -> Float[Tensor, " outcome"]:
    found = logits.detach().double().cpu()
    finite = bool(found.softmax(-1).isfinite().all())
    if not finite:
        raise InputError(
            got="logits that are not finite",
            expected="finite ones",
            fix="Change less, or look for NaN in the weights.",
        )
    return found


def outcomes_of(
    runs: Runs, ask: m.Ask, place: int | None, loaded: LoadedModel | None = None
) -> Outcomes:
    """The outcomes of a run at a position; None: of the output that the run reports."""
    loaded = loaded or runs.model(ask.model)
    if isinstance(loaded, LoadedHead | LoadedProgram):
        raise InputError(
            f"{loaded.card.name!r}, a {loaded.card.kind}",
            "a model that predicts",
            "Choose another one.",
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
        if not place <= last:
            raise InputError(
                got=f"place = {place}",
                expected=f"0 to {last}",
                fix="Name a position of the text.",
            )
    readout = None
    with suppress(InputError):
        readout = readout_of(loaded.model)
    points = find_hook_points(loaded.model)
    return Outcomes(
        loaded, run, run.message.place if place is None else place, points, readout, runs.derived
    )
