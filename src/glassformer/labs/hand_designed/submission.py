"""The log that the course collects: outputs for its own seeds, the designed weights, the source of the PyTorch twin."""

from __future__ import annotations

import inspect
import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import torch
from jaxtyping import Float

from glassformer.errors import InputError
from glassformer.files import write_text
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed.cases import (
    LETTERS,
    generate_test_cases_first,
    generate_test_cases_identity,
)
from glassformer.labs.hand_designed.course_training import set_random_seed
from glassformer.labs.hand_designed.exercises import NumpyTransformer, PytorchTransformer

# The course's cells name these seeds and sizes.
_TORCH_SEED, _CONTENT_SEED, _POSITION_SEED = 1998, 1997, 2017
_SIZES = {"input_dim": 7, "qk_dim": 4, "v_dim": 3, "pos_dim": 2, "max_seq_len": 9}
_LENGTH = 8
_LONGEST = {"attention_by_content": 6, "attention_by_position": 4}


def submission() -> dict[str, Any]:
    """Every entry of the course's log, matrices row by row as flat lists.

    The global random generators start anew from the course's seeds, once for each part.
    """
    content, position = (design(TASKS[task]()).weights for task in ("identity", "copy_first"))
    set_random_seed(_TORCH_SEED)
    transformer = PytorchTransformer(**_SIZES)
    with torch.no_grad():
        out: Float[torch.Tensor, "position v_dim"] = transformer(torch.randn(_LENGTH, _SIZES["input_dim"]))
    log: dict[str, Any] = {
        "time": time.time(),
        "torch_transformer_shape": list(out.shape),
        "torch_transformer_value": out.flatten().tolist()[2:7],
        "torch_transformer_init": inspect.getsource(PytorchTransformer.__init__),
        "torch_transformer_forward": inspect.getsource(PytorchTransformer.forward),
    }
    for name, weights, task, make, seed in (
        ("attention_by_content", content, "identity", generate_test_cases_identity, _CONTENT_SEED),
        ("attention_by_position", position, "copy_first", generate_test_cases_first, _POSITION_SEED),
    ):
        set_random_seed(seed)
        sequence, _ = make(LETTERS[task])
        log[name] = NumpyTransformer(**weights.matrices).forward(sequence).flatten().tolist()
        log |= {f"{name}_{key}": matrix.flatten().tolist() for key, matrix in _named(weights).items()}
    validate(log, content, position)
    return log


def write_submission(path: Path) -> Path:
    """Write :func:`submission` to ``path`` as JSON, whole or not at all; returns ``path``."""
    write_text(path, json.dumps(submission(), indent=1, allow_nan=False) + "\n")
    return path


def validate(log: dict[str, Any], content: HeadWeights, position: HeadWeights) -> None:
    """Check that ``log`` has the course's entries and no others, with the lengths that the weights imply.

    Args:
        log: What is to be handed in.
        content: The weights by content, of the identity task.
        position: The weights by position, of copying the first token.

    Raises:
        InputError: Naming the first entry that is missing, unknown, or of another type or length.
    """
    checker = jsonschema.Draft202012Validator(schema(content, position))
    error = jsonschema.exceptions.best_match(checker.iter_errors(log))
    if error is not None:
        raise InputError(
            f"a submission log with {error.json_path}: {error.message[:200]}",
            "the course's entries, each with the length that its matrices imply",
            "Make it with submission().",
        )


def schema(content: HeadWeights, position: HeadWeights) -> dict[str, Any]:
    """The JSON Schema of the log for heads of these shapes."""
    entries: dict[str, Any] = {
        "time": {"type": "number", "exclusiveMinimum": 0},
        "torch_transformer_shape": {"const": [_LENGTH, _SIZES["v_dim"]]},
        "torch_transformer_value": _numbers(5),
        "torch_transformer_init": {"type": "string", "pattern": r"^\s*def __init__\("},
        "torch_transformer_forward": {"type": "string", "pattern": r"^\s*def forward\("},
    }
    for name, weights in (("attention_by_content", content), ("attention_by_position", position)):
        lengths = [weights.v_dim * length for length in range(1, _LONGEST[name] + 1)]
        entries[name] = {"anyOf": [_numbers(length) for length in lengths]}
        entries |= {f"{name}_{key}": _numbers(matrix.size) for key, matrix in _named(weights).items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": entries,
        "required": list(entries),
        "additionalProperties": False,
    }


def _named(weights: HeadWeights) -> dict[str, Float[Any, "row column"]]:
    """The matrices under the names that the course's log gives them."""
    return {key.removesuffix("m"): matrix for key, matrix in weights.matrices.items()}


def _numbers(count: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "number"}, "minItems": count, "maxItems": count}
