"""Capture some layers of texts, without running the layers after them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers.attention import is_edited
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.modes import evaluating
from glassformer.observe import hugging_face
from glassformer.observe.capture import capture, find_hook_points, network_of
from glassformer.observe.captured import Captured
from glassformer.observe.hook_points import (
    Heads,
    HookPoint,
    Modules,
    Selection,
    choose_points,
    sites_of,
)
from glassformer.observe.module_hooks import ForwardEnded, Phase, other_hooks, scope


@torch.no_grad()
def collect(
    model: Any,
    texts: str | Sequence[str] | Tensor | Mapping[str, Any],
    *,
    what: str | Sequence[str] = "residual",
    layers: Selection | None = None,
    modules: Modules | None = None,
    heads: Heads | None = None,
    queries: Selection | None = None,
) -> Captured:
    """Return the records of :func:`~glassformer.observe.capture.capture` for one batch of texts::

        seen = collect(lm, ["a text", "another text"], layers=3, queries=-1)
        seen[3, "residual"]     # [text, 1, dim]

    The model runs up to the last requested block: the blocks after it and the logits are not
    computed. Values are those of a whole run to the last bit. The whole model runs if logits are
    requested, within interventions, if its modules have forward hooks of users, and if its class
    may run blocks in another order than that of their layers. It runs in evaluation mode and
    without gradients.

    Args:
        model: As for :func:`~glassformer.observe.capture.capture`, like the other arguments.
        texts: One or several texts for a ``LanguageModel``; or token ids ``[text, position]``, or
            the arguments of the model by name. Tensors may be on any device.
        what: One or more kinds of records.
        layers: All layers when None.

    Example:
        >>> from glassformer.models import DecoderConfig
        >>> model = Decoder(DecoderConfig(50, 8, 32, 64, 4, 8))
        >>> seen = collect(model, torch.tensor([[3, 1, 4]]), layers=2)
        >>> seen[2, "residual"].shape  # text, position, dim
        torch.Size([1, 3, 32])

    Raises:
        InputError: As for capture; and strings for a model without a tokenizer.
    """
    network = network_of(model)
    arguments = _arguments(model, network, texts)
    with (
        evaluating(network),
        capture(network, modules, what=what, layers=layers, heads=heads, queries=queries) as seen,
        scope() as hooks,
        suppress(ForwardEnded),
    ):
        last = _last_block(network, what, modules, layers, heads)
        if last is not None:
            hooks.insert(last, "output", _stop, Phase.READ)  # after its records are made
        if isinstance(arguments, Mapping):
            network(**arguments)
        else:
            network(arguments)
    return seen


def _stop(values: Tensor, arguments: Any) -> None:
    raise ForwardEnded


def _last_block(
    network: nn.Module,
    what: str | Sequence[str],
    modules: Modules | None,
    layers: Selection | None,
    heads: Heads | None,
) -> nn.Module | None:
    """Return the block after which all records are made; None if the whole model must run."""
    points = find_hook_points(network)
    blocks = [point for point in points if point.role == "block"]
    # Hooks expect to be called, and an edit that no call reaches is an error.
    if is_edited() or other_hooks(network) or not _runs_in_order(network, blocks):
        return None
    chosen = choose_points(points, sites_of(what), modules, layers, heads)
    if any(point.role == "logits" or point.block is None for point in chosen):
        return None
    # An encoder runs before its decoder.
    return max(chosen, key=lambda point: (not point.source, point.layer)).block


def _runs_in_order(network: nn.Module, blocks: Sequence[HookPoint]) -> bool:
    """Return whether each block runs once, in the order of layers.

    True for models of glassformer and for known blocks of transformers.
    """
    names = [id(module) for _, module in network.named_modules(remove_duplicate=False)]
    once = all(names.count(id(block.module)) == 1 for block in blocks)
    if hugging_face.is_hugging_face(network):
        return once and hugging_face.unknown_block(network, blocks) is None
    return once and type(network) in (Decoder, Encoder, EncoderDecoder)


def _arguments(model: Any, network: nn.Module, texts: Any) -> Tensor | dict[str, Any]:
    """Return the arguments of a model for these texts, on its device."""
    if not isinstance(texts, Tensor | Mapping):
        tokens = getattr(model, "tokens", None)
        if not callable(tokens):
            raise InputError(
                got=f"texts of type {type(texts).__name__} for a {type(model).__name__}",
                expected="token ids [text, position], or the model's arguments by name",
                fix="Pass token ids, or the model that glassformer.load gives.",
            )
        assert tokens is not None
        texts = tokens(texts if isinstance(texts, str) else list(texts))
    parameter = next(network.parameters(), None)
    device = getattr(network, "device", None) if parameter is None else parameter.device
    if isinstance(texts, Tensor):
        return texts.to(device)
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in texts.items()
    }
