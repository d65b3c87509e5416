"""A row of the table of families, by which ``config.json``, safetensors and GGUF are read.

Directories are written by the same row. A family adds no code to the network. Its row says what its
fields and tensors are called, and which parts of :class:`~glassformer.models.DecoderConfig` it
always has.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
"""Caps: fields of :class:`DecoderConfig` and their names in files, which GGUF uses, too."""
QK_NORMS = {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
"""Norms of queries and keys."""


def bias(file: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    """Return ``attention_bias``: a ``read`` of families."""
    return {"attention_bias": file.flag("attention_bias", False)}


def write_bias(config: DecoderConfig) -> dict[str, Any]:
    """Return ``attention_bias`` for a file: the opposite of :func:`bias`."""
    return {"attention_bias": config.attention_bias}


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """A row of the table."""

    name: str
    """Name that its makers gave it."""
    model_type: str
    """``model_type`` in ``config.json``."""
    architecture: str
    multimodal: str | None = None
    """``model_type`` of models of images and text whose text model, which is read alone, is of this
    family.
    """
    layout: str = "Hugging Face"
    """Program whose files these are."""
    keys: Mapping[str, str] = field(default_factory=lambda: KEYS)
    """Fields of :class:`DecoderConfig` and their names in ``config.json``."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of fields that ``config.json`` may leave out. Without one, ``head_dim`` is
    ``hidden_size / num_attention_heads``, there are as many key-value heads as heads, no dropout,
    and the output is the embedding if ``tied``.
    """
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of fields in ``config.json``."""
    tied: bool = False
    """Default of ``tie_word_embeddings``: the output is the embedding."""
    fixed: Mapping[str, Any] = field(default_factory=lambda: {"hidden_act": "silu"})
    """Fields in ``config.json`` that have one possible value."""
    ignored: tuple[str, ...] = ()
    """Fields in ``config.json`` that transformers ignores in this family."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of :class:`DecoderConfig` that are the same in every model of the family."""
    rope: Rope | None = field(default_factory=Rope)
    """Rotation; None: queries and keys are not rotated."""
    windows: Literal["none", "all", "types"] = "none"
    """Layers with a window: none, all, or by ``layer_types``."""
    window: int | None = None
    """Default of ``sliding_window``: keys that a query sees."""
    period: int = 1
    """Default of ``layer_types``: the last of every so many layers has no window."""
    window_flag: bool = False
    """``use_sliding_window`` must be true for a window."""
    read: Callable[[Fields, dict[str, Any]], dict[str, Any]] = _nothing
    """Function that reads more fields, from ``config.json`` and the fields read so far."""
    write: Callable[[DecoderConfig], dict[str, Any]] = _nothing
    """Opposite of ``read``."""
    read_as: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Function that translates ``config.json`` into the words of this row."""
    write_as: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Opposite of ``read_as``."""
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    """Modules of a decoder and their names in the files; see
    :mod:`~glassformer.checkpoints.families.tensor_names`.
    """
    prefix: str = "model.layers.{}."
    """Prefix of names in a layer."""
    base: str = "model."
    """Prefix of all names but the output's, which files of a model without an output leave out."""
    forms: Mapping[str, Form] = field(default_factory=dict)
    """Conversions of tensors that are stored in another form, by the name of our module. A packed
    tensor is converted as a whole by its name in the files.
    """
    gguf: str | None = None
    """``general.architecture`` of GGUF files; None: llama.cpp does not have it."""
    gguf_names: Mapping[str, str] = field(default_factory=lambda: GGUF_NAMES)
    """Modules of a decoder and their names in GGUF."""
    gguf_forms: Mapping[str, Form] = field(default_factory=dict)
    """Conversions of tensors in GGUF, like ``forms``."""
    gguf_read: Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]] = _nothing
    """Function that reads more fields, from the metadata (keys without the architecture) and the
    fields read so far.
    """

    def read_config(self, content: Mapping[str, Any]) -> DecoderConfig:
        """Return the decoder's configuration for the content of a ``config.json``."""
        file = Fields(self.read_as(content), aliases=self.aliases)
        fields = self._sizes(file)
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
            fields |= self.rope.read(file, fields["head_dim"], fields["max_seq_len"])
        fields |= self._windows(file, fields["num_layers"])
        fields |= self.parts
        fields |= self.read(file, fields)
        if fields.get("window") is None:
            fields.pop("local_rope_base", None)
        file.require_known()
        return canonical(DecoderConfig(**fields))

    def write_config(self, config: DecoderConfig, dtype: torch.dtype) -> dict[str, Any]:
        """Return the content of a ``config.json`` from which :meth:`read_config` reads ``config``.

        Raises:
            InputError: Names every part of the decoder that the family lacks.
        """
        config = canonical(config)
        unpacked = replace(config, expert_format="dense") if self.packs else config
        lacking_fields = self._lacking(unpacked)
        if lacking_fields:
            raise InputError(
                got=f"a decoder with {', '.join(lacking_fields)}",
                expected=f"what {self.name} has",
                fix="Choose another layout: glassformer keeps every part.",
            )
        torch_dtype = str(dtype).removeprefix("torch.")
        return self.write_as(self._written(config) | {"torch_dtype": torch_dtype})

    @property
    def packs(self) -> bool:
        """True if its files can have experts in MXFP4."""
        return "ffn.gate_up_blocks" in self.names

    def _lacking(self, config: DecoderConfig) -> list[str]:
        """Return the fields of a configuration that are not read back."""
        try:
            return differences(config, self.read_config(self.write_as(self._written(config))))
        except InputError as error:
            other_fields = []
            if config.rope_scaling:
                other_fields = self._lacking(replace(config, rope_scaling=None))
            return [*other_fields, error.got]

    def _written(self, config: DecoderConfig) -> dict[str, Any]:
        written = {key: getattr(config, name) for name, key in self.keys.items()}
        written |= dict(self.fixed) | {
            "architectures": [self.architecture],
            "model_type": self.model_type,
        }
        if self.rope is not None:
            written |= self.rope.write(config)
        if self.windows == "all":
            written["sliding_window"] = config.window
        if self.windows == "types":
            # transformers needs a window even if no layer has one.
            written["sliding_window"] = config.window or config.max_seq_len
            written["layer_types"] = [
                _layer_type(config.layer_window(layer) is not None)
                for layer in range(config.num_layers)
            ]
        if self.window_flag:
            written["use_sliding_window"] = config.window is not None
        return written | self.write(config)

    def entries(self, config: DecoderConfig) -> list[Entry]:
        """Return the tensors of its safetensors files."""
        return tensor_names.entries(config, self.names, self.prefix, self.forms)

    def _sizes(self, file: Fields) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, key in self.keys.items():
            default = self.defaults.get(key)
            may_be_none = key in _OPTIONAL or self.defaults.get(key, 0) is None
            if name == "tied_output":
                fields[name] = file.flag(key, self.tied)
            elif name == "dropout":
                fields[name] = file.number(key, 0.0)
            elif name == "norm_eps":
                fields[name] = file.number(key, default)
            elif may_be_none and file.get(key, default) is None:
                fields[name] = None
            else:
                fields[name] = file.whole(key, default)
        heads = fields["num_heads"]
        if heads < 1:
            raise InputError(
                got=f"{self.keys['num_heads']} = 0",
                expected="1 or more heads",
                fix="Download the file again.",
            )
        layers = fields["num_layers"]
        if layers >= _MOST_LAYERS:
            raise InputError(
                got=f"{self.keys['num_layers']} = {layers}",
                expected=f"fewer than {_MOST_LAYERS} layers",
                fix="Download the file again.",
            )
        if fields.get("head_dim") is None:
            fields["head_dim"] = fields["hidden_dim"] // heads
        if fields.get("num_kv_heads") is None:
            fields["num_kv_heads"] = heads
        return fields

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
        types = file.names("layer_types", layers, KINDS)
        if types is not None:
            has_window = [layer_type == KINDS[0] for layer_type in types]
        elif window is None:
            has_window = [False] * layers
            if self.window_flag:
                file.whole("max_window_layers", 28)
        elif self.window_flag:
            num_full = file.whole("max_window_layers", 28)
            has_window = [layer >= num_full for layer in range(layers)]
        else:
            has_window = [(layer + 1) % self.period != 0 for layer in range(layers)]
        file.get("max_window_layers")
        return windowed(has_window, window)


def _layer_type(has_window: bool) -> str:
    """Return the value of ``layer_types`` for a layer."""
    sliding, full = KINDS
    return sliding if has_window else full


_OPTIONAL = ("num_key_value_heads", "head_dim")
# More layers than any model has; lists with an item for each layer stay small.
_MOST_LAYERS = 2**16


def windowed(layers: Sequence[bool], window: int | None) -> dict[str, Any]:
    """Return the fields of :class:`DecoderConfig` for windows in some layers.

    ``layers`` holds for each layer whether it has a window.
    """
    with_window = tuple(layer for layer, has_window in enumerate(layers) if has_window)
    if not with_window:
        return {"window": None, "windowed_layers": "even"}
    if window is None:
        raise InputError(
            got="sliding_window = None with sliding_attention",
            expected="a window",
            fix="Download the file again.",
        )
    windowed_layers: str | tuple[int, ...] = with_window
    if with_window == tuple(range(1, len(layers), 2)):
        windowed_layers = "odd"
    elif with_window == tuple(range(0, len(layers), 2)):
        windowed_layers = "even"
    elif len(with_window) == len(layers):
        windowed_layers = "all"
    return {"window": window, "windowed_layers": windowed_layers}


def canonical(config: DecoderConfig) -> DecoderConfig:
    """Return a configuration of the same decoder in one spelling.

    Values that mean a default become that default. Settings that only training reads are left out.
    """
    windows = windowed(
        [config.layer_window(layer) is not None for layer in range(config.num_layers)],
        config.window,
    )
    changes: dict[str, Any] = {
        "num_kv_heads": config.num_kv_heads or config.num_heads,
        "balance_experts": False,
    }
    is_one_rotation = config.local_rope_base == config.rope_base and config.rope_scaling is None
    if windows["window"] is None or is_one_rotation:
        changes["local_rope_base"] = None
    if config.rotary_dim == config.head_dim:
        changes["rotary_dim"] = None
    if config.attention_scale == config.head_dim**-0.5:
        changes["attention_scale"] = None
    if not config.num_experts:
        changes["top_k"] = 2
    return replace(config, **windows, **changes)


def differences(config: DecoderConfig, other: DecoderConfig) -> list[str]:
    """Return the fields in which two configurations differ, with the values of the first."""
    names = [field.name for field in dataclasses.fields(config)]
    return [
        f"{name} = {getattr(config, name)!r}"
        for name in names
        if getattr(config, name) != getattr(other, name)
    ]
