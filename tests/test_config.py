"""Configurations: strict types, bounds, faults that are named, JSON both ways."""

import dataclasses
import json
import re
from typing import Any, Literal

import pytest

from glassformer.config import Config, Positive, Probability, Size, config
from glassformer.errors import InputError
from refusals import refused

pytestmark = pytest.mark.usefixtures("without_type_checks")


@config
class Inner(Config):
    size: Size
    limit: Positive = 1.0


@config
class Outer(Config):
    name: str
    width: Size = 4
    eps: Positive = 1e-5
    dropout: Probability = 0.0
    flag: bool = False
    heads: Size | None = None
    inner: Inner | None = None
    layers: Literal["odd", "even"] | tuple[int, ...] = "odd"

    def __post_init__(self) -> None:
        heads = self.heads
        if heads is not None and self.width % heads != 0:
            raise InputError(f"heads = {heads}", "a divisor of width", "Change heads.")


@pytest.mark.parametrize("made", [Outer("a"), Outer("b", 6, 1, 0.5, True, 3, Inner(3), (0, 2))])
def test_json_both_ways(made: Outer) -> None:
    assert set(json.loads(made.to_json())) == {field.name for field in dataclasses.fields(Outer)}
    assert Outer.from_json(made.to_json()) == made
    assert hash(dataclasses.replace(made)) == hash(made)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Outer("a").width = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("width", value) for value in (0, -1, True, 2.0, "4", None)],
        *[("eps", value) for value in (0, -1e-5, True, float("inf"), float("nan"), "1e-5", None)],
        *[("dropout", value) for value in (-0.1, 1.0, float("nan"), False)],
        *[("flag", value) for value in ("no", 0, 1, None)],
        *[("heads", value) for value in (0, True, 3, "2")],
        *[("inner", value) for value in ({"size": 2}, 3, "x")],
        *[("layers", value) for value in ("all", (0, "a"), [0, 1], 3)],
        ("name", 3),
    ],
)
def test_a_value_of_another_type_or_beyond_its_bounds_is_refused(field: str, value: Any) -> None:
    with refused(f"^{field}", fix=field):
        Outer(**{"name": "a", field: value})


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("{", "'{'"),
        ("[]", "[]"),
        ('"text"', "'text'"),
        ("{}", "no name"),
        ('{"name": "a", "colour": 1}', "unknown field colour"),
        ('{"name": "a", "inner": {"size": 1, "width": 1}}', "unknown field inner.width"),
        ('{"name": "a", "inner": {}}', "no inner.size"),
        ('{"name": "a", "inner": 3}', "inner = 3"),
        ('{"name": "a", "inner": {"size": 0}}', "inner.size = 0"),
        ('{"name": "a", "eps": 1e400}', "eps = inf"),
    ],
)
def test_faults_of_json_are_named(text: str, got: str) -> None:
    with refused(re.escape(got)):
        Outer.from_json(text)


def test_unknown_missing_and_positional_arguments_are_named() -> None:
    with refused("colour"):
        Outer("a", colour=1)  # type: ignore[call-arg]
    with refused("^no name$"):
        Outer()  # type: ignore[call-arg]
    with refused("^width = 0$"):
        Outer("a", 0)
