"""Ways to damage a checkpoint whose files are in order: its tensors, its index, its configuration."""

from __future__ import annotations

import json
from typing import Any

from damaged_checkpoint import INDEX, NUMBERS, SETTINGS, SIZES, STRANGE, WEIGHTS, Damage, Damaged, Parts, Random, picked

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
    parts.header["intruder"] = {
        "dtype": "U8",
        "shape": [size],
        "data_offsets": [len(parts.body), len(parts.body) + size],
    }
    parts.body += b"\0" * size
    parts.write()
    return [parts.file.name, "intruder"]


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
        places["intruder"] = places[name]
        name = "intruder"
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


CONTENTS: list[Damage] = [
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
