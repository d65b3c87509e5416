"""Schemathesis against a real server: what the description allows is taken, what it forbids is refused, all as it says.

Of itself it would hardly ever hit the name of a model or of a run, so requests that fit the description get names and
texts that there are, as often as not.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from glassformer.explorer.backend import Backend
from glassformer.explorer.messages import Ask, Run

schemathesis = pytest.importorskip("schemathesis")
events = pytest.importorskip("schemathesis.engine.events")
from_schema = pytest.importorskip("schemathesis.engine").from_schema

TEXTS = {"decoder": ["1 2 3", "0", "4 4 4 4 4 4"], "lookup": ["4", "1 2"], "ordered": ["7"]}
SOURCES = [["1", "2"], ["1", "2", "3", "4"], ["5"], ["6", "6"], []]
TAKEN = ["2xx", 404, 413, 422]
"""What a request that fits the description may be answered with: names and texts may suit no model, and be too long."""
REFUSED = [400, 404, 405, 413, 415, 422]
"""What one that does not fit it has to be answered with."""


@pytest.fixture(scope="module")
def runs(small_backend: Backend) -> list[str]:
    """Runs that have been made."""
    asks = [Ask(model="decoder", text="1 2 3 4"), Ask(model="lookup", text="4", source=["1", "2"])]
    made = [small_backend.answer("run", ask) for ask in asks]
    return [run.run for run in made if isinstance(run, Run)]


@pytest.fixture(scope="module")
def violations(small_server: int, runs: list[str], small_backend: Backend) -> Callable[..., tuple[list[str], int]]:
    """What a server does otherwise than its own description says, and how many requests were made to find out."""

    def find(**settings: Any) -> tuple[list[str], int]:
        checks = {
            "positive_data_acceptance": {"expected-statuses": TAKEN},
            "negative_data_rejection": {"expected-statuses": REFUSED},
        }
        config = schemathesis.Config.from_dict({"seed": 1, "request-timeout": 120, "checks": checks, **settings})
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{small_server}/api/openapi.json", config=config)

        @schema.hook("map_case")
        def known(context: Any, case: Any) -> Any:
            if case.meta is not None and case.meta.generation.mode.is_positive and isinstance(case.body, dict):
                case.body = with_known_names(case.body, list(small_backend.entries), runs)
            return case

        return run_of(schema)

    return find


def run_of(schema: Any) -> tuple[list[str], int]:
    """The faults that Schemathesis found, and the requests that it made."""
    faults, requests = [], 0
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            faults.append(str(event))
        if isinstance(event, events.ScenarioFinished):
            requests += len(event.recorder.interactions)
            for case, checks in event.recorder.checks.items():
                asked = event.recorder.interactions[case]
                faults += [
                    f"{event.recorder.label} {check.name}: {asked.request.body!r} -> {asked.response.content!r}"
                    for check in checks
                    if check.failure_info is not None
                ]
    return faults, requests


def with_known_names(body: dict[str, Any], models: list[str], runs: list[str]) -> dict[str, Any]:
    """The same request of something that there is, chosen by what it says."""
    draw = random.Random(zlib.crc32(json.dumps(body, sort_keys=True).encode()))
    changed = dict(body)
    if isinstance(body.get("ask"), dict):
        changed["ask"] = with_known_names(body["ask"], models, [])
        for name in ("removed", "forbidden", "swaps"):
            if isinstance(body.get(name), list):
                changed[name] = [_there(edit, draw) for edit in body[name]]
        if isinstance(body.get("steer"), dict):
            changed["steer"] = _there(body["steer"], draw)
        changed |= _there({name: body[name] for name in ("place", "target", "other") if name in body}, draw)
    if "model" in body and draw.random() < 0.8:
        changed["model"] = draw.choice(models)
        changed["text"] = draw.choice(TEXTS.get(changed["model"], ["A", "CAB", "ABCC"]))
        if isinstance(body.get("source"), list):
            changed["source"] = draw.choice(SOURCES)
    if "run" in body and draw.random() < 0.8:
        changed["run"] = draw.choice(runs)
        for index in ("layer", "head", "query", "row", "column", "level"):
            if isinstance(body.get(index), int):
                changed[index] = draw.choice([0, 1, body[index]])
    return {name: value for name, value in changed.items() if name in body}


def _there(values: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """The same with indices that small models have, as often as not."""
    small = {name: draw.choice([0, 1, each]) if type(each) is int else each for name, each in values.items()}
    return {**small, "part": draw.choice(["self", "cross", values["part"]])} if "part" in values else small


@pytest.mark.slow
@pytest.mark.parametrize("long", [False, True])
def test_every_call_keeps_to_its_description(violations: Callable[..., tuple[list[str], int]], long: bool) -> None:
    # GLASSFORMER_CONTRACT_SECONDS=300 looks for five minutes.
    seconds = int(os.environ.get("GLASSFORMER_CONTRACT_SECONDS", "40"))
    quick = {"phases": {"coverage": {"enabled": False}, "stateful": {"enabled": False}}}
    settings = {"max-time": seconds, "generation": {"max-examples": 10 * seconds}} if long else quick
    faults, requests = violations(**{"generation": {"max-examples": 8}, **settings})
    assert faults == []
    assert requests > (100 if long else 50)
