"""Ways to damage a checkpoint, each of which must be noticed."""

from __future__ import annotations

import json
import os
from typing import Any

from damaged_checkpoint import INDEX, NUMBERS, SETTINGS, SIZES, STRANGE, WEIGHTS, Damage, Damaged, Parts, Random, picked

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


# Which tensors there are.


def missing_tensor(damaged: Damaged, rng: Random) -> list[str]:
    parts, name = picked(damaged, rng)
    parts.remove(name)
    parts.write()
    return [name]


def renamed_tensor(damaged: Damaged, rng: Random) -> list[str]:
    parts, name = picked(damaged, rng)
    new = rng.choice([name + "x", name.upper(), "../" + name, "", "\0", name * 200, "é" + name])
    parts.header[new] = parts.header.pop(name)
    parts.write()
    return [parts.file.name, name]


def unknown_tensor(damaged: Damaged, rng: Random) -> list[str]:
    parts, _ = picked(damaged, rng)
    size = rng.choice([0, 8])
    parts.header["stranger"] = {
        "dtype": "U8",
        "shape": [size],
        "data_offsets": [len(parts.body), len(parts.body) + size],
    }
    parts.body += b"\0" * size
    parts.write()
    return [parts.file.name, "stranger"]


def tensor_twice(damaged: Damaged, rng: Random) -> list[str]:
    """In one header, or in two files."""
    parts, name = picked(damaged, rng)
    pieces = sorted(damaged.directory.glob("*.safetensors"))
    if rng.random() < 0.5 or ((damaged.directory / INDEX).exists() and len(pieces) == 1):
        text = json.dumps(parts.header)[:-1] + f", {json.dumps(name)}: {json.dumps(parts.header[name])}}}"
        parts.write(text.encode())
        return [parts.file.name, name]
    (damaged.directory / INDEX).unlink(missing_ok=True)
    for number, piece in enumerate(pieces):
        piece.rename(damaged.directory / f"part-{number}.safetensors")
    parts.file = damaged.directory / "part-again.safetensors"
    parts.write()
    return ["part-again.safetensors", next(iter(parts.names)).split(".")[0]]


def nan_scale(damaged: Damaged, rng: Random) -> list[str] | None:
    """A byte of 255 among the exponents."""
    files = {file: Parts.of(file) for file in sorted(damaged.directory.glob("*.safetensors"))}
    scales = [(parts, name) for parts in files.values() for name in parts.names if name.endswith("scales")]
    if not scales:
        return None
    parts, name = rng.choice(scales)
    begin, end = parts.header[name]["data_offsets"]
    place = rng.randrange(begin, end)
    parts.body = parts.body[:place] + b"\xff" + parts.body[place + 1 :]
    parts.write()
    return [parts.file.name, name]


def many_layers(damaged: Damaged, rng: Random) -> list[str] | None:
    """Tensors of nothing, and as many layers, or fewer that still may belong to them."""
    config = damaged.config()
    if "num_hidden_layers" not in config or config.get("model_type") == "mixtral":
        return None
    count, layers = rng.choice([(20_000, 20_000), (9_000, 1_000)])
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
    Parts(damaged.directory / WEIGHTS, header, bytes(reached)).write(json.dumps(header, separators=(",", ":")).encode())


# The index.


def wrong_index(damaged: Damaged, rng: Random) -> list[str] | None:
    file = damaged.directory / INDEX
    if not file.exists():
        return None
    index = json.loads(file.read_text())
    places = index["weight_map"]
    name = rng.choice(sorted(places))
    strange = [3, None, [], {}, "", ".", "..", "config.json", "/etc/passwd", "a\0.safetensors", "missing.safetensors"]
    outside = [
        f"../{damaged.elsewhere.name}/{WEIGHTS}",
        str(damaged.elsewhere / WEIGHTS),
        f"{damaged.directory.name}/../../{damaged.elsewhere.name}/{WEIGHTS}",
        f"..\\{damaged.elsewhere.name}\\{WEIGHTS}",
        f"./{places[name]}",
    ]
    change = rng.choice(["place", "place", "other file", "gone", "unknown", "map"])
    if change == "place":
        places[name] = rng.choice([*strange, *outside])
        name = INDEX if places[name] != "missing.safetensors" else "missing.safetensors"
    elif change == "other file":
        places[name] = next(other for other in sorted(set(places.values())) if other != places[name])
    elif change == "gone":
        # The file that holds it is still listed by the others, so nothing is lost: forget the file instead.
        lost = places[name]
        index["weight_map"] = {each: place for each, place in places.items() if place != lost}
    elif change == "unknown":
        places["stranger"] = places[name]
        name = "stranger"
    else:
        index["weight_map"] = rng.choice([None, [], {}, "text", 3])
        name = INDEX
    file.write_text(json.dumps(index))
    return [name]


# The configuration.


def absurd_size(damaged: Damaged, rng: Random) -> list[str]:
    config = damaged.config()
    field = rng.choice(sorted(SIZES & config.keys()))
    values = [
        value for value in [*NUMBERS, *STRANGE, 0, config[field] + 1, config[field] * 2] if value != config[field]
    ]
    config[field] = rng.choice(values)
    damaged.set_config(config)
    return []


def strange_setting(damaged: Damaged, rng: Random) -> list[str]:
    config = damaged.config()
    fields = sorted(SETTINGS & config.keys())
    if "num_experts_per_tok" in fields and "experts_per_token" in fields:
        fields.remove("experts_per_token")  # an old name, which the new one outdoes
    field = rng.choice(fields)
    config[field] = rng.choice(
        [-1, "text", [], {}, -1.5, float("nan"), -float("inf"), True if field != "window" else "x"]
    )
    return damaged.set_config(config)


def other_model(damaged: Damaged, rng: Random) -> list[str]:
    config = damaged.config()
    if "model_type" in config:
        config["model_type"] = rng.choice(["llama", "", 7, None, [], {}, "gpt-oss", "GPT_OSS"])
    else:
        config = rng.choice([{}, {"num_experts": 4}, {**config, "extra": 1}])
    return damaged.set_config(config)


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
    missing_tensor,
    renamed_tensor,
    unknown_tensor,
    tensor_twice,
    nan_scale,
    many_layers,
    many_experts,
    wrong_index,
    absurd_size,
    strange_setting,
    other_model,
]
