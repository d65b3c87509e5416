"""The description says what there is: every call, with the types that it is asked with and answered
with.
"""

import json
from typing import Any

import jsonschema
import pytest

import glassformer
from glassformer.explorer.backend import CALLS, Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.messages import Message
from glassformer.explorer.server import REFUSALS, create_api

DESCRIBED = create_api(Backend(bundled())).openapi()


def schema(part: dict[str, Any]) -> dict[str, Any]:
    """A schema that stands for itself, its parts beside it."""
    return {**part, "components": DESCRIBED["components"]}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_described_by_its_types(name: str) -> None:
    (method,) = DESCRIBED["paths"][f"/api/{name}"].values()
    asked = method["requestBody"]["content"]["application/json"]["schema"]
    assert asked == {"$ref": f"#/components/schemas/{CALLS[name].asked.__name__}"}
    (media,) = method["responses"]["200"]["content"]
    answered = CALLS[name].answered
    expected = {bytes: "application/octet-stream", str: "text/html"}.get(
        answered, "application/json"
    )
    assert media == expected
    if issubclass(answered, Message):
        assert method["responses"]["200"]["content"][media]["schema"]["$ref"].endswith(
            f"/{answered.__name__}"
        )
    assert set(method["responses"]) == {"200", *map(str, REFUSALS)}


def test_there_is_nothing_else() -> None:
    assert set(DESCRIBED["paths"]) == {f"/api/{name}" for name in CALLS}
    assert DESCRIBED["info"]["version"] == glassformer.__version__


def test_no_reference_leads_nowhere() -> None:
    text = json.dumps(DESCRIBED)
    for each in text.split('"$ref": "')[1:]:
        name = each.partition('"')[0].removeprefix("#/components/schemas/")
        assert name in DESCRIBED["components"]["schemas"]
    # The page's own types are made from these names.
    assert all(name.isidentifier() for name in DESCRIBED["components"]["schemas"])


@pytest.mark.parametrize(
    ("name", "request_", "fits"),
    [
        ("models", {}, True),
        ("models", {"a": 1}, False),
        ("run", {"model": "a", "text": "b"}, True),
        ("run", {"model": "../a", "text": "b"}, False),
        ("run", {"model": "a"}, False),
        ("weights", {"run": "r", "part": "self", "layer": 0, "head": 4095}, True),
        ("weights", {"run": "r", "part": "self", "layer": 0, "head": 4096}, False),
        ("weights", {"run": "r", "part": "self", "layer": 0.0, "head": 3.0}, True),
        ("weights", {"run": "r", "part": "self", "layer": 0.5, "head": 3}, False),
        ("weights", {"run": "r", "part": "self", "layer": 0, "head": True}, False),
        ("weights", {"run": "r", "part": "self", "layer": 0, "head": "1"}, False),
        ("weights", {"run": "r", "part": "other", "layer": 0, "head": 0}, False),
        ("next", {"model": "a", "text": "b", "top_p": 1.5}, False),
        ("next", {"model": "a", "text": "b", "top_p": "1"}, False),
        ("page", {"state": {"a": "b"}}, True),
        ("page", {"state": {"a": 1}}, False),
    ],
)
def test_a_schema_says_what_is_taken(name: str, request_: dict[str, Any], fits: bool) -> None:
    part = DESCRIBED["paths"][f"/api/{name}"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert jsonschema.Draft202012Validator(schema(part)).is_valid(request_) == fits
    try:
        CALLS[name].asked.model_validate_json(json.dumps(request_), strict=True)
        taken = True
    except ValueError:
        taken = False
    assert taken == fits
