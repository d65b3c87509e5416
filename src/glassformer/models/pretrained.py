"""The functions that read and write a model's files.

``checkpoints`` is built on ``models``, so ``from_pretrained`` and ``save_pretrained`` look their function up by name
when they are called.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, Literal

_FUNCTIONS = {
    "load_decoder": "glassformer.checkpoints.decoders:load_decoder",
    "save_decoder": "glassformer.checkpoints.decoders:save_decoder",
    "load_encoder": "glassformer.checkpoints.bert:load_encoder",
}


def file_function(name: Literal["load_decoder", "save_decoder", "load_encoder"]) -> Callable[..., Any]:
    """The function of :mod:`glassformer.checkpoints` with this name."""
    function: Callable[..., Any] = pkgutil.resolve_name(_FUNCTIONS[name])
    return function
