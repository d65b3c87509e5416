"""The rotation in a ``config.json``, in the words of transformers 4 (``rope_scaling``) and 5
(``rope_parameters``).
"""

import math
from dataclasses import dataclass
from typing import Any

from glassformer.checkpoints.families.config_json import Fields, alike
from glassformer.errors import InputError
from glassformer.layers.options import Linear, Llama3, LongRope, Yarn
from glassformer.models import DecoderConfig

_KINDS = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class Rope:
    """How a family writes its rotation, and what is missing means."""

    base: float = 10000.0
    base_key: str = "rope_theta"
    fraction: float | None = None
    """Fraction of a head that rotates where the file does not say it; None: always a whole head."""
    fraction_key: str = "partial_rotary_factor"
    kinds: tuple[str, ...] = _KINDS
    aliases: tuple[tuple[str, str], ...] = ()
    """Old names of kinds."""
    original: int | None = None
    """``original_max_position_embeddings`` where no field beside ``rope_scaling`` says it; None:
    that within it.
    """
    local_base: float | None = None
    """Where windowed layers have a rotation of their own, their base if the file does not say it.
    """
    local_base_key: str | None = None
    """Its field beside ``rope_theta``; None: it is only in ``rope_parameters``, by kind of layer.
    """

    def read(self, fields: Fields, head_dim: int, max_seq_len: int) -> dict[str, Any]:
        """The fields of the decoder's configuration."""
        old = fields.part("rope_scaling")
        new = fields.part("rope_parameters")
        found: dict[str, Any] = {}
        if self.local_base is not None:
            local = new and new.part("sliding_attention")
            old_base = None
            if self.local_base_key:
                old_base = fields.get(self.local_base_key)
            new_base = local and local.get("rope_theta")
            found["local_rope_base"] = alike(
                {"local base": old_base, "sliding_attention": new_base}, self.local_base
            )
            if local:
                local.only("rope_type", "default")
                local.require_known()
            outer = new
            new = new and new.part("full_attention")
            if outer:
                outer.require_known()
        parts = [part for part in (old, new) if part]

        def number(key: str, inside: str, default: float) -> float:
            """A part without it has the default, whatever the other part says."""
            outer = {key: fields.get(key)}
            named = {f"{part.place}{inside}": part.get(inside) for part in parts}
            return alike(
                outer
                | {name: alike(outer | {name: each}, default) for name, each in named.items()},
                default,
            )

        found["rope_base"] = number(self.base_key, "rope_theta", self.base)
        if self.fraction is not None:
            rotary = int(
                head_dim * number(self.fraction_key, "partial_rotary_factor", self.fraction)
            )
            found["rotary_dim"] = None if rotary == head_dim else rotary
        # With a rotation by kind of layer it is read within it only.
        by_kind = self.local_base is not None
        if by_kind:
            original = None
        else:
            original = fields.get("original_max_position_embeddings", self.original)
        width = found.get("rotary_dim") or head_dim
        scalings = [self._scaling(part, original, width, max_seq_len) for part in parts]
        same = all(scaling == scalings[0] for scaling in scalings)
        if not same:
            raise InputError(
                got="rope_scaling and rope_parameters that differ",
                expected="one of them",
                fix="Remove rope_scaling.",
            )
        return found | {"rope_scaling": scalings[0] if scalings else None}

    def _scaling(self, part: Fields, original: Any, width: int, longest: int) -> Any:
        kind = part.get("rope_type", part.get("type", "default"))
        kind = next((new for old, new in self.aliases if old == kind), kind)
        known = kind in self.kinds
        if not known:
            raise InputError(
                got=f"{part.place}rope_type = {kind!r}",
                expected=f"one of {', '.join(self.kinds)}",
                fix="Take another model.",
            )
        inside = part.get("original_max_position_embeddings", longest)
        length = Fields(
            {"original_max_position_embeddings": inside if original is None else original},
            part.place,
        )
        read = {
            "default": lambda: None,
            "linear": lambda: _linear(part),
            "llama3": lambda: _llama3(part, length.whole("original_max_position_embeddings")),
            "yarn": lambda: _yarn(part, length.whole("original_max_position_embeddings")),
            "longrope": lambda: _longrope(
                part, length.whole("original_max_position_embeddings"), width, longest
            ),
        }
        scaling = read[kind]()
        part.require_known()
        return scaling

    def write(self, config: DecoderConfig) -> dict[str, Any]:
        """The fields of a ``config.json``, in the words that both versions read."""
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
        if config.local_rope_base is None:
            local = config.rope_base
        else:
            local = config.local_rope_base
        if self.local_base_key is not None:
            return written | {self.local_base_key: local}
        full = {
            "rope_theta": config.rope_base,
            **(written["rope_scaling"] or {"rope_type": "default"}),
        }
        parts = {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }
        return written | {"rope_parameters": parts}


def _linear(part: Fields) -> Linear | None:
    factor = part.number("factor")
    return None if factor == 1 else Linear(factor)


def _llama3(part: Fields, original: int) -> Llama3 | None:
    factor, low, high = (
        part.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    return None if factor == 1 else Llama3(factor, original, low, high)


def _yarn(part: Fields, original: int) -> Yarn | None:
    factor = part.number("factor")
    if factor == 1:  # stretches nothing
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


def _longrope(part: Fields, original: int, width: int, longest: int) -> LongRope:
    if part.get("factor") is not None:
        factor = part.number("factor")
    else:
        factor = longest / original
    if factor > 1:
        implied = math.sqrt(1 + math.log(factor) / math.log(original))
    else:
        implied = 1.0
    if part.get("attention_factor") is not None:
        given = part.number("attention_factor")
    else:
        given = implied
    short = part.numbers("short_factor", width // 2)
    long = part.numbers("long_factor", width // 2)
    return LongRope(short, long, original, given)


_ORIGINAL = {"original_max_position_embeddings": "original_max_seq_len"}
# Their fields of a scaling, and ours.
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
    """The object in a ``config.json``; None without a scaling."""
    if scaling is None:
        return None
    kind, fields = _WRITTEN[type(scaling)]
    values = {theirs: getattr(scaling, ours) for theirs, ours in fields.items()}
    return {"rope_type": kind} | {
        name: list(v) if isinstance(v, tuple) else v for name, v in values.items()
    }
