"""Hook points of models of Hugging Face's transformers."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.kernels.pattern import CAUSAL, FULL
from glassformer.observe.exact_attention import AttentionInputs
from glassformer.observe.hook_points import HookPoint, Routed, layer_of, one_by_one

Watcher = Callable[[nn.Module, Callable[[], AttentionInputs], Tensor, float], None]
"""Receives an attention's module, its inputs, its output [batch, query, head, value_dim] and its dropout."""


@dataclass(frozen=True)
class _Family:
    """The names of a block's submodules."""

    attention: str
    ffn: str
    cross: str | None = None
    experts: str | None = None


_FAMILIES = {
    "GPT2Block": _Family("attn", "mlp", "crossattention"),
    **dict.fromkeys(("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"), _Family("self_attn", "mlp")),
    "MixtralDecoderLayer": _Family("self_attn", "mlp", experts="mlp"),
    **dict.fromkeys(("BertLayer", "RobertaLayer"), _Family("attention.self", "output.dense", "crossattention.self")),
}


def is_hugging_face(model: nn.Module) -> bool:
    """Whether a model, or a part of it, comes from transformers, which is not imported for the check."""
    return any(type(module).__module__.startswith("transformers.") for module in model.modules())


def points(model: nn.Module) -> Iterator[HookPoint]:
    """Every hook point of a GPT-2, Llama, Mixtral or BERT of transformers, in the order of its modules."""
    for name, block in model.named_modules():
        family = _FAMILIES.get(type(block).__name__)
        if family is None or not type(block).__module__.startswith("transformers."):
            continue
        layer, at = layer_of(name, 0), f"{name}.".removeprefix(".")
        for part in (family.attention, family.cross):
            if part is None or not hasattr(block, part.split(".")[0]):
                continue
            module: Any = block.get_submodule(part)
            config = module.config
            heads = config.num_attention_heads
            group = heads // (getattr(config, "num_key_value_heads", None) or heads)
            sizes = {"heads": heads, "group": group, "cross": part == family.cross}
            yield HookPoint("attention", at + part, module, layer, block, mixed=module, **sizes)
        yield HookPoint("ffn", at + family.ffn, block.get_submodule(family.ffn), layer, block)
        if family.experts is not None:
            mixture: Any = block.get_submodule(family.experts)
            route, outputs = partial(_route, mixture), partial(_expert_outputs, mixture)
            yield HookPoint("experts", at + family.experts, mixture, layer, block, route=route, expert_outputs=outputs)
        yield HookPoint("block", name, block, layer, block)


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
    token = _watchers.set((*_watchers.get(), watcher))
    try:
        yield
    finally:
        _watchers.reset(token)
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
    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *args: Any, **kwargs: Any
    ) -> Any:
        compute = function
        if compute is None:  # the eager one, which is defined in each model's own file
            compute = sys.modules[type(module).__module__].eager_attention_forward
        result = compute(module, query, key, value, attention_mask, *args, **kwargs)
        if not torch.compiler.is_compiling():
            inputs = partial(_inputs, name, module, query, key, value, attention_mask, kwargs)
            for watcher in _watchers.get():
                watcher(module, inputs, result[0], float(kwargs.get("dropout") or 0.0))
        return result

    return attention


def _inputs(
    name: str, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> AttentionInputs:
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
    return AttentionInputs(q, k, v, scale, CAUSAL if causal else FULL, mask=mask, sinks=options.get("s_aux"))


def _route(mixture: Any, x: Tensor) -> Routed:
    scores, shares, choices = mixture.gate.forward(x.reshape(-1, x.shape[-1]))
    probabilities = scores.softmax(-1, dtype=torch.float32)
    return tuple(each.view(*x.shape[:-1], -1) for each in (probabilities, choices, shares))


def _expert_outputs(mixture: Any, x: Tensor, choices: Tensor) -> Tensor:
    return one_by_one(lambda tokens, ones, choice: mixture.experts.forward(tokens, choice, ones), x, choices)
