"""The description of the explorer's calls by which other programs can use them: OpenAPI 3.1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from glassformer import __version__
from glassformer.explorer.messages import Message, Refusal
from glassformer.explorer.messages.calls import CALLS, Call

REFUSALS = {
    400: "The body is no JSON, or not of the form that is described.",
    403: "The request comes from another site's page.",
    404: "There is no model or run of this name.",
    405: "Calls are made with POST.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    415: "The body is not declared as JSON, or is compressed.",
    421: "The request names another host than this server.",
    422: "The request is well formed but cannot be answered: a text that the model cannot read, for example.",
    503: "Too many requests at once.",
}
"""Why a request may be refused, by status; the answer is always a :class:`~glassformer.explorer.messages.Refusal`."""

Mode = Literal["validation", "serialization"]


def description(version: str) -> dict[str, Any]:
    """What ``/api/openapi.json`` says: a POST for every call, with the schemas of its request and its answers.

    Args:
        version: Of the project.
    """
    models: dict[tuple[type[BaseModel], Mode], None] = {(Refusal, "serialization"): None}
    for call in CALLS.values():
        models[call.asked, "validation"] = None
        if issubclass(call.answered, Message):
            models[call.answered, "serialization"] = None
    refs, definitions = models_json_schema(list(models), ref_template="#/components/schemas/{model}")
    refusals = {
        str(status): {
            "description": f"{HTTPStatus(status).phrase}. {reason}",
            "content": {"application/json": {"schema": refs[Refusal, "serialization"]}},
        }
        for status, reason in REFUSALS.items()
    }
    paths = {}
    for name, call in CALLS.items():
        asked = {"schema": refs[call.asked, "validation"]}
        paths[f"/api/{name}"] = {
            "post": {
                "operationId": name,
                "summary": call.summary,
                "requestBody": {"required": True, "content": {"application/json": asked}},
                "responses": {"200": {"description": "The answer.", "content": _content(call, refs)}, **refusals},
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The glassformer explorer",
            "version": version,
            "description": (
                "What the page asks its server. Binary answers are float32 numbers, little-endian, row by row; their "
                "shape follows from the question and from the answer of `run`."
            ),
        },
        "paths": paths,
        "components": {"schemas": definitions["$defs"]},
    }


def _content(call: Call, refs: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    if issubclass(call.answered, bytes):
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    if issubclass(call.answered, str):
        return {"text/html": {"schema": {"type": "string"}}}
    return {"application/json": {"schema": refs[call.answered, "serialization"]}}


if __name__ == "__main__":
    # The page's types are made from it: see the Makefile's `page`.
    print(json.dumps(description(__version__)))
