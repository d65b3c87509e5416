"""Every edit of every model against its formula: random configurations, texts, places and
combinations of edits.
"""

from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
import torch
from edit_cases import KINDS, Case, Subject, case, resolved, sites
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from plain import Place
from torch import Tensor

from glassformer.observe.capture import capture
from glassformer.observe.captured import AXES, Captured, Record
from glassformer.observe.intervene import intervene
from refusals import refused


def close(
    found: Tensor, expected: Tensor, subject: Subject, axes: Any = ("batch", "query")
) -> None:
    """Equal to the subject's tolerance, where the positions mean something."""
    if subject.real is not None:
        for axis in ("query", "key"):
            if axis in axes:
                place = [1] * found.dim()
                place[0], place[axes.index(axis)] = subject.real.shape
                found, expected = (
                    each.masked_fill(~subject.real.view(place), 0.0) for each in (found, expected)
                )
    torch.testing.assert_close(found, expected, rtol=subject.near, atol=subject.near)


def other_run(subject: Subject, asked: list[str]) -> Captured:
    patchable = [site for site in asked if site not in ("sinks", "scores", "weights", "experts")]
    with capture(subject.model, what=patchable) as seen:
        subject.run(subject.theirs)
    return seen


def check(
    subject: Subject, cases: list[Case], nested: int, other: Captured, there: dict[Place, Tensor]
) -> None:
    """The output and every edited site are those of the formula, with the first ``nested`` edits in
    outer blocks.
    """
    forbidden = {"scores": -torch.inf, "weights": 0.0}
    touched = [False] * len(cases)
    keys: list[set[int]] = [set() for _ in cases]
    expected: dict[Place, Tensor] = {}

    def visit(place: Place, tensor: Tensor, choices: Tensor | None) -> Tensor:
        plain = tensor
        for number, one in enumerate(cases):
            if one.site == place.site and place.layer in layers_of(one, place, there):
                tensor, chosen = one.apply(tensor, choices, there[place])
                if place.site in forbidden:  # what is forbidden is not reached
                    chosen = chosen & (plain != forbidden[place.site])
                    reached = chosen.any(0).any(0).any(0)
                    keys[number] |= {
                        key
                        for key in named_keys(one)
                        if -len(reached) <= key < len(reached) and reached[key]
                    }
                touched[number] |= bool(chosen.any())
        if place.site in forbidden:  # what is forbidden stays forbidden
            tensor = tensor.masked_fill(plain == forbidden[place.site], forbidden[place.site])
        expected[place] = tensor
        if place.site == "residual_before" and place.layer == 0:
            expected[place._replace(site="embedding")] = tensor
        return tensor

    output = subject.plainly(visit)
    for number, one in enumerate(cases):
        if one.site in forbidden and one.operation != "forbid":
            touched[number] &= set(named_keys(one)) <= keys[number]
    edits = [one.edit(other) for one in cases]
    watched = sorted({one.site for one in cases} - {"sinks"})
    with ExitStack() as blocks:
        if not all(touched):
            blocks.enter_context(refused("no call reached"))
        for edit in edits[:nested]:
            blocks.enter_context(intervene(subject.model, edit))
        blocks.enter_context(intervene(subject.model, *edits[nested:]))
        if watched:
            seen = blocks.enter_context(capture(subject.model, what=watched))
        found = subject.run()
        close(found, output, subject)
        records = [each for each in seen.records if each.what in watched] if watched else []
        assert {each.what for each in records} == set(watched)
        for record in records:
            values = expected[place_of(record)]
            if record.what == "router":
                values = values / values.sum(-1, keepdim=True)
            found = record.values
            if record.what == "scores":  # transformers' masks of numbers forbid with the lowest
                found = found.masked_fill(found < -1e30, -torch.inf)
            close(found, values.to(found.dtype), subject, AXES[record.what])


def place_of(record: Record) -> Place:
    return Place(record.what, record.layer, record.source, "cross" in record.name)


def named_keys(one: Case) -> list[int]:
    """The keys that are named one by one; those below 0 are others where there are more keys."""
    given = one.where.get("keys")
    return (
        []
        if given is None or isinstance(given, slice)
        else [given]
        if isinstance(given, int)
        else list(given)
    )


def layers_of(one: Case, place: Place, there: dict[Place, Tensor]) -> list[int]:
    count = max(each.layer for each in there if each.source == place.source) + 1
    return resolved(one.where.get("layers", slice(None)), count)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(
    max_examples=4, phases=[Phase.generate], report_multiple_bugs=False
)  # shrinking takes minutes
@torch.no_grad()
def test_edits_are_those_of_the_formulas(kind: str, seed: int) -> None:
    chance = Random(seed)
    subject = KINDS[kind](chance)
    there = subject.record(subject.theirs)
    record = subject.record()
    plain = subject.run()
    close(plain, subject.plainly(lambda place, tensor, choices: tensor), subject)
    other = other_run(subject, sites(record))
    cases = [case(chance, site, record, subject.real is None) for site in sites(record)]
    for one in cases:
        check(subject, [one], 0, other, there)
    # which is the first residual_before
    several = [one for one in cases if one.site != "embedding"]
    if any(
        one.operation == "forbid" for one in several
    ):  # weights of what is forbidden are refused
        several = [one for one in several if one.site != "weights"]
    several = chance.sample(several, min(len(several), chance.randint(2, 4)))
    check(subject, several, chance.randint(0, len(several)), other, there)
    assert torch.equal(subject.run(), plain)
