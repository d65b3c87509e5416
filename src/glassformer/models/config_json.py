"""Configurations as JSON, both ways."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

from glassformer.errors import InputError

_Config = TypeVar("_Config")


def config_to_json(config: Any) -> str:
    """The fields of a dataclass as a JSON object."""
    return json.dumps(dataclasses.asdict(config), indent=2)


def config_from_json(cls: type[_Config], text: str, **parts: type) -> _Config:
    """The configuration that :func:`config_to_json` wrote.

    Args:
        cls: The dataclass.
        text: Its fields.
        parts: The dataclasses of the fields that are dataclasses themselves, or None.

    Raises:
        InputError: Text that is no JSON object, or names a field that does not exist or misses one that must; or a
            value that the dataclass refuses.
    """
    try:
        fields: dict[str, Any] = json.loads(text)
        for name, part in parts.items():
            if fields.get(name) is not None:
                fields[name] = part(**fields[name])
        return cls(**fields)
    except (json.JSONDecodeError, TypeError, AttributeError) as error:
        known = ", ".join(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
        raise InputError(
            f"a configuration with a fault: {error}", f"JSON with the fields {known}", "Mend it."
        ) from error
