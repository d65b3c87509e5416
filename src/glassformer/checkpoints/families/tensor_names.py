"""Names and forms of a decoder's tensors in other programs' files, for reading and writing.

Several of our modules with one foreign name are packed in one tensor, by rows, in the order of the
table. A name with ``{expert}`` stands for one tensor of each expert. All forms but
:data:`TRANSPOSED` and :data:`SHIFTED` only move rows, so that they apply to biases and to packed
rows of bytes as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import empty_decoder
from glassformer.errors import InputError
from glassformer.models import DecoderConfig

OUTSIDE = ("embedding", "positions", "embedding_norm", "final_norm", "output")
"""Modules that do not belong to a layer."""
ABSENT = ""
"""Name of tensors that are not in the file: weights of norms, which are 1, and biases, 0."""

GGUF_PREFIX = "blk.{}."
GGUF_NAMES = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "embedding_norm": "token_embd_norm",
    "attention_norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "attention.output": "attn_output",
    "attention_post_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "ffn.router.score": "ffn_gate_inp",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
    "ffn_post_norm": "post_ffw_norm",
    "final_norm": "output_norm",
    "output": "output",
}
"""Modules of a decoder and GGUF's names; those of a layer follow ``blk.N.``."""
EXPERTS = {
    "ffn.gate": "ffn_gate_exps.weight",
    "ffn.up": "ffn_up_exps.weight",
    "ffn.down": "ffn_down_exps.weight",
}
"""Names in layers with experts: one tensor for all experts."""
PACKED = (
    {"attention.query": "attn_qkv", "attention.key": "attn_qkv", "attention.value": "attn_qkv"},
    {"ffn.gate": "ffn_gate_up_exps.weight", "ffn.up": "ffn_gate_up_exps.weight"},
)
"""Names of packed tensors, for files that have them."""


class Form(NamedTuple):
    """A conversion of a tensor of a file into ours, and back.

    Both functions take the tensor and the decoder's configuration.
    """

    read: Callable[[Tensor, DecoderConfig], Tensor]
    write: Callable[[Tensor, DecoderConfig], Tensor]


def _transposed(tensor: Tensor, config: DecoderConfig) -> Tensor:
    return tensor.t() if tensor.dim() == 2 else tensor


def _swapped(tensor: Tensor, config: DecoderConfig) -> Tensor:
    return _regrouped(tensor, config.head_dim, 2).flip(1).reshape(tensor.shape)


def _regrouped(rows: Tensor, group: int, parts: int) -> Tensor:
    """Return rows as ``[groups, parts, group / parts, ...]``."""
    return rows.reshape(-1, parts, group // parts, *rows.shape[1:])


def _turned(rows: Tensor, group: int, parts: int) -> Tensor:
    """Return the rows of each group with its parts interleaved: one row of every part in turns."""
    return _regrouped(rows, group, parts).transpose(1, 2).reshape(rows.shape)


def _by_head(rows: Tensor, config: DecoderConfig) -> Tensor:
    """Return all queries, all keys and all values from the rows of one head after another."""
    return _regrouped(rows, 3 * config.head_dim, 3).transpose(0, 1).reshape(rows.shape)


def _into_heads(rows: Tensor, config: DecoderConfig) -> Tensor:
    return rows.reshape(3, -1, config.head_dim, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


def _apart(rows: Tensor, config: DecoderConfig) -> Tensor:
    if config.expert_format == "mxfp4":  # which has biases, too, in turns
        return rows
    return torch.cat([rows[:, 0::2], rows[:, 1::2]], 1)


def _in_turns(rows: Tensor, config: DecoderConfig) -> Tensor:
    if config.expert_format == "mxfp4":
        return rows
    return torch.stack(rows.chunk(2, 1), 2).flatten(1, 2)


def _by_rows(tensor: Tensor) -> Tensor:
    """Transpose experts' matrices; their biases, ``[expert, out]``, stay."""
    return tensor.mT if tensor.dim() == 3 else tensor


TRANSPOSED = Form(_transposed, _transposed)
"""``[in, out]`` in the file, as in GPT-2's Conv1D; vectors stay."""
SHIFTED = Form(lambda w, _: w.double() + 1, lambda w, _: w - 1)
"""The file holds w of a norm that multiplies by 1 + w, as Gemma's do. The sum is taken in float64
and kept in float32 at least. There, 16-bit weights w of a size of at least 2**-15 come back bit for
bit. Smaller ones and those of float32 come back within 2**-24. No program computes with more
digits, since the sum is taken in float32.
"""
SWAPPED_HALVES = Form(_swapped, _swapped)
"""The halves of every head are exchanged, which reverses the rotation (nanochat)."""
NEIGHBOURS = Form(
    lambda w, c: _turned(w, c.head_dim, c.head_dim // 2), lambda w, c: _turned(w, c.head_dim, 2)
)
"""Coordinates that rotate together are neighbours in the file; ours are half a head apart."""
HEAD_BY_HEAD = Form(_by_head, _into_heads)
"""A packed tensor holds query, key and value of the first head, then of the second (GPT-NeoX)."""
OUT_LAST = Form(lambda w, _: w.mT, lambda w, _: w.mT)
"""Experts' matrices are ``[expert, in, out]`` in the file."""
IN_TURNS = Form(_apart, _in_turns)
"""A packed tensor holds a row of gate and a row of up in turns."""
IN_TURNS_OUT_LAST = Form(
    lambda w, c: _apart(_by_rows(w), c), lambda w, c: _by_rows(_in_turns(w, c))
)
"""The conversions of :data:`IN_TURNS` and :data:`OUT_LAST` together."""


@dataclass(frozen=True)
class Entry:
    """Tensors of a decoder and of a file that hold the same numbers.

    They are one to one, several of ours packed in one of the file, or an expert each in the file.
    """

    ours: tuple[str, ...]
    """Names of the decoder's tensors."""
    theirs: tuple[str, ...]
    """Names of the file's tensors; empty for constants, which are not in the file."""
    sizes: tuple[tuple[int, ...], ...]
    """Shapes of the decoder's tensors."""
    config: DecoderConfig
    whole: Form | None
    """Conversion of the packed tensor as a whole."""
    parts: tuple[Form | None, ...]
    """Conversion of each of the decoder's tensors."""
    by_expert: bool
    """The file's tensors are the experts of one tensor of the decoder."""

    def read(self, get: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Return the decoder's tensors; ``get`` reads one of the file.

        The last axis may be packed in bytes.
        """
        if not self.theirs:
            return {
                name: torch.full(size, _constant(name))
                for name, size in zip(self.ours, self.sizes, strict=True)
            }
        tensors = [get(name) for name in self.theirs]
        whole = torch.stack(tensors) if self.by_expert else tensors[0]
        if self.whole is not None:
            whole = self.whole.read(whole, self.config)
        pieces: Sequence[Tensor] = [whole]
        if len(self.ours) > 1:
            axis = _axis(self.ours[0], self.sizes[0])
            pieces = whole.split([size[axis] for size in self.sizes], axis)
        state = {}
        for name, piece, form in zip(self.ours, pieces, self.parts, strict=True):
            tensor = piece if form is None else form.read(piece, self.config)
            state[name] = tensor.contiguous()
        return state

    def write(self, state: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the file's tensors, in the order of ``theirs``, from the decoder's."""
        if not self.theirs:
            self._check_constants(state)
            return []
        pieces = []
        for name, form in zip(self.ours, self.parts, strict=True):
            tensor = state[name]
            pieces.append(tensor if form is None else form.write(tensor, self.config))
        whole = pieces[0]
        if len(pieces) > 1:
            whole = torch.cat(pieces, _axis(self.ours[0], self.sizes[0]))
        if self.whole is not None:
            whole = self.whole.write(whole, self.config)
        return list(whole) if self.by_expert else [whole]

    def _check_constants(self, state: Mapping[str, Tensor]) -> None:
        """Refuse values that a file cannot hold, since it leaves these tensors out."""
        for name in self.ours:
            tensor = state[name]
            value = _constant(name)
            if not tensor.is_meta and bool((tensor != value).any()):
                raise InputError(
                    got=f"{name} with other values than {value}",
                    expected=f"only {value}",
                    fix="Choose another layout.",
                )

    def shapes(self) -> dict[str, list[int]]:
        """Return the shapes of the file's tensors."""
        empty = {
            name: torch.empty(size, device="meta", dtype=torch.float32)
            for name, size in zip(self.ours, self.sizes, strict=True)
        }
        tensors = self.write(empty)
        return {name: list(tensor.shape) for name, tensor in zip(self.theirs, tensors, strict=True)}


def _constant(name: str) -> float:
    """Return the value of a tensor that is not in the file."""
    return 0.0 if name.endswith("bias") else 1.0


def _axis(name: str, size: Sequence[int]) -> int:
    """Return the axis of rows; tensors of all experts have the expert before it."""
    if len(size) == 3 or name.endswith(("gate_bias", "up_bias")):
        return 1
    return 0


def entries(
    config: DecoderConfig,
    names: Mapping[str, str],
    prefix: str,
    forms: Mapping[str, Form],
) -> list[Entry]:
    """Return the tensors of a decoder by a table of names.

    Args:
        config: Configuration of the decoder.
        names: Our modules (or single tensors) and their names in the file:
            ``{"attention.query": "self_attn.q_proj"}``.
        prefix: Prefix of names in a layer: ``"model.layers.{}."``.
        forms: Conversions, by the name of our module or, for a packed tensor as a whole, its name
            in the file.
    """
    shapes = _shapes_of_one_layer(config)
    table: list[Entry] = []
    for template, group in _grouped(shapes, names, prefix).items():
        in_layer = group[0].startswith("layers.")
        modules = [name.removeprefix("layers.0.") for name in group]
        parts = tuple(forms.get(name) or forms.get(name.rpartition(".")[0]) for name in modules)
        module = modules[0]
        if module not in names:
            module = module.rpartition(".")[0]
        file_name = names[module]
        sizes = tuple(shapes[name] for name in group)
        by_expert = "{expert}" in template
        entry = Entry((), (), sizes, config, forms.get(file_name), parts, by_expert)
        copies = 1
        if by_expert:
            copies = config.num_experts or 0
        for layer in range(config.num_layers if in_layer else 1):
            ours = tuple(name.replace("layers.0.", f"layers.{layer}.", 1) for name in group)
            theirs: tuple[str, ...] = ()
            if file_name:
                name = template.replace("{}", str(layer))
                theirs = tuple(name.replace("{expert}", str(expert)) for expert in range(copies))
            table.append(replace(entry, ours=ours, theirs=theirs))
    return table


def _shapes_of_one_layer(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a decoder with one layer, by name."""
    smaller = replace(config, num_layers=1, windowed_layers="all", unrotated_layers=())
    state = empty_decoder(smaller).state_dict()
    if config.tied_output:
        del state["output.weight"]
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _grouped(
    shapes: Mapping[str, Any], names: Mapping[str, str], prefix: str
) -> dict[str, list[str]]:
    """Return our tensors by the name in the file, ``{}`` for the layer, that holds them.

    Tensors that are not in the file stand by their own names.

    Raises:
        InputError: Names tensors that are not in the table.
    """
    groups: dict[str, list[str]] = {}
    placed = 0
    for module, file_name in names.items():
        in_layer = module.split(".")[0] not in OUTSIDE
        our_name = f"layers.0.{module}" if in_layer else module
        for name in shapes:
            if our_name not in (name, name.rpartition(".")[0]):
                continue
            if name.removeprefix("layers.0.") in names and name != our_name:
                continue  # it has a name of its own
            template = name
            if file_name:
                template = f"{file_name}{name.removeprefix(our_name)}"
                if in_layer:
                    template = f"{prefix}{template}"
            groups.setdefault(template, []).append(name)
            placed += 1
    if placed < len(shapes):
        known_names = set(chain.from_iterable(groups.values()))
        raise InputError(
            f"a decoder with {', '.join(sorted(shapes.keys() - known_names))}",
            f"only parts named in the table: {', '.join(names)}",
            "Choose another layout.",
        )
    return groups


def tensors_of_layer(names: Mapping[str, str], config: DecoderConfig) -> int:
    """Return the least number of tensors of a layer in a file."""
    inside = {
        name for module, name in names.items() if name and module.split(".")[0] not in OUTSIDE
    }
    by_expert = sum("{expert}" in name for name in inside)
    return len(inside) - by_expert + by_expert * (config.num_experts or 0)
