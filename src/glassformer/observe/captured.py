"""The result of a capture: tensors with labels for their axes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers.attention import Attended
from glassformer.observe.results import counted
from glassformer.observe.site_names import meant_site

AXES = MappingProxyType(
    {
        **dict.fromkeys(("weights", "scores"), ("batch", "head", "query", "key")),
        "sinks": ("batch", "head", "query"),
        "q": ("batch", "head", "query", "dim"),
        **dict.fromkeys(("k", "v"), ("batch", "head", "key", "dim")),
        **dict.fromkeys(
            ("embedding", "residual_before", "residual_between", "residual"),
            ("batch", "query", "dim"),
        ),
        "attention": ("batch", "query", "dim"),
        "heads": ("batch", "head", "query", "dim"),
        **dict.fromkeys(("attention_input", "ffn_input"), ("batch", "query", "dim")),
        "neurons": ("batch", "query", "neuron"),
        "ffn": ("batch", "query", "dim"),
        "logits": ("batch", "query", "class"),
        "router": ("batch", "query", "expert"),
        **dict.fromkeys(("choices", "shares"), ("batch", "query", "choice")),
        "experts": ("batch", "query", "choice", "dim"),
    }
)
"""Sites that can be captured, and the axes of their tensors."""


@dataclass(frozen=True, eq=False, repr=False)
class Record:
    """One tensor of one call of one module.

    Args:
        what: A key of ``AXES``, which names the axes of ``values``.
        name: The module's name in ``model.named_modules()``.
        layer: Index of its block in its stack, from 0.
        call: Index of this call of the module within the capture, from 0.
        values: Attention weights and scores are in float32 or wider.
        heads: The heads on the head axis; key-value heads for ``k`` and ``v``.
        queries: The positions on the query axis, counted from the start of the text.
        length: Number of positions of the text so far; of the memory for ``k`` and ``v`` in
            cross-attention.
        source: Whether the queries are positions of an encoder-decoder's source.
        cross: Whether the keys are positions of another text than the queries.
        padded: Whether some positions of some texts were padding in this call.
        real: True where a position of the record is a real token of its text. The positions are
            ``queries``, or ``keys`` for ``k`` and ``v``; with a cache they are those of this call.
            None if no position is padding, or if a mask of transformers masks more than padding
            (then ``padded`` is True).
        gradient: Returns the gradient for :attr:`grad`; None if gradients are not retained.
    """

    what: str
    name: str
    layer: int
    call: int
    values: Shaped[Tensor, "*axes"]
    heads: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | range | None = None
    length: int | None = None
    source: bool = False
    cross: bool = False
    padded: bool = False
    real: Bool[Tensor, "batch position"] | None = None
    gradient: Callable[[], Tensor | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A graph cannot be stored: store the value of the gradient instead.
        gradient = None if self.gradient is None else partial(_stored, self.gradient())
        return {**self.__dict__, "gradient": gradient}

    def __repr__(self) -> str:
        return f"Record({self.what} {list(self.values.shape)} of {self.name}, call {self.call})"

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes of ``values``."""
        return AXES[self.what]

    def numpy(self) -> Shaped[np.ndarray, "*axes"]:
        """Return the values as a NumPy array on the CPU, bfloat16 as float32."""
        values = self.values.detach().cpu()
        if values.dtype == torch.bfloat16:  # which NumPy lacks
            values = values.float()
        return values.numpy()

    @property
    def grad(self) -> Float[Tensor, "*axes"] | None:
        """Gradient of all backward passes so far, shaped like ``values``; None before the first.

        Raises:
            InputError: A record without a gradient.
        """
        if self.gradient is None:
            raise InputError(
                got=f"a record of {self.what} that keeps no gradient",
                expected=(
                    "any kind but sinks, router, choices, shares and experts, captured while "
                    "gradients are on"
                ),
                fix=(
                    "Capture with retain_grad=True and without torch.no_grad(). Where weights are "
                    "packed or frozen, do so within intervene(model, "
                    'change("embedding", lambda values: values.requires_grad_())).'
                ),
            )
        return self.gradient()


def _stored(gradient: Tensor | None) -> Tensor | None:
    return gradient


@dataclass(frozen=True, eq=False)
class CapturedInputs:
    """Copies of the inputs of one call of an attention, from which any of its rows can be computed.

    Fields other than ``inputs`` are those of :class:`Record`. The values ``v`` are left out: their
    ``value_dim`` is 0.
    """

    name: str
    layer: int
    inputs: Attended
    source: bool = False
    cross: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Captured:
    """The result of :func:`~glassformer.observe.capture.capture`, which grows while the model runs.

    Args:
        records: All records, in the order in which they were computed.
        inputs: The inputs of each call of each chosen attention, if "inputs" was asked for.
        model: The model that was captured, while it exists and in the process that captured it.
    """

    records: list[Record] = field(default_factory=list)
    inputs: list[CapturedInputs] = field(default_factory=list)
    model: Callable[[], nn.Module | None] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "model": None}  # a weak reference cannot be stored

    def __repr__(self) -> str:
        lines = [
            f"Captured: {counted(len(self.records), 'record')}, "
            f"{counted(len(self.inputs), 'input')}"
        ]
        for what in dict.fromkeys(record.what for record in self.records):
            records = [record for record in self.records if record.what == what]
            layers = sorted({record.layer for record in records})
            span = f"{len(layers)} layers, {layers[0]} to {layers[-1]}"
            if len(layers) == 1:
                span = f"layer {layers[0]}"
            shapes = sorted({str([*record.values.shape]) for record in records})
            other = "" if len(shapes) == 1 else " and other shapes"
            axes = ", ".join(AXES[what])
            lines.append(
                f"  {what}: {span}, {shapes[0]}{other} [{axes}], {counted(len(records), 'record')}"
            )
        if any(record.real is not None for record in self.records):
            lines.append("  with padding: .real is True where a token is real")
        elif any(record.padded for record in self.records):
            lines.append("  of texts with padding")
        return "\n".join(lines)

    @property
    def real(self) -> Bool[Tensor, "batch position"] | None:
        """True where a position is a real token of its text, None where none is padding::

            seen[3, "residual"][seen.real]      # [token, dim], without padding

        Raises:
            InputError: Records of several calls or positions, which differ: each has
                ``record.real``.
        """
        masks = [record.real for record in self.records]
        first = next((mask for mask in masks if mask is not None), None)
        if first is None:
            return None
        if any(mask is None or not torch.equal(mask, first) for mask in masks):
            raise InputError(
                got="real of records that differ in their positions or their padding",
                expected="records of one call and the same positions",
                fix="Read the real of each record.",
            )
        return first

    def of(self, what: str) -> dict[str, list[Record]]:
        """Return all records of one kind by module, in the order of the calls.

        Modules without any have no entry.
        """
        if what not in AXES:
            raise InputError(
                got=f"what = {what!r}",
                expected=f"one of {', '.join(AXES)}",
                fix=meant_site(what, AXES),
            )
        by_module: dict[str, list[Record]] = {}
        for record in self.records:
            if record.what == what:
                by_module.setdefault(record.name, []).append(record)
        return by_module

    def last(self, what: str) -> dict[str, Tensor]:
        """Return the values of each module's last record of one kind."""
        return {name: records[-1].values for name, records in self.of(what).items()}

    def __getitem__(self, place: tuple[int, str]) -> Shaped[Tensor, "*axes"]:
        """Return the values of a layer, as in ``seen[17, "heads"]``.

        Negative layers count from the last layer that was captured.
        """
        if not (isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], int)):
            raise InputError(
                got=f"seen[{place!r}]",
                expected="a layer and what it gives",
                fix='Write seen[17, "heads"].',
            )
        layer, what = place
        layers = self._layers(what)
        if layer < 0 and layers:
            layer += layers[-1] + 1
        records = [
            record for record in self.records if record.what == what and record.layer == layer
        ]
        if not records:
            raise InputError(
                got=f"{what} of layer {layer}",
                expected=f"what was captured: {self._places(what)}",
                fix="Capture it.",
            )
        if len(records) != 1:
            raise InputError(
                got=f"{what} of layer {layer}, of which there are {len(records)}",
                expected="one module and one call",
                fix=f"Choose among the records of of({what!r}), or use cat({what!r}).",
            )
        return records[0].values

    def _layers(self, what: str) -> list[int]:
        """Return the layers of one kind, in ascending order."""
        records = chain.from_iterable(self.of(what).values())
        return sorted({record.layer for record in records})

    def _places(self, what: str) -> str:
        """Return the captured layers of one kind in words, or all kinds with their layers."""
        kinds = dict.fromkeys(record.what for record in self.records)
        if what in kinds:
            kinds = {what: None}
        parts: list[str] = []
        for kind in kinds:
            layers = self._layers(kind)
            name = "layer" if len(layers) == 1 else "layers"
            parts.append(f"{kind} of {name} {', '.join(map(str, layers))}")
        return "; ".join(parts) or "nothing yet"

    def stack(self, what: str) -> Shaped[Tensor, " layer *axes"]:
        """Return the values of all layers, in their order."""
        layers = self._layers(what)
        if not layers:
            raise InputError(
                got=f"stack({what!r})",
                expected="what was captured",
                fix="Capture it.",
            )
        values = [self[layer, what] for layer in layers]
        if any(of_layer.shape != values[0].shape for of_layer in values):
            raise InputError(
                got=f"stack({what!r}) of layers of other shapes",
                expected="equal shapes",
                fix="Read each layer alone.",
            )
        return torch.stack(values)

    def cat(self, what: str) -> dict[str, Shaped[Tensor, "*axes"]]:
        """Return the values of all calls of each module, concatenated along the batch axis."""
        by_module = self.of(what)
        for name, records in by_module.items():
            shapes = {tuple(record.values.shape[1:]) for record in records}
            if len(shapes) != 1:
                raise InputError(
                    got=f"cat({what!r}) of {name} with {sorted(shapes)}",
                    expected="equal shapes",
                    fix="Use of().",
                )
        return {
            name: torch.cat([record.values for record in records])
            for name, records in by_module.items()
        }

    def numpy(self, what: str) -> dict[str, np.ndarray]:
        """Return the values of :meth:`last` as NumPy arrays."""
        return {name: records[-1].numpy() for name, records in self.of(what).items()}

    @property
    def weights(self) -> dict[str, Float[Tensor, "batch head query key"]]:
        """The attention weights of each module's last call."""
        return self.last("weights")
