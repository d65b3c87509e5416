"""Names of a decoder's tensors in other programs' files, and how one becomes the other, in both
directions.

Several of our modules with one foreign name are packed in one tensor, by rows, in the order of the
table. A name with ``{expert}`` stands for one tensor of each expert. All forms but
:data:`TRANSPOSED` and :data:`SHIFTED` only move rows, so that they apply to biases and to packed
rows of bytes as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import empty_decoder
from glassformer.errors import InputError
from glassformer.models import DecoderConfig

OUTSIDE = ("embedding", "positions", "embedding_norm", "final_norm", "output")
"""Modules that do not belong to a layer."""
ABSENT = ""
"""The name of what is not in the file: weights of norms, which are 1, and biases, which are 0."""

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
"""Instead, for layers with experts: one tensor for all of them."""
PACKED = (
    {"attention.query": "attn_qkv", "attention.key": "attn_qkv", "attention.value": "attn_qkv"},
    {"ffn.gate": "ffn_gate_up_exps.weight", "ffn.up": "ffn_gate_up_exps.weight"},
)
"""Instead, where the file has a tensor of this name."""


class Form(NamedTuple):
    """A tensor of a file as ours, and back: two functions of the tensor and the decoder's
    configuration.
    """

    read: Callable[[Tensor, DecoderConfig], Tensor]
    write: Callable[[Tensor, DecoderConfig], Tensor]


def _transposed(tensor: Tensor, config: DecoderConfig) -> Tensor:
    return tensor.t() if tensor.dim() == 2 else tensor


def _swapped(tensor: Tensor, config: DecoderConfig) -> Tensor:
    return _regrouped(tensor, config.head_dim, 2).flip(1).reshape(tensor.shape)


def _regrouped(rows: Tensor, group: int, parts: int) -> Tensor:
    """``[groups, parts, group / parts, ...]``."""
    return rows.reshape(-1, parts, group // parts, *rows.shape[1:])


def _turned(rows: Tensor, group: int, parts: int) -> Tensor:
    """Rows in groups: part after part becomes in turns one row of every part."""
    return _regrouped(rows, group, parts).transpose(1, 2).reshape(rows.shape)


def _by_head(rows: Tensor, config: DecoderConfig) -> Tensor:
    """Query, key and value of one head after another become all queries, all keys, all values."""
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
    """Matrices transposed; biases, ``[expert, out]``, stay."""
    return tensor.mT if tensor.dim() == 3 else tensor


TRANSPOSED = Form(_transposed, _transposed)
"""``[in, out]`` in the file, as in GPT-2's Conv1D; vectors stay."""
SHIFTED = Form(lambda w, _: w.double() + 1, lambda w, _: w - 1)
"""The file holds w of a norm that multiplies by 1 + w, as Gemma's do. The sum is taken in float64
and kept in float32 at least, where 16-bit weights come back bit for bit: |w| of at least 2**-15
exactly, smaller ones within 2**-24, like all of float32's: no program computes with more of them,
since the sum is taken in float32.
"""
SWAPPED_HALVES = Form(_swapped, _swapped)
"""The halves of every head are exchanged, which turns the direction of the rotation around
(nanochat).
"""
NEIGHBOURS = Form(
    lambda w, c: _turned(w, c.head_dim, c.head_dim // 2), lambda w, c: _turned(w, c.head_dim, 2)
)
"""Coordinates that rotate together are neighbours in the file; ours are half a head apart."""
HEAD_BY_HEAD = Form(_by_head, _into_heads)
"""Query, key and value of the first head, then of the second ... (GPT-NeoX); of a packed tensor as
a whole.
"""
OUT_LAST = Form(lambda w, _: w.mT, lambda w, _: w.mT)
"""Experts' matrices are ``[expert, in, out]`` in the file."""
IN_TURNS = Form(_apart, _in_turns)
"""Of gate and up as a whole: a row of the one, a row of the other."""
IN_TURNS_OUT_LAST = Form(
    lambda w, c: _apart(_by_rows(w), c), lambda w, c: _by_rows(_in_turns(w, c))
)
"""Both of these."""


@dataclass(frozen=True)
class Entry:
    """Tensors of ours and of a file that hold the same numbers: one to one, packed, or an expert
    each.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    """None for what is not in the file."""
    sizes: tuple[tuple[int, ...], ...]
    """Shapes of ours."""
    config: DecoderConfig
    whole: Form | None
    parts: tuple[Form | None, ...]
    by_expert: bool
    """Whether theirs are the experts of one of ours."""

    def read(self, get: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Our tensors, from a function that reads theirs; last axes may be packed in bytes."""
        if not self.theirs:
            return {
                n: torch.full(size, _constant(n))
                for n, size in zip(self.ours, self.sizes, strict=True)
            }
        read = [get(name) for name in self.theirs]
        whole = torch.stack(read) if self.by_expert else read[0]
        if self.whole is None:
            whole = whole
        else:
            whole = self.whole.read(whole, self.config)
        axis = _axis(self.ours[0], self.sizes[0])
        if len(self.ours) > 1:
            pieces = whole.split([size[axis] for size in self.sizes], axis)
        else:
            pieces = [whole]
        return {
            name: (piece if form is None else form.read(piece, self.config)).contiguous()
            for name, piece, form in zip(self.ours, pieces, self.parts, strict=True)
        }

    def write(self, state: Mapping[str, Tensor]) -> list[Tensor]:
        """Their tensors, in the order of ``theirs``, from ours."""
        ours = [state[name] for name in self.ours]
        if not self.theirs:
            for name, tensor in zip(self.ours, ours, strict=True):
                same = tensor.is_meta or bool((tensor == _constant(name)).all())
                value = _constant(name)
                if not same:
                    raise InputError(
                        got=f"{name} with other values than {value}",
                        expected=f"only {value}",
                        fix="Choose another layout.",
                    )
            return []
        pieces = [
            piece if form is None else form.write(piece, self.config)
            for piece, form in zip(ours, self.parts, strict=True)
        ]
        if len(pieces) > 1:
            whole = torch.cat(pieces, _axis(self.ours[0], self.sizes[0]))
        else:
            whole = pieces[0]
        if self.whole is None:
            whole = whole
        else:
            whole = self.whole.write(whole, self.config)
        return list(whole) if self.by_expert else [whole]

    def shapes(self) -> dict[str, list[int]]:
        """The shapes of their tensors."""
        empty = {
            name: torch.empty(size, device="meta", dtype=torch.float32)
            for name, size in zip(self.ours, self.sizes, strict=True)
        }
        return {
            name: list(each.shape)
            for name, each in zip(self.theirs, self.write(empty), strict=True)
        }


def _constant(name: str) -> float:
    return 0.0 if name.endswith("bias") else 1.0


def _axis(name: str, size: Sequence[int]) -> int:
    """The axis of rows: tensors of all experts have the expert before it."""
    if len(size) == 3 or name.endswith(("gate_bias", "up_bias")):
        return 1
    return 0


def entries(
    config: DecoderConfig,
    names: Mapping[str, str],
    prefix: str,
    forms: Mapping[str, Form],
) -> list[Entry]:
    """The tensors of a decoder by a table of names.

    Args:
        config: The decoder's.
        names: Our modules (or single tensors) and theirs: ``{"attention.query":
            "self_attn.q_proj"}``.
        prefix: Of their names in a layer: ``"model.layers.{}."``.
        forms: By our name, of a part, or by theirs, of a packed tensor as a whole.
    """
    one = replace(config, num_layers=1, windowed_layers="all", unrotated_layers=())
    shapes = {name: tuple(tensor.shape) for name, tensor in empty_decoder(one).state_dict().items()}
    if config.tied_output:
        del shapes["output.weight"]
    groups: dict[str, list[str]] = {}
    placed = 0
    for module, theirs in names.items():
        if module.split(".")[0] in OUTSIDE:
            ours = module
        else:
            ours = f"layers.0.{module}"
        for name in (name for name in shapes if ours in (name, name.rpartition(".")[0])):
            if name.removeprefix("layers.0.") in names and name != ours:
                continue  # it has a name of its own
            suffix = name.removeprefix(ours)
            if ours == module:
                template = f"{theirs}{suffix}"
            else:
                template = f"{prefix}{theirs}{suffix}"
            groups.setdefault(template if theirs else name, []).append(name)
            placed += 1
    if placed < len(shapes):
        known = {name for group in groups.values() for name in group}
        raise InputError(
            f"a decoder with {', '.join(sorted(shapes.keys() - known))}",
            f"only parts named in the table: {', '.join(names)}",
            "Choose another layout.",
        )
    found = []
    for template, group in groups.items():
        in_layer = group[0].startswith("layers.")
        modules = [name.removeprefix("layers.0.") for name in group]
        parts = tuple(forms.get(name) or forms.get(name.rpartition(".")[0]) for name in modules)
        theirs = names[modules[0] if modules[0] in names else modules[0].rpartition(".")[0]]
        sizes = tuple(shapes[name] for name in group)
        entry = Entry((), (), sizes, config, forms.get(theirs), parts, "{expert}" in template)
        for layer in range(config.num_layers if in_layer else 1):
            at = tuple(name.replace("layers.0.", f"layers.{layer}.", 1) for name in group)
            name = template.replace("{}", str(layer))
            copies = (config.num_experts or 0) if entry.by_expert else 1
            there = tuple(name.replace("{expert}", str(expert)) for expert in range(copies))
            found.append(replace(entry, ours=at, theirs=there if theirs else ()))
    return found


def tensors_of_layer(names: Mapping[str, str], config: DecoderConfig) -> int:
    """At least so many tensors of a file belong to a layer."""
    inside = {
        theirs for ours, theirs in names.items() if ours.split(".")[0] not in OUTSIDE and theirs
    }
    return sum((config.num_experts or 0) if "{expert}" in name else 1 for name in inside)
