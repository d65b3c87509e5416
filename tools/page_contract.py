"""Contract between Python and the page's TypeScript: message types, the state's schema, bounds.

``python tools/page_contract.py web`` writes ``web/openapi.json``, from which openapi-typescript
makes ``web/src/messages.d.ts``, and ``web/src/contract.json``, which the page reads at run time.
With ``--check`` it only compares the latter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from glassformer.explorer import messages, state
from glassformer.explorer.backend import CALLS
from glassformer.explorer.messages import Message, Refusal

Mode = Literal["validation", "serialization"]


def types() -> dict[str, Any]:
    """An OpenAPI description without paths: schemas of every request and answer, and the state."""
    models: dict[tuple[type[BaseModel], Mode], None] = {(Refusal, "serialization"): None}
    for call in CALLS.values():
        models[call.asked, "validation"] = None
        if issubclass(call.answered, Message):
            models[call.answered, "serialization"] = None
    models[state.State, "serialization"] = None
    _, definitions = models_json_schema(list(models), ref_template="#/components/schemas/{model}")
    info = {"title": "The glassformer explorer", "version": "1"}
    return {
        "openapi": "3.1.0",
        "info": info,
        "paths": {},
        "components": {"schemas": _bare(definitions["$defs"])},
    }


def contract() -> dict[str, Any]:
    """Constants of :mod:`~glassformer.explorer.messages`, and how an address is read."""
    return {
        "TILE": messages.TILE,
        "MOST_CELLS": messages.MOST_CELLS,
        "LARGEST": messages.LARGEST,
        "CELL": state.CELL,
        "SIZE": state.SIZE,
        "NUMBER": state.NUMBER,
        "MOST_DIGITS": state.MOST_DIGITS,
        "PLAIN": state.PLAIN,
        "State": _bare(state.State.model_json_schema()),
    }


def _bare(schema: Any) -> Any:
    """The schema without the models' titles and descriptions; a field of such a name stays."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    texts = {name for name in ("title", "description") if isinstance(schema.get(name), str)}
    return {name: _bare(item) for name, item in schema.items() if name not in texts}


def main(arguments: list[str]) -> int:
    """Write or check the files; returns the exit status."""
    web = Path(arguments[0])
    text = json.dumps(contract(), indent=2) + "\n"
    (web / "openapi.json").write_text(json.dumps(types()), encoding="utf-8")
    if "--check" in arguments:
        current = (web / "src" / "contract.json").read_text(encoding="utf-8") == text
        print("" if current else "web/src/contract.json is out of date: run 'make page'.", end="")
        return not current
    (web / "src" / "contract.json").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
