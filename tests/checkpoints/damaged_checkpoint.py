"""A copy of a checkpoint, taken apart to be damaged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NUMBERS: list[Any] = [-1, -(2**63), 2**31, 2**40, 2**62, 2**63, 2**64, 10**30]
STRANGE: list[Any] = [1.5, "64", [], {}, [1], True, False, float("nan"), float("inf"), -float("inf"), 1e308, ""]
SIZES = {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_local_experts",
    "num_experts",
    "vocab_size",
    "head_dim",
    "num_attention_heads",
    "num_key_value_heads",
    "num_layers",
    "hidden_dim",
    "ff_dim",
    "num_heads",
    "num_kv_heads",
}
SETTINGS = {
    "rms_norm_eps",
    "rope_theta",
    "norm_eps",
    "rope_base",
    "top_k",
    "num_experts_per_tok",
    "experts_per_token",
    "max_position_embeddings",
    "max_seq_len",
    "sliding_window",
    "window",
}
Random = random.Random
Damage = Callable[["Damaged", Random], "list[str] | None"]
"""Does it and tells what the message must name; None where this checkpoint has nothing to damage so."""


@dataclass
class Damaged:
    """A copy of a checkpoint, to be damaged. ``elsewhere`` is an intact one outside."""

    directory: Path
    elsewhere: Path

    def weights(self, rng: Random) -> Path:
        return rng.choice(sorted(self.directory.glob("*.safetensors")))

    def config(self) -> dict[str, Any]:
        return json.loads((self.directory / "config.json").read_text())

    def set_config(self, config: Any) -> list[str]:
        (self.directory / "config.json").write_text(json.dumps(config))
        return ["config.json"]


@dataclass
class Parts:
    """A safetensors file taken apart."""

    file: Path
    header: dict[str, Any]
    body: bytes

    @classmethod
    def of(cls, file: Path) -> Parts:
        raw = file.read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        return cls(file, json.loads(raw[8:end]), raw[end:])

    @property
    def names(self) -> list[str]:
        return [name for name in self.header if name != "__metadata__"]

    def write(self, text: bytes | None = None) -> None:
        text = json.dumps(self.header).encode() if text is None else text
        self.file.write_bytes(len(text).to_bytes(8, "little") + text + self.body)

    def remove(self, name: str) -> None:
        begin, end = self.header.pop(name)["data_offsets"]
        self.body = self.body[:begin] + self.body[end:]
        for other in self.names:
            offsets = self.header[other]["data_offsets"]
            if offsets[0] >= end:
                self.header[other]["data_offsets"] = [each - (end - begin) for each in offsets]


def picked(damaged: Damaged, rng: Random) -> tuple[Parts, str]:
    parts = Parts.of(damaged.weights(rng))
    return parts, rng.choice(parts.names)
