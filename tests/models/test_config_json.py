"""Configurations to JSON and back: any dataclass, with dataclasses in it, and faults that are named."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from glassformer.errors import require_positive
from glassformer.models.config_json import config_from_json, config_to_json
from refusals import refused


@dataclass(frozen=True)
class Inner:
    size: int

    def __post_init__(self) -> None:
        require_positive(size=self.size)


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner | None = None


@pytest.mark.parametrize("config", [Outer("a"), Outer("b", Inner(3))])
def test_round_trip(config: Outer) -> None:
    text = config_to_json(config)
    assert set(json.loads(text)) == {"name", "inner"}
    assert config_from_json(Outer, text, inner=Inner) == config


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "a configuration with a fault"),
        ("[]", "a configuration with a fault"),
        ('"text"', "a configuration with a fault"),
        ("{}", "JSON with the fields name, inner"),
        ('{"name": "a", "colour": 1}', "colour"),
        ('{"name": "a", "inner": {"width": 1}}', "width"),
        ('{"name": "a", "inner": 3}', "a configuration with a fault"),
        ('{"name": "a", "inner": {"size": 0}}', "size = 0"),
    ],
)
def test_faults_are_named(text: str, match: str) -> None:
    with refused(match):
        config_from_json(Outer, text, inner=Inner)
