"""Ways to damage a checkpoint, each of which must be noticed: its files and their headers, and then what they hold."""

from __future__ import annotations

import os
from typing import Any

from damaged_checkpoint import INDEX, NUMBERS, STRANGE, WEIGHTS, Damage, Damaged, Parts, Random, picked
from damaged_contents import CONTENTS

# Whole files.


def truncated(damaged: Damaged, rng: Random) -> list[str]:
    file = damaged.weights(rng)
    raw = file.read_bytes()
    file.write_bytes(raw[: rng.choice([0, 1, 7, 8, 9, len(raw) - 1, rng.randrange(len(raw))])])
    return [file.name]


def prolonged(damaged: Damaged, rng: Random) -> list[str]:
    file = damaged.weights(rng)
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.choice([1, 8, 1000])))
    return [file.name]


def wrong_header_size(damaged: Damaged, rng: Random) -> list[str]:
    file = damaged.weights(rng)
    raw = file.read_bytes()
    right = int.from_bytes(raw[:8], "little")
    sizes = {0, 1, right - 1, right + 1, len(raw), len(raw) - 8, 2**22, 2**22 + 1, 2**32, 2**63, 2**64 - 1}
    size = rng.choice([*sorted(sizes - {right}), rng.randrange(2**64)])
    file.write_bytes(size.to_bytes(8, "little") + raw[8:])
    return [file.name]


def sparse_giant(damaged: Damaged, rng: Random) -> list[str]:
    """A file of 4 TB on no disk, whose header would be half of it."""
    file = damaged.weights(rng)
    with file.open("r+b") as opened:
        opened.truncate(2**42)
        opened.write((2 ** rng.choice([22, 30, 41])).to_bytes(8, "little"))
    return [file.name]


def no_file(damaged: Damaged, rng: Random) -> list[str]:
    file = rng.choice([damaged.weights(rng), damaged.directory / "config.json"])
    file.unlink()
    return [file.name] if not (damaged.directory / INDEX).exists() or file.name == "config.json" else ["no file"]


def other_kind_of_file(damaged: Damaged, rng: Random) -> list[str]:
    names = ["config.json", INDEX if (damaged.directory / INDEX).exists() else WEIGHTS, damaged.weights(rng).name]
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
        places = {"loop": file, "dangling": "/no/such/file", "device": "/dev/zero", "memory": "/proc/self/maps"}
        file.symlink_to(places[kind])
    return [file.name]


def link_outside(damaged: Damaged, rng: Random) -> list[str]:
    files = [each for each in damaged.directory.iterdir() if (damaged.elsewhere / each.name).exists()]
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
    files = [file for file in damaged.directory.iterdir() if file.suffix in (".json", ".safetensors")]
    file = rng.choice(sorted(files))
    if file.suffix == ".json":
        file.write_bytes(text)
    else:
        Parts.of(file).write(text)
    return [file.name]


# What a header tells of a tensor.


def strange_entry(damaged: Damaged, rng: Random) -> list[str]:
    parts, name = picked(damaged, rng)
    entry = parts.header[name]
    field = rng.choice(sorted(entry))
    change = rng.choice(["gone", "strange", "no object"])
    if change == "gone":
        del entry[field]
    elif change == "strange":
        entry[field] = rng.choice([value for value in [*STRANGE, None, *NUMBERS] if value != [] or field != "shape"])
    else:
        parts.header[name] = rng.choice([None, [], "BF16", 3])
    parts.write()
    return [parts.file.name, name]


def wrong_dtype(damaged: Damaged, rng: Random) -> list[str]:
    parts, name = picked(damaged, rng)
    same_size = {"BF16": ["I16", "U16"], "F32": ["I32", "U32"], "U8": ["I8", "BOOL", "F8_E4M3", "F8_E8M0"]}
    kind = parts.header[name]["dtype"]
    others = ["F64", "C64", "I64", "F4", "F128", "bf16", "", "float32", "U128"]
    parts.header[name]["dtype"] = rng.choice([*same_size[kind], *others])
    parts.write()
    return [parts.file.name, name]


def absurd_shape(damaged: Damaged, rng: Random) -> list[str]:
    parts, name = picked(damaged, rng)
    shape = parts.header[name]["shape"]
    count = 1
    for size in shape:
        count *= size
    shapes: list[list[Any]] = [
        [2**62, 2**62],
        [2**31, 2**31, 4],
        [-1],
        [-count, -1],
        [*shape, 1],
        [1, *shape],
        [1] * 17 + shape,
        [1] * 10**4,
        [count, 1, 1],
        [0],
        [0, 2**62],
        [],
        [count + 1],
        [float(size) for size in shape],
        [2**64 + size for size in shape],
        [rng.randrange(2**40) for _ in shape],
    ]
    parts.header[name]["shape"] = rng.choice([each for each in shapes if each != shape])
    parts.write()
    return [parts.file.name, name]


def wrong_offsets(damaged: Damaged, rng: Random) -> list[str]:
    """Overlaps, gaps, places beyond the file: the message may name the neighbour."""
    parts, name = picked(damaged, rng)
    begin, end = parts.header[name]["data_offsets"]
    size, total = end - begin, len(parts.body)
    choices = [
        [begin + 1, end + 1],
        [begin - 1, end - 1],
        [total, total + size],
        [total - size + 1, total + 1],
        [end, begin],
        [begin, end + 1],
        [begin, begin],
        [2**63, 2**63 + size],
        [2**62, 2**62 + size],
        [-size, 0],
        [begin],
        [begin, end, end],
        [float(begin), float(end)],
        [0, total],
    ]
    parts.header[name]["data_offsets"] = rng.choice([each for each in choices if each != [begin, end]])
    parts.write()
    return [parts.file.name]


def overlapping(damaged: Damaged, rng: Random) -> list[str] | None:
    """Two tensors of one size at one place, and a body that is filled."""
    parts, name = picked(damaged, rng)
    begin, end = parts.header[name]["data_offsets"]
    size = end - begin
    others = [
        n
        for n in parts.names
        if n != name and parts.header[n]["data_offsets"][1] - parts.header[n]["data_offsets"][0] == size
    ]
    if not others:
        return None
    parts.header[name]["data_offsets"] = list(parts.header[rng.choice(others)]["data_offsets"])
    parts.write()
    return [parts.file.name]


def huge_tensor(damaged: Damaged, rng: Random) -> list[str]:
    """A tensor of terabytes that the file has room for, on no disk."""
    parts, name = picked(damaged, rng)
    parts.remove(name)
    first, size = len(parts.body), 2 ** rng.choice([32, 40])
    parts.header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [first, first + size]}
    parts.write()
    with parts.file.open("r+b") as opened:
        opened.truncate(parts.file.stat().st_size + size)
    return [parts.file.name, name]


DAMAGES: list[Damage] = [
    truncated,
    prolonged,
    wrong_header_size,
    sparse_giant,
    no_file,
    other_kind_of_file,
    link_outside,
    bad_json,
    strange_entry,
    wrong_dtype,
    absurd_shape,
    wrong_offsets,
    overlapping,
    huge_tensor,
    *CONTENTS,
]
