"""Path patching: what one head or feed-forward network tells another one directly."""

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
    """None: the feed-forward network or the mixture of experts of the layer."""


class Receiver(NamedTuple):
    """A part that reads the residual stream."""

    layer: int
    head: int
    """For keys and values, a key-value head."""
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
        """As of a sweep, and the metric with the embedding as the sender."""
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
    """Run the corrupted texts, in which one receiver, or several at once, read the clean output of
    one sender.

    Everything else that the receivers read is as corrupted, so that only the direct path through
    the residual stream counts; what follows the receivers is computed anew. The final norm of
    ``"logits"`` is computed with the new stream.

    Args:
        model: A pre-norm decoder of glassformer or of ``transformers``; arguments that are not
            listed here are as for
            :func:`~glassformer.observe.sweep.patch_sweep`.
        sender: In an earlier layer than the receivers.
        receiver: A head's queries, keys or values; or the logits.

    Raises:
        InputError: A sender that is not before a receiver; a model with post-norm or parallel
            blocks; one within interventions or with hooks, which may change what is on the way.

    Source: Wang et al. 2022, arXiv 2211.00593, section 3.1; Goldowsky-Dill et al. 2023, arXiv
    2304.05969.
    """
    model = network_of(model)
    paths = _Paths(model, clean, corrupted, metric, receiver, logits)
    (start,) = select("sender layer", sender.layer, paths.last)
    late = [layer for layer in paths.layers if layer <= start]
    if late:
        raise InputError(
            got=f"a sender in layer {start} and a receiver in {late[0] if late else None}",
            expected="an earlier sender",
            fix="Swap them.",
        )
    kind: Kind = "ffn" if sender.head is None else "attention"
    sent = paths.sent(start, kind)
    if sender.head is None:
        head = 0
    else:
        head = select("sender head", sender.head, len(sent))[0]
    sender_kind = "ffn" if sender.head is None else "heads"
    return paths.sweep(
        paths.measured(start, kind, sent[[head]]).mean(1), ("layer",), (start,), sender_kind
    )


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
    """:func:`path_patch` from every head, or every feed-forward network, and from the embedding.

    The runs of both texts are shared, and senders run together. Of several receivers, a sender
    reaches those that are in later layers than it is.

    Args:
        model: As for :func:`path_patch`, and so are the others.
        receivers: One receiver, or several that are patched at once.
        senders: Heads, in ``values`` [layer, head], or feed-forward networks, [layer].
        batch_size: Most texts in one forward pass, which bounds the memory.

    Source: As there.
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
    most = max(1, batch_size // paths.rows)
    kind: Kind = "ffn" if senders == "ffn" else "attention"
    rows = []
    for layer in range(max(paths.layers)):
        sent = paths.sent(layer, kind)
        rows.append(
            torch.cat([paths.measured(layer, kind, some).mean(1) for some in sent.split(most)])
        )
    values = torch.stack(rows) if rows else torch.empty(0, 1)
    embedding = paths.measured(-1, "ffn", paths.embedding[None])
    axes: Any = ("layer", "head") if senders == "heads" else ("layer",)
    found = paths.sweep(
        values if senders == "heads" else values[:, 0], axes, tuple(range(len(rows))), senders
    )
    return PathSweep(**vars(found), embedding=float(embedding.mean()))


class _Paths:
    """Both runs, and the receivers, of which those of one layer and kind are edited together."""

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
        given = prepared(clean, corrupted)
        self._texts = given[1]
        self.rows = len(next(iter(given[0].values())))
        blocks = self._runner.blocks
        if (
            self._runner.memory
            or not all(point.pre_norm and point.between is not None for point in blocks)
            or has_post_norm(self._runner.points)
        ):
            raise InputError(
                got=f"{type(model).__name__}",
                expected="a pre-norm model without norms after its parts, which are not parallel",
                fix="Use a pre-norm decoder.",
            )
        on_the_way = is_edited() or self._runner.alone
        if on_the_way:
            raise InputError(
                got="path patching within an intervention, or with hooks",
                expected="the model as it is",
                fix="Close the block, or remove the hooks.",
            )
        self.last = len(blocks)
        self._receivers = self._checked(receivers)
        self.layers = sorted({layer for layer, _ in self._receivers})
        # Capture checks that a block of transformers adds attention and ffn to its stream.
        kinds = ("embedding", "heads", "attention", "ffn", "residual_before", "residual")
        with capture(model, what=kinds) as self._ours:
            self._best = self._runner.run(given[0])
        with capture(model, what=kinds) as self._theirs:
            self._worst = self._runner.run(given[1])
        self.embedding = next(iter(self._ours.last("embedding").values()))
        self._parts = [self._added(self._theirs, layer) for layer in range(self.last)]

    def _checked(self, receivers: Any) -> dict[tuple[int, str], tuple[int, ...]]:
        several = None
        if isinstance(receivers, Sequence) and not isinstance(receivers, str | Receiver):
            several = receivers
        found: dict[tuple[int, str], tuple[int, ...]] = {}
        for receiver in [receivers] if several is None else several:
            if receiver == "logits":
                found[self.last, "logits"] = ()
                continue
            fits = isinstance(receiver, Receiver) and receiver.reads in ("q", "k", "v")
            if not fits:
                raise InputError(
                    got=f"receiver = {receiver!r}",
                    expected="a Receiver, several, or 'logits'",
                    fix="Use Receiver(layer, head).",
                )
            (layer,) = select("receiver layer", receiver.layer, self.last)
            point = self._runner.attentions()[layer]
            heads = point.heads // (1 if receiver.reads == "q" else point.group)
            (head,) = select("receiver head", receiver.head, heads)
            place = layer, receiver.reads
            found[place] = tuple(dict.fromkeys((*found.get(place, ()), head)))
        if not bool(found):
            raise InputError(
                got="no receivers",
                expected="one or more",
                fix="Pass a Receiver.",
            )
        return found

    def _added(self, run: Captured, layer: int) -> dict[str, Tensor]:
        """What attention and feed-forward network of a layer add to the stream."""
        points = {kind: self._runner.places(kind)[layer] for kind in get_args(Kind)}
        return {kind: run.of(kind)[point.name][-1].values for kind, point in points.items()}

    def sent(self, layer: int, kind: Kind) -> Float[Tensor, "sender text position dim"]:
        """The output of a part of a layer with one clean sender: each of its heads, or the network
        itself.
        """
        runner = self._runner
        point = runner.places(kind).get(layer)
        if point is None:
            raise InputError(
                f"a sender in layer {layer}, which has no ffn",
                "another layer",
                "Choose another sender.",
            )
        if kind == "ffn":
            return self._ours.last(kind)[point.name][None]
        attention = runner.attentions()[layer]
        corrupted = self._theirs.last("heads")[attention.name]
        width = corrupted.shape[1] * corrupted.shape[3]
        require_linear(
            attention.out_proj,
            f"the projection of {point.name}",
            width,
            like=corrupted.transpose(1, 2).flatten(2),
        )
        alternatives = [[head] for head in range(attention.heads)]
        return attention_outputs(
            runner, attention, corrupted, self._ours.last("heads")[attention.name], alternatives
        )

    def measured(
        self, sender: int, kind: Kind, sent: Float[Tensor, "copy text position dim"]
    ) -> Float[Tensor, "copy text"]:
        """The metric if the receivers after layer ``sender`` read what this part of it sends; -1:
        the embedding.
        """
        runner = self._runner
        reached = {place: heads for place, heads in self._receivers.items() if place[0] > sender}
        first = min(layer for layer, _ in reached)
        edits: list[Edit] = []
        for (layer, reads), heads in reached.items():
            if reads != "logits":
                stream = self._stream(sender, kind, sent, layer)
                edits.append(
                    put(reads, self._read(layer, reads, heads, stream), layers=layer, heads=heads)
                )
        stream = self._stream(sender, kind, sent, first)
        if first == self.last:
            skip = runner.skips(self._texts, first - 1, "residual", self._theirs)
            logits = runner.resumed(self._texts, first - 1, "residual", stream, skip=skip)
            return runner.measured(logits, self._texts).double()
        corrupted = self._theirs.last("residual_before")[runner.blocks[first].name].repeat(
            len(sent), 1, 1
        )
        skip = runner.skips(self._texts, first, "residual_before", self._theirs)
        with capture(runner.model, what=get_args(Kind)) as run:

            def received(_: Tensor) -> Tensor:
                return self._summed(
                    stream, [self._added(run, layer) for layer in range(first, self.last)]
                )

            if (self.last, "logits") in reached:
                edits.append(change("residual", received, layers=self.last - 1))
            logits = runner.resumed(
                self._texts, first, "residual_before", corrupted, edits=edits, skip=skip
            )
        return runner.measured(logits, self._texts).double()

    def _stream(
        self, sender: int, kind: Kind, sent: Float[Tensor, "copy text position dim"], layer: int
    ) -> Float[Tensor, "row position dim"]:
        """The corrupted stream before a layer, after the last one for all layers, with what the
        sender sends.

        It is summed anew: the difference of what is sent would bring its rounding along.
        """
        if sender == -1:
            return self._summed(sent.flatten(0, 1), self._parts[:layer])
        before = self._theirs.last("residual_before")[self._runner.blocks[sender].name]
        parts = [self._parts[sender] | {kind: sent}, *self._parts[sender + 1 : layer]]
        return self._summed(before, parts).flatten(0, 1)

    def _summed(self, stream: Tensor, parts: Sequence[Mapping[str, Tensor]]) -> Tensor:
        for part in parts:
            for kind in get_args(Kind):
                stream = stream + part[kind]
        return stream

    def _read(self, layer: int, reads: str, heads: tuple[int, ...], stream: Tensor) -> Tensor:
        """Queries, keys or values of some heads of a layer before which the stream is ``stream``."""
        runner = self._runner
        model = self._runner.model
        point = runner.places("heads")[layer]

        def done(values: Tensor, _: Any) -> None:
            raise _Read

        options: dict[str, Any] = {"skip": runner.skips(self._texts, layer, None, self._theirs)}
        with suppress(_Read), scope() as here, capture(model, [point.name], what=reads) as seen:
            here.insert(point.module, "output", done, Phase.READ)
            runner.resumed(self._texts, layer, "residual_before", stream, **options)
        return seen.last(reads)[point.name][:, list(heads)]

    def sweep(self, values: Tensor, axes: Any, layers: tuple[int, ...], site: str) -> Sweep:
        best, worst = (float(each.double().mean()) for each in (self._best, self._worst))
        return Sweep(values, axes, layers, best, worst, site=site, passes=self._runner.passes)


class _Read(Exception):
    """What the receivers read is there."""
