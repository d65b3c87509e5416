"""What a family of models is: one row, read and written as ``config.json`` with safetensors, and
read as GGUF.

A family adds no code to the network. Its row says what its fields are called, which parts of
:class:`~glassformer.models.DecoderConfig` it always has, and what its tensors are called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch

from glassformer.checkpoints.families import tensor_names
from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.tensor_names import GGUF_NAMES, Entry, Form
from glassformer.errors import InputError
from glassformer.models import DecoderConfig

KEYS = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_dim": "hidden_size",
    "ff_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_seq_len": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "dropout": "attention_dropout",
    "tied_output": "tie_word_embeddings",
}
"""Fields of :class:`DecoderConfig` and their names in a ``config.json`` like Llama's."""

KINDS = ("sliding_attention", "full_attention")
"""Values of ``layer_types``."""
NAMES = {
    "embedding": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
    "final_norm": "model.norm",
    "output": "lm_head",
}
"""Modules of a decoder and their names in files like Llama's; those of a layer follow a prefix."""
CAPS = {"attention_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}
"""Fields of ours and theirs of the families that have them, and keys of GGUF."""
QK_NORMS = {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
"""Norms of queries and keys."""


def bias(file: Fields, found: dict[str, Any]) -> dict[str, Any]:
    """A ``read`` of ``attention_bias``."""
    return {"attention_bias": file.flag("attention_bias", False)}


def write_bias(config: DecoderConfig) -> dict[str, Any]:
    """The opposite of :func:`bias`."""
    return {"attention_bias": config.attention_bias}


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """A row of the table."""

    name: str
    """As its makers call it."""
    model_type: str
    """In ``config.json``."""
    architecture: str
    multimodal: str | None = None
    """The ``model_type`` of models of images and text whose part for text is of this family; it is
    read alone.
    """
    layout: str = "Hugging Face"
    """Whose files these are."""
    keys: Mapping[str, str] = field(default_factory=lambda: KEYS)
    """Our fields and theirs."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a missing field of theirs means; without one: ``head_dim`` is ``hidden_size /
    num_attention_heads``, there are as many key-value heads as heads, no dropout, and the output is
    the embedding unless ``tied`` is false.
    """
    aliases: Mapping[str, str] = field(default_factory=dict)
    tied: bool = False
    """Whether the output is the embedding where the file does not say it."""
    fixed: Mapping[str, Any] = field(default_factory=lambda: {"hidden_act": "silu"})
    """Fields of theirs that have one possible value."""
    ignored: tuple[str, ...] = ()
    """Fields of theirs that transformers ignores in this family."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ours that are the same in every model of the family."""
    rope: Rope | None = field(default_factory=Rope)
    """How it rotates; None: not at all."""
    windows: Literal["none", "all", "types"] = "none"
    """Layers with a window: none, all, or by ``layer_types``."""
    window: int | None = None
    """Keys that a query sees, where the file does not say it."""
    period: int = 1
    """Without ``layer_types``, every so many layers one has no window; 1: none has one."""
    window_flag: bool = False
    """Whether ``use_sliding_window`` says if there is a window at all."""
    read: Callable[[Fields, dict[str, Any]], dict[str, Any]] = _nothing
    """More fields of ours, from their file and the fields found so far."""
    write: Callable[[DecoderConfig], dict[str, Any]] = _nothing
    """The opposite."""
    read_as: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Their content in the words of this row, where it has others."""
    write_as: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """The opposite."""
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    """Our modules and theirs; see :mod:`~glassformer.checkpoints.families.tensor_names`."""
    prefix: str = "model.layers.{}."
    """Of their names in a layer."""
    base: str = "model."
    """Prefix of all names but the output's, which files of a model without an output leave out."""
    forms: Mapping[str, Form] = field(default_factory=dict)
    """What is not stored as we hold it, by our name or, for a packed tensor as a whole, theirs."""
    gguf: str | None = None
    """``general.architecture`` of GGUF files; None: llama.cpp does not have it."""
    gguf_names: Mapping[str, str] = field(default_factory=lambda: GGUF_NAMES)
    """Our modules and GGUF's."""
    gguf_forms: Mapping[str, Form] = field(default_factory=dict)
    """As ``forms``."""
    gguf_read: Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]] = _nothing
    """More fields of ours, from the metadata (keys without the architecture) and the fields found
    so far.
    """

    def read_config(self, content: Mapping[str, Any]) -> DecoderConfig:
        """The decoder's configuration for the content of a ``config.json``."""
        file = Fields(self.read_as(content), aliases=self.aliases)
        found = self._sizes(file)
        for name, value in self.fixed.items():
            file.only(name, value)
        if not file.flag("is_causal", True):
            raise InputError(
                got="is_causal = False",
                expected="True",
                fix="Take a model that reads from left to right.",
            )
        for name in self.ignored:
            file.get(name)
        if self.rope is not None:
            found |= self.rope.read(file, found["head_dim"], found["max_seq_len"])
        found |= self._windows(file, found["num_layers"])
        found |= self.parts
        found |= self.read(file, found)
        if found.get("window") is None:
            found.pop("local_rope_base", None)
        file.require_known()
        return canonical(DecoderConfig(**found))

    def write_config(self, config: DecoderConfig, dtype: torch.dtype) -> dict[str, Any]:
        """The content of a ``config.json`` from which :meth:`read_config` reads ``config``."""
        config = canonical(config)
        lacking = self._lacking(replace(config, expert_format="dense") if self.packs else config)
        if lacking:
            raise InputError(
                got=f"a decoder with {', '.join(lacking)}",
                expected=f"what {self.name} has",
                fix="Choose another layout: glassformer keeps every part.",
            )
        return self.write_as(
            self._written(config) | {"torch_dtype": str(dtype).removeprefix("torch.")}
        )

    @property
    def packs(self) -> bool:
        """Whether its files can have experts in MXFP4; the files say whether they do."""
        return "ffn.gate_up_blocks" in self.names

    def _lacking(self, config: DecoderConfig) -> list[str]:
        """The fields of a configuration that are not read back."""
        try:
            return differences(config, self.read_config(self.write_as(self._written(config))))
        except InputError as error:
            if config.rope_scaling:
                others = self._lacking(replace(config, rope_scaling=None))
            else:
                others = []
            return [*others, error.got]

    def _written(self, config: DecoderConfig) -> dict[str, Any]:
        written = {theirs: getattr(config, ours) for ours, theirs in self.keys.items()}
        written |= dict(self.fixed) | {
            "architectures": [self.architecture],
            "model_type": self.model_type,
        }
        if self.rope is not None:
            written |= self.rope.write(config)
        if self.windows == "all":
            written["sliding_window"] = config.window
        if self.windows == "types":
            written["sliding_window"] = (
                config.window or config.max_seq_len
            )  # transformers wants one even for no layer
            written["layer_types"] = [
                KINDS[config.layer_window(layer) is None] for layer in range(config.num_layers)
            ]
        if self.window_flag:
            written["use_sliding_window"] = config.window is not None
        return written | self.write(config)

    def entries(self, config: DecoderConfig) -> list[Entry]:
        """The tensors of its safetensors files."""
        return tensor_names.entries(config, self.names, self.prefix, self.forms)

    def _sizes(self, file: Fields) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for ours, theirs in self.keys.items():
            default = self.defaults.get(theirs)
            if ours == "tied_output":
                found[ours] = file.flag(theirs, self.tied)
            elif ours in ("norm_eps", "dropout"):
                found[ours] = file.number(theirs, 0.0 if ours == "dropout" else default)
            elif file.get(theirs, default) is None and (
                theirs in _OPTIONAL or self.defaults.get(theirs, 0) is None
            ):
                found[ours] = None
            else:
                found[ours] = file.whole(theirs, default)
        heads = found["num_heads"]
        if not heads > 0:
            raise InputError(
                got=f"{self.keys['num_heads']} = 0",
                expected="1 or more heads",
                fix="Download the file again.",
            )
        layers = found["num_layers"]
        if not layers < _MOST_LAYERS:
            raise InputError(
                got=f"{self.keys['num_layers']} = {layers}",
                expected=f"fewer than {_MOST_LAYERS} layers",
                fix="Download the file again.",
            )
        defaults = {"head_dim": found["hidden_dim"] // heads, "num_kv_heads": heads}
        found |= {name: each for name, each in defaults.items() if found.get(name) is None}
        return found

    def _windows(self, file: Fields, layers: int) -> dict[str, Any]:
        if self.windows == "none":
            return {}
        window = file.get("sliding_window", self.window)
        used = not self.window_flag or file.flag("use_sliding_window", False)
        if window is None or not used:
            window = None
        else:
            window = file.whole("sliding_window", self.window)
        if self.windows == "all":
            return {"window": window, "windowed_layers": "all"}
        kinds = file.names("layer_types", layers, KINDS)
        if kinds is None:
            full = None
            if self.window_flag:
                full = file.whole("max_window_layers", 28)
            kinds = [
                KINDS[
                    window is None
                    or ((layer + 1) % self.period == 0 if full is None else layer < full)
                ]
                for layer in range(layers)
            ]
        file.get("max_window_layers")
        return windowed([kind == KINDS[0] for kind in kinds], window)


_OPTIONAL = ("num_key_value_heads", "head_dim")
# More than any model has: what there is for each layer stays small.
_MOST_LAYERS = 2**16


def windowed(layers: Sequence[bool], window: int | None) -> dict[str, Any]:
    """Our fields for windows in these layers."""
    places = tuple(layer for layer, has in enumerate(layers) if has)
    if not places:
        return {"window": None, "windowed_layers": "even"}
    if window is None:
        raise InputError(
            got="sliding_window = None with sliding_attention",
            expected="a window",
            fix="Download the file again.",
        )
    named = {tuple(range(0, len(layers), 2)): "even", tuple(range(1, len(layers), 2)): "odd"}
    every = "all" if len(places) == len(layers) else places
    return {"window": window, "windowed_layers": named.get(places, every)}


def canonical(config: DecoderConfig) -> DecoderConfig:
    """The same decoder with one spelling of what can be said in several ways; what only training
    reads is left out.
    """
    seen = windowed(
        [config.layer_window(layer) is not None for layer in range(config.num_layers)],
        config.window,
    )
    local = config.local_rope_base
    as_others = seen["window"] is None or (
        local == config.rope_base and config.rope_scaling is None
    )
    return replace(
        config,
        num_kv_heads=config.num_kv_heads or config.num_heads,
        **seen,
        local_rope_base=None if as_others else local,
        rotary_dim=None if config.rotary_dim == config.head_dim else config.rotary_dim,
        attention_scale=None
        if config.attention_scale == config.head_dim**-0.5
        else config.attention_scale,
        top_k=config.top_k if config.num_experts else 2,
        balance_experts=False,
    )


def differences(wanted: DecoderConfig, found: DecoderConfig) -> list[str]:
    """The fields in which two configurations differ, with the first one's values."""
    return [
        f"{each.name} = {getattr(wanted, each.name)!r}"
        for each in fields(wanted)
        if getattr(wanted, each.name) != getattr(found, each.name)
    ]
