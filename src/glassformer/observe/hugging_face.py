"""Hook points of models of Hugging Face's transformers."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.kernels.pattern import CAUSAL, FULL
from glassformer.layers import attention
from glassformer.layers.attention import Attended, Editor, Rewrite
from glassformer.observe.hook_points import HookPoint, Routed, layer_of, one_by_one
from glassformer.observe.seams import without_other_hooks

Watcher = Callable[[nn.Module, Callable[[], Attended], Tensor, float], None]
"""Receives an attention's module, its inputs, its output [batch, query, head, value_dim] and its dropout."""


@dataclass(frozen=True)
class _Family:
    """The names of a block's submodules."""

    attention: str
    ffn: str
    between: str
    """See ``HookPoint.between``."""
    output: str
    """The attention's output projection."""
    cross: str | None = None
    gate: str | None = None
    """The router of a mixture of experts."""
    pre_norm: bool = True


_LLAMA = _Family("self_attn", "mlp", "post_attention_layernorm", "self_attn.o_proj")
_BERT = _Family(
    "attention.self",
    "output.dense",
    "attention.output",
    "attention.output.dense",
    "crossattention.self",
    pre_norm=False,
)
_FAMILIES = {
    "GPT2Block": _Family("attn", "mlp", "ln_2", "attn.c_proj", "crossattention"),
    **dict.fromkeys(("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"), _LLAMA),
    "MixtralDecoderLayer": replace(_LLAMA, gate="mlp.gate"),
    "GptOssDecoderLayer": replace(_LLAMA, gate="mlp.router"),
    **dict.fromkeys(("BertLayer", "RobertaLayer"), _BERT),
}


def is_hugging_face(model: nn.Module) -> bool:
    """Whether a model, or a part of it, comes from transformers, which is not imported for the check."""
    return any(type(module).__module__.startswith("transformers.") for module in model.modules())


def points(model: nn.Module) -> Iterator[HookPoint]:
    """Every hook point of a model of these families of transformers, in the order of its modules."""
    known = False
    for name, block in model.named_modules():
        family = _FAMILIES.get(type(block).__name__)
        if family is None or not type(block).__module__.startswith("transformers."):
            continue
        known, layer, at = True, layer_of(name, 0), f"{name}.".removeprefix(".")
        if layer == 0:
            yield HookPoint("embedding", name, block, layer, block)
        between = block.get_submodule(family.between)
        for part in (family.attention, family.cross):
            if part is None or not hasattr(block, part.split(".")[0]):
                continue
            module: Any = block.get_submodule(part)
            config = module.config
            heads = config.num_attention_heads
            group = heads // (getattr(config, "num_key_value_heads", None) or heads)
            merged = block.get_submodule(family.output.replace(family.attention.split(".")[0], part.split(".")[0], 1))
            yield HookPoint(
                "attention",
                at + part,
                module,
                layer,
                block,
                heads=heads,
                group=group,
                cross=part == family.cross,
                sinks=isinstance(getattr(module, "sinks", None), Tensor),
                mixed=module,
                merged=merged,
                added=merged,
            )
            if part == family.cross and not family.pre_norm:
                between = block.get_submodule("crossattention.output")
        yield HookPoint("ffn", at + family.ffn, block.get_submodule(family.ffn), layer, block)
        if family.gate is not None:
            mixture: Any = block.get_submodule(family.ffn)
            gate: Any = block.get_submodule(family.gate)
            yield HookPoint(
                "experts",
                at + family.ffn,
                mixture,
                layer,
                block,
                route=partial(_route, gate),
                expert_outputs=partial(_expert_outputs, mixture),
                experts=gate.num_experts,
                gate=gate,
            )
        yield HookPoint("block", name, block, layer, block, between=between, pre_norm=family.pre_norm)
    heads_of = ("lm_head", "classifier", "score", "cls.predictions.decoder", "lm_head.decoder")
    for name, module in model.named_modules():
        if known and name in heads_of and isinstance(module, nn.Linear):
            yield HookPoint("logits", name, module, 0)


_lock = threading.Lock()
_replaced: dict[str, Any] = {}
_open = 0
"""The ``with`` blocks of :func:`watching` in all threads. transformers' table is process-wide: the first block replaces
its entries, the last one restores them."""
_watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("_watchers", default=())


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Call ``watcher`` for each attention that a model of transformers computes in this thread within the block.

    transformers looks its attention functions up in a table. Within the block, each entry of the table calls the
    watchers after the original function; the outputs are the same.

    Raises:
        InputError: transformers is missing, or too old to have that table.
    """
    token = _watchers.set((*_watchers.get(), watcher))
    try:
        with _table_replaced():
            yield
    finally:
        _watchers.reset(token)


@contextmanager
def editing(editor: Editor) -> Iterator[None]:
    """:func:`glassformer.layers.attention.editing`, for models of transformers too."""
    with _table_replaced(), attention.editing(editor):
        yield


@contextmanager
def _table_replaced() -> Iterator[None]:
    global _open
    table = _table()
    with _lock:
        if not _open:
            mapping = table._local_mapping
            for name in ("eager", *table.valid_keys()):
                _replaced[name] = mapping.get(name)
                original = table._global_mapping.get(name) if name not in mapping else mapping[name]
                mapping[name] = _watched(name, original)
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                for name, before in _replaced.items():
                    if before is None:
                        table._local_mapping.pop(name, None)
                    else:
                        table._local_mapping[name] = before
                _replaced.clear()


def _table() -> Any:
    try:
        return importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"a model of transformers, and {error}", "transformers 5 or later", "pip install -U transformers"
        ) from error


def _watched(name: str, function: Callable[..., Any] | None) -> Callable[..., Any]:
    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *args: Any, **kwargs: Any
    ) -> Any:
        compute = function
        if compute is None:  # the eager one, which is defined in each model's own file
            compute = sys.modules[type(module).__module__].eager_attention_forward
        dropout = float(kwargs.get("dropout") or 0.0)
        inputs = partial(_inputs, name, module, query, key, value, attention_mask, kwargs)
        call = None if torch.compiler.is_compiling() or not attention.is_edited() else inputs()
        edited = call if call is None else attention.edited(call)
        if edited is call or edited is None:
            result = compute(module, query, key, value, attention_mask, *args, **kwargs)
        else:
            edited = boolean_mask(edited)
            weights = attention.matrices(edited, range(query.shape[1]))[1].to(query.dtype) if name == "eager" else None
            result = attention.compute(edited, dropout).transpose(1, 2), weights
            inputs = partial(boolean_mask, edited)
        if not torch.compiler.is_compiling():
            for watcher in _watchers.get():
                watcher(module, inputs, result[0], dropout)
        return result

    return attend


def _inputs(
    name: str, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> Attended:
    for unknown in ("softcap", "position_bias", "cache"):
        require(
            options.get(unknown) is None,
            f"an attention with {unknown} in {type(module).__name__}",
            "the softmax of scaled products and a mask",
            "Capture other modules.",
        )
    scale = options.get("scaling")
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    # As in the fused functions: an explicit mask is complete, and a single query sees all keys.
    causal = causal and name != "eager" and mask is None and q.shape[2] > 1
    if causal and k.shape[2] > q.shape[2]:  # empty slots of a cache
        k, v = k[:, :, : q.shape[2]], v[:, :, : q.shape[2]]
    if mask is not None:
        mask = mask.bool()[:, None, None, :] if mask.dim() == 2 else mask
        mask = mask[..., : k.shape[2]]
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    return Attended(q, k, v, scale, CAUSAL if causal else FULL, mask=mask, sinks=options.get("s_aux"))


def boolean_mask(call: Attended) -> Attended:
    """With a mask of booleans for one of numbers, which forbids with the lowest or -inf; what else it adds is a rewrite
    of the scores."""
    if call.mask is None or call.mask.dtype == torch.bool:
        return call
    allowed = call.mask > torch.finfo(call.mask.dtype).min / 2
    bias = call.mask.masked_fill(~allowed, 0)
    call = replace(call, mask=allowed)
    if not bool(bias.any()):
        return call
    first = Rewrite("scores", tuple(range(call.q.shape[1])), lambda scores: scores + bias)
    return replace(call, rewrites=(first, *call.rewrites))


def _route(gate: Any, x: Tensor) -> Routed:
    scores, shares, choices = without_other_hooks(gate, x.reshape(-1, x.shape[-1]))
    probabilities = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return tuple(each.view(*x.shape[:-1], -1) for each in (probabilities, choices, shares))


def _expert_outputs(mixture: Any, x: Tensor, choices: Tensor) -> Tensor:
    return one_by_one(lambda tokens, ones, choice: mixture.experts.forward(tokens, choice, ones), x, choices)
