"""``glassformer info``: what a directory of weights contains and whether this machine can load it."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from glassformer.checkpoints.description import Description, describe
from glassformer.cli.flags import InfoFlags
from glassformer.cli.terminal import count, say
from glassformer.kernels import native
from glassformer.layers.options import Yarn
from glassformer.layers.quantized import Pack
from glassformer.memory import process_memory
from glassformer.models import DecoderConfig
from glassformer.text import byte_size

_CACHED_TOKENS = 4096


@dataclass(frozen=True)
class Machine:
    """Memory and kernel of this machine."""

    memory: int | None
    """Bytes that this process may take in total; None if the system does not report it."""
    free: int | None
    """The part of them that is free now; the file cache counts as free."""
    kernel: str | None
    """Instruction set of the MXFP4 kernel; None: no kernel, or no experts that need it."""
    without_kernel: str | None
    """Why there is no kernel, so that torch's operators are used; None if not asked for."""


def this_machine(kernel: bool = True) -> Machine:
    """Measure it. With ``kernel``, load the MXFP4 kernel too; building it the first time takes some
    seconds.
    """
    found, problem = native.look() if kernel else (None, None)
    level = None if found is None else native.LEVELS[found.level]
    memory = process_memory()
    return Machine(memory.total, memory.free, level, problem if found is None else None)


def as_json(found: Description, machine: Machine) -> dict[str, Any]:
    """Everything, as numbers."""
    return {
        "directory": str(found.path),
        "family": found.family,
        "layout": found.layout,
        "experts": found.experts,
        "parameters": {"total": found.total, "active_per_token": found.active, **found.parameters},
        "stored_bytes": {"total": sum(found.stored_bytes.values()), **found.stored_bytes},
        "files": found.num_files,
        "kinds": {
            kind: {"tensors": number, "bytes": size} for kind, (number, size) in found.kinds.items()
        },
        "windows": _windows(found),
        "memory_bytes": _memory(found),
        "cache_bytes": {str(_cached_tokens(found)): found.cache(_cached_tokens(found))},
        "machine": dataclasses.asdict(machine),
        "config": json.loads(found.config.to_json()),
    }


def as_text(found: Description, machine: Machine) -> str:
    """The same as text."""
    lines = [f"{found.path}: {found.family} in {found.layout}'s layout", ""]
    lines += [f"  {name:<14}{value}" for name, value in _form(found) if value]
    lines += [
        "",
        f"  {'':<16}{'parameters':>12}{'on disk':>12}",
        *(
            f"  {part:<16}{count(number):>12}{byte_size(found.stored_bytes.get(part, 0)):>12}"
            for part, number in sorted(found.parameters.items(), key=lambda item: -item[1])
        ),
        f"  {'total':<16}{count(found.total):>12}{byte_size(sum(found.stored_bytes.values())):>12}"
        f"   in {found.num_files} file{'s' if found.num_files > 1 else ''}",
        f"  {'active':<16}{count(found.active):>12}   for each token",
        "",
        *(
            f"  {name:<22}{byte_size(size):>12}{_fits(size, machine)}"
            for name, size in _memory(found).items()
        ),
    ]
    tokens = _cached_tokens(found)
    if cache := found.cache(tokens):
        lines.append(
            f"  {f'cache, {tokens:,} tokens':<22}{byte_size(cache):>12}   in 16 bits; twice in 32"
        )
    if machine.memory is not None:
        if machine.free is None:
            free = ""
        else:
            free = f"   {byte_size(machine.free)} of it free"
        lines.append(f"  {'this process may take':<22}{byte_size(machine.memory):>12}{free}")
    if found.experts is not None:
        lines += ["", f"  MXFP4 kernel: {machine.kernel or machine.without_kernel}"]
    return "\n".join(lines)


def main(flags: InfoFlags) -> int:
    """Print what the directory contains."""
    # Of a directory on the hub no weights are downloaded.
    found = describe(flags.directory, download=False)
    machine = this_machine(kernel=found.experts is not None)
    if flags.json:
        print(json.dumps(as_json(found, machine), indent=2))
    else:
        say(as_text(found, machine))
    return 0


def _form(found: Description) -> list[tuple[str, str]]:
    config = found.config
    if not isinstance(config, DecoderConfig):
        return [
            (
                "layers",
                f"{config.num_layers}, {config.hidden_dim:,} wide, {config.ff_dim:,} inside",
            ),
            ("heads", f"{config.num_heads} of width {config.hidden_dim // config.num_heads}"),
            ("context", f"{config.max_seq_len:,} tokens"),
            ("vocabulary", f"{config.vocab_size:,}"),
        ]
    kv = config.num_kv_heads or config.num_heads
    windowed = [layer for layer, window in enumerate(_windows(found)) if window is not None]
    yarn = None
    if isinstance(config.rope_scaling, Yarn):
        yarn = config.rope_scaling
    if yarn:
        stretch = f", {yarn.factor:g} times {yarn.original_max_seq_len:,} by YaRN"
    else:
        stretch = ""
    formats = {"mxfp4": "as MXFP4", "dense": "as numbers"}
    if found.layout == "GGUF":
        held = "as in the file"
    else:
        held = formats[config.expert_format]
    experts = (
        f"{config.num_experts} of width {config.ff_dim:,}, {config.top_k} for each token, {held}"
    )
    return [
        ("layers", f"{config.num_layers}, {config.hidden_dim:,} wide"),
        ("heads", f"{config.num_heads} of width {config.head_dim}, {kv} for keys and values"),
        ("experts", "" if config.num_experts is None else experts),
        (
            "feed-forward",
            f"{config.ff_dim:,} wide" if config.num_experts is None and config.ff_dim else "",
        ),
        (
            "windows",
            f"{config.window:,} tokens in {_listed(windowed, config.num_layers)}"
            if windowed
            else "none",
        ),
        ("context", f"{config.max_seq_len:,} tokens{stretch}"),
        ("vocabulary", f"{config.vocab_size:,}"),
        (
            "weights",
            ", ".join(
                f"{n} {kind} ({byte_size(size)})" for kind, (n, size) in sorted(found.kinds.items())
            ),
        ),
    ]


def _cached_tokens(found: Description) -> int:
    """Return how many tokens the cache is measured for: the model's context, up to a usual length."""
    return min(_CACHED_TOKENS, found.config.max_seq_len)


def _windows(found: Description) -> list[int | None]:
    config = found.config
    if not isinstance(config, DecoderConfig):
        return [None] * config.num_layers
    return [config.layer_window(layer) for layer in range(config.num_layers)]


def _listed(windowed: list[int], layers: int) -> str:
    if len(windowed) == layers:
        return "all layers"
    listed: Sequence[object]
    if len(windowed) <= 4:
        listed = windowed
    else:
        listed = [*windowed[:2], "...", windowed[-1]]
    return f"layers {', '.join(map(str, listed))}"


def _memory(found: Description) -> dict[str, int]:
    """Memory for loading, by number format."""
    ways = {
        "as in the file": found.held,
        "experts packed": found.memory(2, packed=True) if found.experts else None,
        **{
            f"with --pack {pack}": found.memory(2, packed=found.experts == "mxfp4", pack=pack)
            for pack in get_args(Pack)
            if found.layout != "GGUF" and isinstance(found.config, DecoderConfig)
        },
        "all in bfloat16": found.memory(2),
        "all in float32": found.memory(4),
    }
    return {name: size for name, size in ways.items() if size is not None}


def _fits(size: int, machine: Machine) -> str:
    if machine.memory is None:
        return ""
    if size > machine.memory:
        return "   more than this process may take"
    if machine.free is not None and size > machine.free:
        return "   more than is free now"
    return "   fits"
