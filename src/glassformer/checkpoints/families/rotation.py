"""The rotation in a ``config.json``, as transformers 4 or 5 writes it.

Version 4 has ``rope_scaling``, version 5 ``rope_parameters``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.checkpoints.families.config_json import Fields, alike
from glassformer.errors import InputError
from glassformer.layers.options import Linear, Llama3, LongRope, Yarn
from glassformer.models import DecoderConfig

_KINDS = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class Rope:
    """The rotation of a family: names and defaults of its fields in ``config.json``."""

    base: float = 10000.0
    base_key: str = "rope_theta"
    fraction: float | None = None
    """Default fraction of a head that rotates; None: always a whole head."""
    fraction_key: str = "partial_rotary_factor"
    kinds: tuple[str, ...] = _KINDS
    aliases: tuple[tuple[str, str], ...] = ()
    """Old names of kinds."""
    original: int | None = None
    """Default of ``original_max_position_embeddings`` beside ``rope_scaling``; None: the value
    within it.
    """
    local_base: float | None = None
    """Default base of windowed layers; None: they have the rotation of the other layers."""
    local_base_key: str | None = None
    """Field of that base beside ``rope_theta``; None: it is only in ``rope_parameters``, by kind of
    layer.
    """

    def read(self, fields: Fields, head_dim: int, max_seq_len: int) -> dict[str, Any]:
        """Return the fields of the decoder's configuration."""
        old = fields.part("rope_scaling")
        new = fields.part("rope_parameters")
        rotation: dict[str, Any] = {}
        original = None  # with a rotation by kind of layer, it is read within that only
        if self.local_base is not None:
            rotation["local_rope_base"] = self._local_base(fields, new)
            by_kind = new
            new = new and new.part("full_attention")
            if by_kind:
                by_kind.require_known()
        else:
            original = fields.get("original_max_position_embeddings", self.original)
        parts = [part for part in (old, new) if part]
        rotation["rope_base"] = _number(fields, self.base_key, parts, "rope_theta", self.base)
        rotary_dim = head_dim
        if self.fraction is not None:
            fraction = _number(
                fields, self.fraction_key, parts, "partial_rotary_factor", self.fraction
            )
            rotary_dim = int(head_dim * fraction)
            rotation["rotary_dim"] = None if rotary_dim == head_dim else rotary_dim
        rotation["rope_scaling"] = None
        scalings = [
            self._scaling(part, original, rotary_dim or head_dim, max_seq_len) for part in parts
        ]
        if scalings:
            rotation["rope_scaling"] = scalings[0]
        if not all(scaling == scalings[0] for scaling in scalings):
            raise InputError(
                got="rope_scaling and rope_parameters that differ",
                expected="one of them",
                fix="Remove rope_scaling.",
            )
        return rotation

    def _local_base(self, fields: Fields, parameters: Fields | None) -> float:
        """Return the base of windowed layers."""
        local = parameters and parameters.part("sliding_attention")
        old_base = None
        if self.local_base_key:
            old_base = fields.get(self.local_base_key)
        new_base = local and local.get("rope_theta")
        bases = {"local base": old_base, "sliding_attention": new_base}
        base = alike(bases, self.local_base)
        if local:
            local.only("rope_type", "default")
            local.require_known()
        return base

    def _scaling(self, part: Fields, original: Any, width: int, max_seq_len: int) -> Any:
        """Return the rescaling that an object describes; None if it has none."""
        kind = part.get("rope_type", part.get("type", "default"))
        for alias, name in self.aliases:
            if kind == alias:
                kind = name
        if kind not in self.kinds:
            raise InputError(
                got=f"{part.place}rope_type = {kind!r}",
                expected=f"one of {', '.join(self.kinds)}",
                fix="Take another model.",
            )
        key = "original_max_position_embeddings"
        length = part.get(key, max_seq_len)
        if original is not None:
            length = original
        lengths = Fields({key: length}, part.place)
        scaling: Any = None
        if kind == "linear":
            scaling = _linear(part)
        elif kind == "llama3":
            scaling = _llama3(part, lengths.whole(key))
        elif kind == "yarn":
            scaling = _yarn(part, lengths.whole(key))
        elif kind == "longrope":
            scaling = _longrope(part, lengths.whole(key), width, max_seq_len)
        part.require_known()
        return scaling

    def write(self, config: DecoderConfig) -> dict[str, Any]:
        """Return the fields of a ``config.json``, in the words that both versions read."""
        written: dict[str, Any] = {
            self.base_key: config.rope_base,
            "rope_scaling": write_scaling(config.rope_scaling),
        }
        if self.fraction is not None:
            written[self.fraction_key] = (config.rotary_dim or config.head_dim) / config.head_dim
        if isinstance(config.rope_scaling, LongRope) and self.local_base is None:
            written["original_max_position_embeddings"] = config.rope_scaling.original_max_seq_len
        if self.local_base is None:
            return written
        local = config.local_rope_base
        if local is None:
            local = config.rope_base
        if self.local_base_key is not None:
            return written | {self.local_base_key: local}
        scaling = written["rope_scaling"] or {"rope_type": "default"}
        full = {"rope_theta": config.rope_base, **scaling}
        parts = {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }
        return written | {"rope_parameters": parts}


def _number(
    fields: Fields, key: str, parts: Sequence[Fields], inner_key: str, default: float
) -> float:
    """Return a number that may stand beside the objects of a rotation and within them.

    An object without it has the default, whatever the other object says.
    """
    outer = {key: fields.get(key)}
    inner = {f"{part.place}{inner_key}": part.get(inner_key) for part in parts}
    numbers = {name: alike(outer | {name: value}, default) for name, value in inner.items()}
    return alike(outer | numbers, default)


# A factor of 1 stretches nothing.
def _linear(part: Fields) -> Linear | None:
    factor = part.number("factor")
    return None if factor == 1 else Linear(factor)


def _llama3(part: Fields, original: int) -> Llama3 | None:
    factor = part.number("factor")
    low = part.number("low_freq_factor")
    high = part.number("high_freq_factor")
    return None if factor == 1 else Llama3(factor, original, low, high)


def _yarn(part: Fields, original: int) -> Yarn | None:
    factor = part.number("factor")
    if factor == 1:
        return None
    yarn = Yarn(
        factor,
        original,
        part.number("beta_fast", 32.0),
        part.number("beta_slow", 1.0),
        part.flag("truncate", True),
    )
    alike(
        {
            f"{part.place}attention_factor": part.get("attention_factor"),
            "YaRN's": yarn.concentration,
        }
    )
    return yarn


def _longrope(part: Fields, original: int, width: int, max_seq_len: int) -> LongRope:
    if part.get("factor") is not None:
        factor = part.number("factor")
    else:
        factor = max_seq_len / original
    concentration = 1.0
    if factor > 1:
        concentration = math.sqrt(1 + math.log(factor) / math.log(original))
    if part.get("attention_factor") is not None:
        concentration = part.number("attention_factor")
    short = part.numbers("short_factor", width // 2)
    long = part.numbers("long_factor", width // 2)
    return LongRope(short, long, original, concentration)


_ORIGINAL = {"original_max_position_embeddings": "original_max_seq_len"}
# Kinds of rescaling: name and fields in a config.json, and our fields.
_WRITTEN: dict[type, tuple[str, dict[str, str]]] = {
    Linear: ("linear", {"factor": "factor"}),
    Llama3: (
        "llama3",
        {"factor": "factor", "low_freq_factor": "low_turns", "high_freq_factor": "high_turns"}
        | _ORIGINAL,
    ),
    Yarn: (
        "yarn",
        {name: name for name in ("factor", "beta_fast", "beta_slow", "truncate")} | _ORIGINAL,
    ),
    LongRope: (
        "longrope",
        {"short_factor": "short", "long_factor": "long", "attention_factor": "concentration"}
        | _ORIGINAL,
    ),
}


def write_scaling(scaling: Any) -> dict[str, Any] | None:
    """Return the object in a ``config.json`` for a rescaling; None without one."""
    if scaling is None:
        return None
    kind, names = _WRITTEN[type(scaling)]
    written: dict[str, Any] = {"rope_type": kind}
    for key, name in names.items():
        value = getattr(scaling, name)
        written[key] = list(value) if isinstance(value, tuple) else value
    return written
