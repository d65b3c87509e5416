"""Path patching: the direct effect of one head or feed-forward network on another."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.layers.attention import is_edited
from glassformer.observe.capture import capture, network_of
from glassformer.observe.captured import Captured
from glassformer.observe.edits import Edit, change, put
from glassformer.observe.hook_points import Selection, has_post_norm, select
from glassformer.observe.linear_maps import require_linear
from glassformer.observe.module_hooks import Phase, scope
from glassformer.observe.partial_runs import Metric, Runner
from glassformer.observe.sweep import Sweep, attention_outputs, prepared


class Sender(NamedTuple):
    """A part that writes into the residual stream."""

    layer: int
    head: int | None = None
    """Head of the layer's attention. None: its feed-forward network or mixture of experts."""


class Receiver(NamedTuple):
    """A part that reads the residual stream."""

    layer: int
    head: int
    """Query head; a key-value head for keys and values."""
    reads: Literal["q", "k", "v"] = "q"


Receiving = Receiver | Literal["logits"]
Kind = Literal["attention", "ffn"]


@dataclass(frozen=True, eq=False, repr=False)
class PathSweep(Sweep):
    """A sweep over senders; NaN where a sender is before no receiver.

    Args:
        embedding: The metric with the embedding as the sender.
    """

    embedding: float = math.nan

    def about(self) -> str:
        """Return the description of the sweep, and the metric with the embedding as the sender."""
        return f"{super().about()[:-1]}, {self.embedding:.4g} from the embedding:"


@torch.no_grad()
def path_patch(
    model: Any,
    clean: Tensor | Mapping[str, Any],
    corrupted: Tensor | Mapping[str, Any],
    metric: Metric,
    sender: Sender,
    receiver: Receiving | Sequence[Receiving],
    *,
    logits: Selection = -1,
) -> Sweep:
    """Run the corrupted texts, with one sender's clean output where the receivers read it.

    All other inputs of the receivers are those of the corrupted run, so that only the direct path
    through the residual stream counts. Everything after the receivers is computed anew. The final
    norm of ``"logits"`` is computed with the new stream.

    Args:
        model: A pre-norm decoder of glassformer or of ``transformers``; arguments that are not
            listed here are as for :func:`~glassformer.observe.sweep.patch_sweep`.
        sender: A part in an earlier layer than the receivers.
        receiver: The queries, keys or values of a head; or the logits; or several of these at once.

    Raises:
        InputError: A sender that is not before a receiver; a model with post-norm or parallel
            blocks; a model within interventions or with hooks, which may change the path.

    Source: Wang et al. 2022, arXiv 2211.00593, section 3.1; Goldowsky-Dill et al. 2023, arXiv
    2304.05969.
    """
    model = network_of(model)
    paths = _Paths(model, clean, corrupted, metric, receiver, logits)
    (sender_layer,) = select("sender layer", sender.layer, paths.num_layers)
    too_early = [layer for layer in paths.layers if layer <= sender_layer]
    if too_early:
        raise InputError(
            got=f"a sender in layer {sender_layer} and a receiver in {too_early[0]}",
            expected="an earlier sender",
            fix="Swap them.",
        )
    kind: Kind = "attention"
    site = "heads"
    if sender.head is None:
        kind = site = "ffn"
    sent = paths.sent(sender_layer, kind)
    head = 0
    if sender.head is not None:
        (head,) = select("sender head", sender.head, len(sent))
    values = paths.measured(sender_layer, kind, sent[[head]]).mean(1)
    return paths.sweep(values, ("layer",), (sender_layer,), site)


@torch.no_grad()
def path_sweep(
    model: Any,
    clean: Tensor | Mapping[str, Any],
    corrupted: Tensor | Mapping[str, Any],
    metric: Metric,
    receivers: Receiving | Sequence[Receiving],
    *,
    senders: Literal["heads", "ffn"] = "heads",
    logits: Selection = -1,
    batch_size: int = 128,
) -> PathSweep:
    """Run :func:`path_patch` from every head or feed-forward network, and the embedding.

    The runs of both texts are shared, and senders run together. A sender reaches only receivers in
    later layers.

    Args:
        model: As for :func:`path_patch`, like the other arguments.
        receivers: One receiver, or several that are patched at once.
        senders: Heads, in ``values`` [layer, head], or feed-forward networks, [layer].
        batch_size: Most texts in one forward pass, which bounds the memory.

    Source: As for :func:`path_patch`.
    """
    model = network_of(model)
    require_positive(batch_size=batch_size)
    if senders not in ("heads", "ffn"):
        raise InputError(
            got=f"senders = {senders!r}",
            expected="'heads' or 'ffn'",
            fix="Choose one of these.",
        )
    paths = _Paths(model, clean, corrupted, metric, receivers, logits)
    most_copies = max(1, batch_size // paths.rows)
    kind: Kind = "attention"
    if senders == "ffn":
        kind = "ffn"
    rows: list[Tensor] = []
    for layer in range(max(paths.layers)):
        batches = paths.sent(layer, kind).split(most_copies)
        metrics = [paths.measured(layer, kind, sent).mean(1) for sent in batches]
        rows.append(torch.cat(metrics))
    values = torch.stack(rows) if rows else torch.empty(0, 1)
    embedding = paths.measured(-1, "ffn", paths.embedding[None])
    layers = tuple(range(len(rows)))
    if senders == "heads":
        sweep = paths.sweep(values, ("layer", "head"), layers, senders)
    else:
        sweep = paths.sweep(values[:, 0], ("layer",), layers, senders)
    return PathSweep(**vars(sweep), embedding=float(embedding.mean()))


class _Paths:
    """Both runs, and the receivers; receivers of one layer and kind are edited together."""

    def __init__(
        self,
        model: nn.Module,
        clean: Any,
        corrupted: Any,
        metric: Metric,
        receivers: Any,
        logits: Selection,
    ) -> None:
        self._runner = Runner(model, metric, logits)
        clean_texts, self._texts = prepared(clean, corrupted)
        self.rows = len(next(iter(clean_texts.values())))
        _check_model(model, self._runner)
        self.num_layers = len(self._runner.blocks)
        self._receivers = self._by_place(receivers)
        self.layers = sorted({layer for layer, _ in self._receivers})
        # Capture checks that a block of transformers adds attention and ffn to its stream.
        kinds = ("embedding", "heads", "attention", "ffn", "residual_before", "residual")
        with capture(model, what=kinds) as self._clean:
            self._clean_metric = self._runner.run(clean_texts)
        with capture(model, what=kinds) as self._corrupted:
            self._corrupted_metric = self._runner.run(self._texts)
        self.embedding = next(iter(self._clean.last("embedding").values()))
        self._parts = [self._added(self._corrupted, layer) for layer in range(self.num_layers)]

    def _by_place(self, receivers: Any) -> dict[tuple[int, str], tuple[int, ...]]:
        """Return the heads of the receivers by layer and kind; logits follow the last layer."""
        if not isinstance(receivers, Sequence) or isinstance(receivers, str | Receiver):
            receivers = [receivers]
        heads_by_place: dict[tuple[int, str], tuple[int, ...]] = {}
        for receiver in receivers:
            if receiver == "logits":
                heads_by_place[self.num_layers, "logits"] = ()
                continue
            if not isinstance(receiver, Receiver) or receiver.reads not in ("q", "k", "v"):
                raise InputError(
                    got=f"receiver = {receiver!r}",
                    expected="a Receiver, several, or 'logits'",
                    fix="Use Receiver(layer, head).",
                )
            (layer,) = select("receiver layer", receiver.layer, self.num_layers)
            point = self._runner.attentions()[layer]
            num_heads = point.heads
            if receiver.reads != "q":
                num_heads //= point.group
            (head,) = select("receiver head", receiver.head, num_heads)
            place = layer, receiver.reads
            heads = (*heads_by_place.get(place, ()), head)
            heads_by_place[place] = tuple(dict.fromkeys(heads))
        if not heads_by_place:
            raise InputError(
                got="no receivers",
                expected="one or more",
                fix="Pass a Receiver.",
            )
        return heads_by_place

    def _added(self, run: Captured, layer: int) -> dict[str, Tensor]:
        """Return what attention and feed-forward network of a layer add to the stream."""
        points = {kind: self._runner.places(kind)[layer] for kind in get_args(Kind)}
        return {kind: run.of(kind)[point.name][-1].values for kind, point in points.items()}

    def sent(self, layer: int, kind: Kind) -> Float[Tensor, "sender text position dim"]:
        """Return the output of a layer's attention with each clean head, or of its clean ffn."""
        runner = self._runner
        point = runner.places(kind).get(layer)
        if point is None:
            raise InputError(
                got=f"a sender in layer {layer}, which has no ffn",
                expected="another layer",
                fix="Choose another sender.",
            )
        if kind == "ffn":
            return self._clean.last(kind)[point.name][None]
        attention = runner.attentions()[layer]
        clean = self._clean.last("heads")[attention.name]
        corrupted = self._corrupted.last("heads")[attention.name]
        merged = corrupted.transpose(1, 2).flatten(2)
        name = f"the projection of {point.name}"
        require_linear(attention.out_proj, name, merged.shape[-1], like=merged)
        alternatives = [[head] for head in range(attention.heads)]
        return attention_outputs(runner, attention, corrupted, clean, alternatives)

    def measured(
        self, sender: int, kind: Kind, sent: Float[Tensor, "copy text position dim"]
    ) -> Float[Tensor, "copy text"]:
        """Return the metric with the receivers reading what a part of layer ``sender`` sends.

        Only receivers in later layers read it. Layer -1 stands for the embedding.
        """
        runner = self._runner
        texts = self._texts
        last = self.num_layers
        reached = {place: heads for place, heads in self._receivers.items() if place[0] > sender}
        first = min(layer for layer, _ in reached)
        edits: list[Edit] = []
        for (layer, reads), heads in reached.items():
            if reads != "logits":
                stream = self._stream(sender, kind, sent, layer)
                values = self._read(layer, reads, heads, stream)
                edits.append(put(reads, values, layers=layer, heads=heads))
        stream = self._stream(sender, kind, sent, first)
        if first == last:
            skip = runner.skips(texts, first - 1, "residual", self._corrupted)
            logits = runner.resumed(texts, first - 1, "residual", stream, skip=skip)
            return runner.measured(logits, texts).double()
        before = self._corrupted.last("residual_before")[runner.blocks[first].name]
        copies = before.repeat(len(sent), 1, 1)
        skip = runner.skips(texts, first, "residual_before", self._corrupted)
        with capture(runner.model, what=get_args(Kind)) as run:

            def received(_: Tensor) -> Tensor:
                return self._summed(
                    stream, [self._added(run, layer) for layer in range(first, last)]
                )

            if (last, "logits") in reached:
                edits.append(change("residual", received, layers=last - 1))
            logits = runner.resumed(texts, first, "residual_before", copies, edits=edits, skip=skip)
        return runner.measured(logits, texts).double()

    def _stream(
        self, sender: int, kind: Kind, sent: Float[Tensor, "copy text position dim"], layer: int
    ) -> Float[Tensor, "row position dim"]:
        """Return the corrupted stream before a layer, with the output that the sender sends.

        ``layer`` is the number of layers for the stream after the last one.

        The stream is summed anew, since adding a difference would add its rounding.
        """
        if sender == -1:
            return self._summed(sent.flatten(0, 1), self._parts[:layer])
        before = self._corrupted.last("residual_before")[self._runner.blocks[sender].name]
        parts = [self._parts[sender] | {kind: sent}, *self._parts[sender + 1 : layer]]
        return self._summed(before, parts).flatten(0, 1)

    def _summed(self, stream: Tensor, parts: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Return a stream after the layers with these parts."""
        for part in parts:
            for kind in get_args(Kind):
                stream = stream + part[kind]
        return stream

    def _read(self, layer: int, reads: str, heads: tuple[int, ...], stream: Tensor) -> Tensor:
        """Return queries, keys or values that some heads of a layer compute from ``stream``."""
        runner = self._runner
        point = runner.places("heads")[layer]

        def end(values: Tensor, _: Any) -> None:
            raise _HasRead

        skip = runner.skips(self._texts, layer, None, self._corrupted)
        with (
            suppress(_HasRead),
            scope() as hooks,
            capture(runner.model, [point.name], what=reads) as seen,
        ):
            hooks.insert(point.module, "output", end, Phase.READ)
            runner.resumed(self._texts, layer, "residual_before", stream, skip=skip)
        return seen.last(reads)[point.name][:, list(heads)]

    def sweep(self, values: Tensor, axes: Any, layers: tuple[int, ...], site: str) -> Sweep:
        """Return measured values as a sweep."""
        clean = float(self._clean_metric.double().mean())
        corrupted = float(self._corrupted_metric.double().mean())
        return Sweep(values, axes, layers, clean, corrupted, site=site, passes=self._runner.passes)


def _check_model(model: nn.Module, runner: Runner) -> None:
    """Refuse a model in which a part does not add its output to the stream, and changes of it."""
    pre_norm = all(point.pre_norm and point.between is not None for point in runner.blocks)
    if runner.memory or not pre_norm or has_post_norm(runner.points):
        raise InputError(
            got=f"{type(model).__name__}",
            expected="a pre-norm model without norms after its parts, which are not parallel",
            fix="Use a pre-norm decoder.",
        )
    if is_edited() or runner.alone:
        raise InputError(
            got="path patching within an intervention, or with hooks",
            expected="the model as it is",
            fix="Close the block, or remove the hooks.",
        )


class _HasRead(Exception):
    """Raised once the receivers' queries, keys or values are computed."""
