"""``glassformer info``: print what a model's files contain and whether this machine can load it."""

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
    """Bytes of ``memory`` that are free now; the file cache counts as free."""
    kernel: str | None
    """Instruction set of the MXFP4 kernel; None if there is no kernel, or no experts need one."""
    without_kernel: str | None
    """Reason why torch's operators replace the kernel; None if they do not, or it is not needed."""


def this_machine(kernel: bool = True) -> Machine:
    """Measure this machine; with ``kernel``, load the MXFP4 kernel, too.

    Building the kernel takes some seconds the first time.
    """
    level = None
    problem = None
    if kernel:
        library, problem = native.look()
        if library is not None:
            level = native.LEVELS[library.level]
            problem = None
    memory = process_memory()
    return Machine(memory.total, memory.free, level, problem)


def as_json(model: Description, machine: Machine) -> dict[str, Any]:
    """Return the description as JSON values."""
    return {
        "directory": str(model.path),
        "family": model.family,
        "layout": model.layout,
        "experts": model.experts,
        "parameters": {"total": model.total, "active_per_token": model.active, **model.parameters},
        "stored_bytes": {"total": sum(model.stored_bytes.values()), **model.stored_bytes},
        "files": model.num_files,
        "kinds": {
            kind: {"tensors": number, "bytes": size} for kind, (number, size) in model.kinds.items()
        },
        "windows": _windows(model),
        "memory_bytes": _memory(model),
        "cache_bytes": {str(_cached_tokens(model)): model.cache(_cached_tokens(model))},
        "machine": dataclasses.asdict(machine),
        "config": json.loads(model.config.to_json()),
    }


def as_text(model: Description, machine: Machine) -> str:
    """Return the description as text."""
    files = "files" if model.num_files > 1 else "file"
    lines = [f"{model.path}: {model.family} in {model.layout}'s layout", ""]
    lines += [f"  {name:<14}{value}" for name, value in _form(model) if value]
    lines += [
        "",
        f"  {'':<16}{'parameters':>12}{'on disk':>12}",
        *(
            f"  {part:<16}{count(number):>12}{byte_size(model.stored_bytes.get(part, 0)):>12}"
            for part, number in sorted(model.parameters.items(), key=lambda item: -item[1])
        ),
        f"  {'total':<16}{count(model.total):>12}{byte_size(sum(model.stored_bytes.values())):>12}"
        f"   in {model.num_files} {files}",
        f"  {'active':<16}{count(model.active):>12}   for each token",
        "",
        *(
            f"  {name:<22}{byte_size(size):>12}{_fits(size, machine)}"
            for name, size in _memory(model).items()
        ),
    ]
    tokens = _cached_tokens(model)
    if cache := model.cache(tokens):
        lines.append(
            f"  {f'cache, {tokens:,} tokens':<22}{byte_size(cache):>12}   in 16 bits; twice in 32"
        )
    if machine.memory is not None:
        line = f"  {'this process may take':<22}{byte_size(machine.memory):>12}"
        if machine.free is not None:
            line += f"   {byte_size(machine.free)} of it free"
        lines.append(line)
    if model.experts is not None:
        lines += ["", f"  MXFP4 kernel: {machine.kernel or machine.without_kernel}"]
    return "\n".join(lines)


def main(flags: InfoFlags) -> int:
    """Print what the directory contains."""
    # No weights of a directory on the hub are downloaded.
    model = describe(flags.directory, download=False)
    machine = this_machine(kernel=model.experts is not None)
    if flags.json:
        print(json.dumps(as_json(model, machine), indent=2))
    else:
        say(as_text(model, machine))
    return 0


def _form(model: Description) -> list[tuple[str, str]]:
    config = model.config
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
    kv_heads = config.num_kv_heads or config.num_heads
    experts = ""
    feed_forward = ""
    if config.num_experts is not None:
        formats = {"mxfp4": "as MXFP4", "dense": "as numbers"}
        held = "as in the file" if model.layout == "GGUF" else formats[config.expert_format]
        experts = (
            f"{config.num_experts} of width {config.ff_dim:,}, {config.top_k} for each token, "
            f"{held}"
        )
    elif config.ff_dim:
        feed_forward = f"{config.ff_dim:,} wide"
    windows = "none"
    windowed = [layer for layer, window in enumerate(_windows(model)) if window is not None]
    if windowed:
        windows = f"{config.window:,} tokens in {_listed(windowed, config.num_layers)}"
    context = f"{config.max_seq_len:,} tokens"
    if isinstance(config.rope_scaling, Yarn):
        yarn = config.rope_scaling
        context += f", {yarn.factor:g} times {yarn.original_max_seq_len:,} by YaRN"
    kinds = [
        f"{number} {kind} ({byte_size(size)})"
        for kind, (number, size) in sorted(model.kinds.items())
    ]
    return [
        ("layers", f"{config.num_layers}, {config.hidden_dim:,} wide"),
        ("heads", f"{config.num_heads} of width {config.head_dim}, {kv_heads} for keys and values"),
        ("experts", experts),
        ("feed-forward", feed_forward),
        ("windows", windows),
        ("context", context),
        ("vocabulary", f"{config.vocab_size:,}"),
        ("weights", ", ".join(kinds)),
    ]


def _cached_tokens(model: Description) -> int:
    """Return the number of tokens of the measured cache: the context, at most a usual length."""
    return min(_CACHED_TOKENS, model.config.max_seq_len)


def _windows(model: Description) -> list[int | None]:
    config = model.config
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


def _memory(model: Description) -> dict[str, int]:
    """Memory for loading, by number format."""
    sizes = {"as in the file": model.held}
    if model.experts:
        sizes["experts packed"] = model.memory(2, packed=True)
    if model.layout != "GGUF" and isinstance(model.config, DecoderConfig):
        for pack in get_args(Pack):
            packed = model.experts == "mxfp4"
            sizes[f"with --pack {pack}"] = model.memory(2, packed=packed, pack=pack)
    sizes["all in bfloat16"] = model.memory(2)
    sizes["all in float32"] = model.memory(4)
    return {name: size for name, size in sizes.items() if size is not None}


def _fits(size: int, machine: Machine) -> str:
    if machine.memory is None:
        return ""
    if size > machine.memory:
        return "   more than this process may take"
    if machine.free is not None and size > machine.free:
        return "   more than is free now"
    return "   fits"
