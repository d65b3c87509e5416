"""Ways to damage a copy of a checkpoint, each of which must be noticed in little time and memory.

What is wrong in a directory otherwise, and in the header of one file, is tested where it is
checked.
"""

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NUMBERS: list[Any] = [-1, -(2**63), 2**31, 2**40, 2**62, 2**63, 2**64, 10**30]
STRANGE: list[Any] = [
    1.5,
    "64",
    [],
    {},
    [1],
    True,
    False,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e308,
    "",
]
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
Random = random.Random
Damage = Callable[["Damaged", Random], "list[str] | None"]
"""Does it and tells what the message must name; None where this checkpoint has nothing to damage
so.
"""


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
    def of(cls, file: Path) -> "Parts":
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


# Whole files.


def sparse_giant(damaged: Damaged, rng: Random) -> list[str]:
    """A file of 4 TB on no disk, whose header would be half of it."""
    file = damaged.weights(rng)
    with file.open("r+b") as opened:
        opened.truncate(2**42)
        opened.write((2 ** rng.choice([22, 30, 41])).to_bytes(8, "little"))
    return [file.name]


def other_kind_of_file(damaged: Damaged, rng: Random) -> list[str]:
    names = [
        "config.json",
        INDEX if (damaged.directory / INDEX).exists() else WEIGHTS,
        damaged.weights(rng).name,
    ]
    file = damaged.directory / rng.choice(names)
    file.unlink()
    kind = rng.choice(["directory", "pipe", "loop", "dangling", "device", "empty", "memory"])
    if kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "empty":
        file.touch()
    else:
        places = {
            "loop": file,
            "dangling": "/no/such/file",
            "device": "/dev/zero",
            "memory": "/proc/self/maps",
        }
        file.symlink_to(places[kind])
    return [file.name]


def link_outside(damaged: Damaged, rng: Random) -> list[str]:
    files = [
        each
        for each in damaged.directory.glob("*.json")
        if (damaged.elsewhere / each.name).exists()
    ]
    file = rng.choice(sorted(files))
    file.unlink()
    target = damaged.elsewhere / file.name
    file.symlink_to(target if rng.random() < 0.5 else os.path.relpath(target, damaged.directory))
    return [file.name]


def bad_json(damaged: Damaged, rng: Random) -> list[str]:
    """In any of the files that hold some."""
    deep = rng.choice([10**3, 10**5, 10**6])
    texts = [
        b"",
        b"{",
        b"[]",
        b"null",
        b"17",
        b'"text"',
        b"\xff\xfe{}",
        b"{}{}",
        rng.randbytes(200),
        b"[" * deep,
        b'{"a":' * (deep // 5) + b"1" + b"}" * (deep // 5),
        b'{"a": ' + b"9" * 10**5 + b"}",
        b'{"a": 1, "a": 2}',
        b" " * (2**22 + 1),
        b'{"' + b"a" * 2**22 + b'": 1}',
    ]
    text = rng.choice(texts)
    files = [
        file for file in damaged.directory.iterdir() if file.suffix in (".json", ".safetensors")
    ]
    file = rng.choice(sorted(files))
    if file.suffix == ".json":
        file.write_bytes(text)
    else:
        Parts.of(file).write(text)
    return [file.name]


# What a header tells of a tensor.


def huge_tensor(damaged: Damaged, rng: Random) -> list[str]:
    """A tensor of terabytes that the file has room for, on no disk."""
    parts, name = picked(damaged, rng)
    parts.remove(name)
    first = len(parts.body)
    size = 2 ** rng.choice([32, 40])
    parts.header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [first, first + size]}
    parts.write()
    with parts.file.open("r+b") as opened:
        opened.truncate(parts.file.stat().st_size + size)
    return [parts.file.name, name]


# Which tensors there are.


def renamed_tensor(damaged: Damaged, rng: Random) -> list[str]:
    parts, name = picked(damaged, rng)
    new = rng.choice([name + "x", name.upper(), "../" + name, "", "\0", name * 200, "é" + name])
    parts.header[new] = parts.header.pop(name)
    parts.write()
    return [parts.file.name, name]


def many_layers(damaged: Damaged, rng: Random) -> list[str] | None:
    """Tensors of nothing, and as many layers, or fewer that still may belong to them."""
    config = damaged.config()
    if "num_hidden_layers" not in config or config.get("model_type") == "mixtral":
        return None
    count, layers = rng.choice([(20_000, 20_000), (2_000, 200)])
    config.pop("layer_types", None)
    damaged.set_config(config | {"num_hidden_layers": layers})
    nothing = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    _only(damaged, {f"{name}": nothing for name in range(count)}, {"one": 256})
    return []


def many_experts(damaged: Damaged, rng: Random) -> list[str] | None:
    """One tensor of the released form's name that is as large as there are experts."""
    config = damaged.config()
    if config.get("model_type") != "mixtral":
        return None
    experts = rng.choice([2000, 10_000, 10**6])
    damaged.set_config(config | {"num_hidden_layers": 50, "num_local_experts": experts})
    _only(damaged, {}, {**{f"{name}": 1 for name in range(50)}, "x.block_sparse_moe.y": experts})
    return ["config.json"]


def _only(damaged: Damaged, header: dict[str, Any], sizes: dict[str, int]) -> None:
    """Leave one file, with these tensors of bytes behind those of ``header``, which are of nothing."""
    for file in [*damaged.directory.glob("*.safetensors"), damaged.directory / INDEX]:
        file.unlink(missing_ok=True)
    reached = 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [reached, reached + size]}
        reached += size
    Parts(damaged.directory / WEIGHTS, header, bytes(reached)).write(
        json.dumps(header, separators=(",", ":")).encode()
    )


# The configuration.


def absurd_size(damaged: Damaged, rng: Random) -> list[str]:
    config = damaged.config()
    field = rng.choice(sorted(SIZES & config.keys()))
    others = [*NUMBERS, *STRANGE, 0, config[field] + 1, config[field] * 2]
    config[field] = rng.choice([value for value in others if value != config[field]])
    damaged.set_config(config)
    return []


DAMAGES: list[Damage] = [
    sparse_giant,
    other_kind_of_file,
    link_outside,
    bad_json,
    huge_tensor,
    renamed_tensor,
    many_layers,
    many_experts,
    absurd_size,
]
