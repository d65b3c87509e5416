"""Run a model from one of its layers on, for several copies of its texts, and take a metric of the
logits.
"""

import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from glassformer.errors import InputError, first_line
from glassformer.layers.cache import Cache, KeysAndValues, LayerCache
from glassformer.models.decoder import Decoder
from glassformer.modes import evaluating
from glassformer.observe import hugging_face
from glassformer.observe.capture import find_hook_points
from glassformer.observe.captured import Captured
from glassformer.observe.edits import Edit, put
from glassformer.observe.hook_points import (
    ROLES,
    AttentionPoint,
    BlockPoint,
    FeedForwardPoint,
    HookPoint,
    LogitsPoint,
    MixturePoint,
    Selection,
    of_kind,
    select,
)
from glassformer.observe.intervene import intervene, repeating
from glassformer.observe.module_hooks import (
    Enough,
    Phase,
    is_changed,
    other_hooks,
    scope,
    standing_in,
)

Metric = Callable[[Tensor], Tensor]
"""From logits [batch, position, class] to one number for each text [batch], or to their mean []."""

Part = Literal["encoder", "decoder", "cross"]
"""Of an encoder-decoder: its encoder, its decoder's blocks and their self-attention, their
cross-attention.
"""

Stage = Literal["residual_before", "residual_between", "residual"]

_NONE: Mapping[int, KeysAndValues] = MappingProxyType({})


class _OnePosition(TorchFunctionMode):
    """Refuses a metric that broadcasts the logits of one position against those of several.

    The shape of its result would not show it: the mean over positions of a difference has the right
    one.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        arguments = (*args, *kwargs.values())
        _require_as_many_positions([value for value in arguments if _may_be_logits(value)])
        return function(*args, **kwargs)


def _may_be_logits(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 3 and value.is_floating_point()


def _require_as_many_positions(tensors: Sequence[Tensor]) -> None:
    widths = {tensor.shape[2] for tensor in tensors if tensor.shape[1] == 1}
    for tensor in tensors:
        if tensor.shape[1] > 1 and tensor.shape[2] in widths:
            raise InputError(
                got=(
                    "a metric that compares the logits of one position with those of "
                    f"{tensor.shape[1]}"
                ),
                expected="as many positions",
                fix="Pass the positions that it reads as logits=, or compare with the same ones.",
            )


class Runner:
    """A model and a metric of its logits; ``part`` says whose layers are resumed."""

    def __init__(
        self, model: nn.Module, metric: Metric, logits: Selection, part: Part | None = None
    ) -> None:
        self.points = find_hook_points(model)
        self.model = model
        self._metric = metric
        self._logits = logits
        self._part = part
        got = f"{type(model).__name__}, whose attention is not captured"
        expected = "a model that capture() takes"
        if len(self.points) <= 0:
            raise InputError(
                got=got,
                expected=expected,
                fix="Take another model, or load it as a Decoder.",
            )
        heads = of_kind(self.points, LogitsPoint)
        got = f"{type(model).__name__}, which has no logits"
        expected = "a decoder, or an encoder with a classifier"
        if len(heads) != 1:
            raise InputError(
                got=got,
                expected=expected,
                fix="Load the model with its head.",
            )
        self._head, self._pools = (
            heads[0].module,
            heads[0].name == "score",
        )  # of a decoder, at each text's last token
        there = {
            "encoder": any(point.source for point in self.points),
            "cross": any(p.cross for p in self.points),
        }
        parts = [None, "decoder", *(name for name, exists in there.items() if exists)]
        if part not in parts:
            raise InputError(
                got=f"part = {part!r} of {type(model).__name__}",
                expected=f"one of {parts}",
                fix="Omit part.",
            )
        blocks = of_kind(self.points, BlockPoint)
        self.known = hugging_face.unknown_block(model, blocks) is None
        """Whether the blocks are of a kind whose parts may be skipped; of others :meth:`skips`
        finds out.
        """
        self.alone = bool(other_hooks(model))
        """Whether copies of the texts must run one by one and whole, as hooks of users may name
        rows and positions.
        """
        self.passes = 0
        """Forward passes so far, those of some layers or positions included."""
        self._whole: Tensor | None = None
        self._skips: dict[int, bool] = {}  # by the number of blocks that are skipped
        self._fits = False
        self._metric_is_checked = False
        self.blocks = [point for point in blocks if point.source == (part == "encoder")]
        self.memory = [point for point in blocks if point.source and part != "encoder"]
        """The encoder's blocks, where only the decoder is resumed."""
        self.parted = (
            self.known
            and not self.alone
            and all(block.between is not None for block in self.blocks)
        )
        """Whether the stream between attention and ffn can be captured, and a run begin there."""

    def places(self, site: str) -> dict[int, HookPoint]:
        """The hook points of a site in this part, by layer."""
        role = ROLES[site]
        cross = self._part == "cross"
        if role != "attention" and cross:
            raise InputError(
                got=f"{site} of the cross-attention",
                expected="heads, q, k, v",
                fix="Omit part.",
            )
        there = [
            point
            for point in self.points
            if point.role == role and point.source == (self._part == "encoder")
        ]
        found = {point.layer: point for point in there if point.cross == cross}
        if len(found) <= 0:
            raise InputError(
                got=f"{site} of {type(self.model).__name__}",
                expected="a site that it has",
                fix="Choose another site.",
            )
        if not self._fits:
            require_every_layer(self.model, [point.layer for point in self.blocks])
            # Stacks may share an embedding.
            require_one_place(
                self.model,
                [point for point in self.points if point.role not in ("embedding", "logits")],
            )
            self._fits = True
        return found

    def attentions(self) -> dict[int, AttentionPoint]:
        """Return the attentions in this part, by layer."""
        points = self.places("heads")
        return {point.layer: point for point in of_kind(points.values(), AttentionPoint)}

    def first_needed(self, texts: Mapping[str, Tensor]) -> int:
        """The first position that must be computed for these texts, if the earlier keys and values
        are known.
        """
        names = set(texts)
        model = self.model
        if self.alone or not self.known:
            return 0
        if isinstance(model, Decoder):
            known = names <= {"", "tokens", "key_padding"}
        else:
            known = names <= {"", "input_ids", "attention_mask", "position_ids"} and all(
                point.pre_norm and getattr(model, "can_generate", bool)() for point in self.blocks
            )
        if known:
            return min(select("logits", self._logits, _size(texts)[1]))
        return 0

    def logits(
        self,
        texts: Mapping[str, Tensor],
        copies: int = 1,
        start: int = 0,
        before: Mapping[int, KeysAndValues] = _NONE,
    ) -> Float[Tensor, "row position class"]:
        """The logits that the metric reads, in evaluation mode.

        Args:
            texts: As given to the model.
            start: The first position to compute.
            before: Keys and values of each layer, of which those before ``start`` are used.
        """
        require_positions(self.model, texts)
        self.passes += 1
        repeated: dict[str, Any] = {
            name: each.repeat(copies, *[1] * (each.dim() - 1)) for name, each in texts.items()
        }

        def read(length: int) -> list[int]:
            return [position - start for position in select("logits", self._logits, start + length)]

        def run() -> Any:
            if start:
                given = self._continued(repeated, start, before)
            else:
                given = repeated
            return self.model(*([given.pop("")] if "" in given else ()), **given)

        with evaluating(self.model):
            whole = self.alone or self._pools
            ends = self.known and not self._pools
            logits = logits_at(self._head, read, run, whole=whole, ends=ends)
        if logits.dim() == 2:
            return logits[:, None]
        require_real(self.points, texts, "logits", self._logits)
        return logits

    def run(self, texts: Mapping[str, Tensor], copies: int = 1) -> Float[Tensor, "copy text"]:
        """The metric of each text of each copy, or one number for each copy; arguments as for
        :meth:`logits`.
        """
        return self.measured(self.logits(texts, copies), texts)

    def measured(self, logits: Tensor, texts: Mapping[str, Tensor]) -> Float[Tensor, "copy value"]:
        """A value for each text of each copy, or one for all its texts: what the metric gives."""
        copies = logits.unflatten(0, (-1, _size(texts)[0]))
        values = torch.stack([self._measured_alone(copy) for copy in copies])
        finite = bool(values.isfinite().all())
        if not finite:
            raise InputError(
                got="a metric that is NaN or infinite",
                expected="finite numbers",
                fix="Check the metric.",
            )
        return values

    def _measured_alone(
        self, logits: Float[Tensor, "text position vocab"]
    ) -> Float[Tensor, " value"]:
        try:
            value = self._checked_metric(logits)
        except (IndexError, RuntimeError) as error:
            got = f"a metric that fails on logits {list(logits.shape)}: {first_line(error)}"
            kept = f"one that reads what is kept, the positions logits = {self._logits!r}"
            raise InputError(got, kept, "Pass the positions that it reads as logits=.") from error
        if (
            not isinstance(value, Tensor)
            or not value.is_floating_point()
            or value.shape not in ((), logits.shape[:1])
        ):
            if isinstance(value, Tensor):
                got = f"{value.dtype} {list(value.shape)}"
            else:
                got = type(value).__name__
            fits = f"a floating number for each text, [{len(logits)}], or their mean, []"
            raise InputError(
                f"a metric that gives {got}", fits, "Choose one class, or a difference of two."
            )
        return value.reshape(-1)

    def _checked_metric(self, logits: Float[Tensor, "text position vocab"]) -> Any:
        """Return what the metric gives; the first time that it gets one position, see what it
        compares this with.
        """
        if self._metric_is_checked or logits.shape[1] > 1:
            return self._metric(logits)
        with _OnePosition():
            value = self._metric(logits)
        self._metric_is_checked = True
        return value

    def differentiated(
        self, texts: Mapping[str, Tensor], leaves: Sequence[Tensor]
    ) -> Float[Tensor, "copy text"]:
        """:meth:`run`, with the gradient of its mean in what ``leaves`` give; none if edits cut the
        logits off.
        """
        logits = self.logits(texts)
        values = self.measured(logits, texts)
        if not logits.requires_grad:
            return values.detach()
        flow = None
        if values.requires_grad:
            (flow,) = torch.autograd.grad(values.mean(), logits, allow_unused=True)
        if flow is None:
            raise InputError(
                "a metric without a gradient, such as an argmax or a comparison",
                "a metric that can be differentiated by the logits",
                "Use patch_sweep() or ablation_sweep(), which take any metric, or pass a "
                "difference of logits.",
            )
        torch.autograd.backward(logits, flow, inputs=list(leaves))
        return values.detach()

    def skips(
        self, texts: Mapping[str, Tensor], layer: int, stage: Stage | None, seen: Captured
    ) -> bool:
        """Whether a run that skips the blocks before a stage of ``layer`` gives the same logits as
        ``seen``.
        """
        stage = "residual" if stage == "residual" else "residual_before"
        count = layer + (stage == "residual")
        if not self.known and count not in self._skips:
            whole = self._whole = self.logits(texts) if self._whole is None else self._whole
            try:
                found = self.resumed(texts, layer, stage, seen.last(stage)[self.blocks[layer].name])
                near = 4 * torch.finfo(whole.dtype).eps * float(whole.abs().max())
                self._skips[count] = float((found - whole).abs().max()) <= near
            except Exception:  # whatever a block of an unknown kind does without those before it
                self._skips[count] = False
        return self.known or self._skips[count]

    def resumed(
        self,
        texts: Mapping[str, Tensor],
        layer: int,
        stage: Stage | None,
        stream: Tensor | None,
        *,
        memory: Float[Tensor, "text source dim"] | None = None,
        before: Mapping[int, KeysAndValues] = _NONE,
        edits: Sequence[Edit] = (),
        mixture: tuple[nn.Module, Callable[[Tensor], Tensor]] | None = None,
        brief: bool = False,
        skip: bool = True,
        copies: int = 1,
    ) -> Float[Tensor, "row position class"]:
        """The logits of a run from a stage of ``layer`` on, at which the residual stream is
        ``stream``.

        Args:
            texts: The texts, of which ``stream`` holds one copy or several, one after another.
            layer: A layer of the part.
            stage: Of a post-norm block not ``residual_between``. None: a whole run, in which
                ``edits`` are made.
            stream: What the blocks before would give, at all positions or, if :meth:`first_needed`
                allows it, the last.
            memory: The last residual stream of the encoder, where it is not resumed itself.
            before: Keys and values of each layer in the unchanged run.
            edits: What else is changed.
            mixture: A mixture of experts, and what its output becomes.
            brief: Whether the last network may compute only the positions that the metric reads.
            skip: False: the blocks before run too.
            copies: Without a stream.
        """
        rows, length = _size(texts)
        if before and stream is not None:
            start = length - stream.shape[1]
        else:
            start = 0
        block = self.blocks[layer]
        copies = copies if stream is None else len(stream) // rows
        if stream is None or stage is None:
            changes = [*edits]
        else:
            changes = [put(stage, stream, modules=[block.name]), *edits]
        if skip and stage is not None:
            skipped = [*self.blocks[: layer + (stage == "residual")], *self.memory]
        else:
            skipped = []
        if memory is not None and skipped:
            changes.insert(
                0, put("residual", memory.repeat(copies, 1, 1), modules=[self.memory[-1].name])
            )
        with ExitStack() as attached:
            attached.enter_context(repeating(copies))
            stand_ins: dict[nn.Module, Callable[..., Any]] = {
                point.module: _unchanged for point in skipped
            }
            if stage == "residual_between" and skipped and block.pre_norm:
                attention = next(
                    p for p in of_kind(self.points, AttentionPoint) if p.block is block.module
                )
                foreign = type(attention.module).__module__.startswith("transformers.")
                adding = attention.module
                if not foreign and attention.residual_writer is not None:
                    adding = attention.residual_writer
                stand_ins[adding] = partial(_nothing, foreign)
            if brief:
                read = [each - start for each in select("logits", self._logits, length)]
                last = [point for point in self.points if point.block is self.blocks[-1].module]
                inside = any(
                    edit.site == "neurons" for edit in edits
                )  # which names positions of the network
                if not inside and not of_kind(last, MixturePoint):
                    ffn = of_kind(last, FeedForwardPoint)[0].module
                    stand_ins[ffn] = partial(_at_positions, read)
            attached.enter_context(standing_in(stand_ins))
            if mixture is not None:
                module, output = mixture
                here = attached.enter_context(scope())
                here.insert(module, "first output", lambda values, _: output(values), Phase.EDIT)
            if changes:
                attached.enter_context(intervene(self.model, *changes))
            options: dict[str, Any] = {}
            if before:
                assert stream is not None
                nothing = stream.new_zeros(1, 1, length, 1)
                options["before"] = {
                    each: known if each >= layer else (nothing, nothing)
                    for each, known in before.items()
                }
            return self.logits(texts, copies, start, **options)

    def _continued(
        self, texts: Mapping[str, Tensor], start: int, before: Mapping[int, KeysAndValues]
    ) -> dict[str, Any]:
        """The arguments of a run of the positions from ``start`` on, with a cache of those before."""
        rows, length = _size(texts)
        given: dict[str, Any] = {
            name: each[:, start:] for name, each in texts.items() if name != "attention_mask"
        }
        known = [
            [each[:, :, :start].repeat(rows // len(each), 1, 1, 1) for each in before[layer]]
            for layer in sorted(before)
        ]
        if not isinstance(self.model, Decoder):
            cache: Any = importlib.import_module("transformers").DynamicCache()
            for layer, (k, v) in enumerate(known):
                cache.update(k, v, layer)
            mask = {name: each for name, each in texts.items() if name == "attention_mask"}
            return {**given, **mask, "past_key_values": cache}
        windows = map(self.model.layer_window, range(len(known)))
        sizes = [(rows, k.shape[1], k.shape[3], length) for k, _ in known]
        options: Any = {"dtype": known[-1][0].dtype, "device": known[-1][0].device}
        cache = Cache(
            [
                LayerCache(*size, window, **options)
                for size, window in zip(sizes, windows, strict=True)
            ]
        )
        padding = texts.get("key_padding")
        cache.begin(rows, start, None if padding is None else padding[:, :start])
        for own, (k, v) in zip(cache.layers, known, strict=True):
            own.append(k, v)
        return {**given, "cache": cache}


_PLACE_BY_PLACE = "Capture and intervene, which take any model, one place at a time."


def require_every_layer(model: nn.Module, layers: Sequence[int]) -> None:
    """Refuse a model of which only ``layers`` have attention: rows of a result would stand for
    other layers.
    """
    if list(layers) != list(range(len(layers))):
        raise InputError(
            got=f"{type(model).__name__} with attention in the layers {list(layers)} alone",
            expected="attention in every layer",
            fix=_PLACE_BY_PLACE,
        )


def require_one_place(model: nn.Module, points: Sequence[HookPoint]) -> None:
    """Refuse a model in which a module of these stands in several places, which could not be told
    apart.
    """
    names = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    several = [point.name for point in points if names[id(point.module)] > 1]
    if several:
        raise InputError(
            got=f"{type(model).__name__}, where {', '.join(several[:3])} stands in several places",
            expected="layers with modules of their own",
            fix=_PLACE_BY_PLACE,
        )


def require_one_call(model: nn.Module, seen: Captured) -> None:
    """Refuse a model that ran a module several times in what was ``seen``, as ALBERT its only
    block.
    """
    name = next((record.name for record in seen.records if record.call), None)
    if name is not None:
        raise InputError(
            got=f"{type(model).__name__}, which runs {name} several times",
            expected="layers with modules of their own",
            fix=_PLACE_BY_PLACE,
        )


def require_gradients() -> None:
    """Refuse inference mode, whose tensors have no gradient."""
    inference = torch.is_inference_mode_enabled()
    if inference:
        raise InputError(
            got="gradients within torch.inference_mode()",
            expected="torch.no_grad(), or none",
            fix="Leave the block.",
        )


def require_positions(model: nn.Module, texts: Mapping[str, Tensor]) -> None:
    """Refuse padding on the left without positions where these are learned and padding is counted,
    as in GPT-2.
    """
    mask = texts.get("attention_mask")
    if mask is None or mask.dim() != 2 or "position_ids" in texts or bool(mask[:, 0].all()):
        return
    learned = any(name.endswith("wpe") for name, _ in model.named_modules())
    if learned:
        raise InputError(
            got=f"{type(model).__name__} and padding on the left without position_ids",
            expected="its positions",
            fix="Pass position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0).",
        )


def require_real(
    points: Sequence[HookPoint], texts: Mapping[str, Tensor], name: str, selection: Selection
) -> None:
    """Refuse positions that are padding alone in one of the texts, as the last one is where padding
    is on the right.
    """
    crossed = any(point.cross for point in points)
    if crossed:
        masks = ("target_real", "decoder_attention_mask")
    else:
        masks = ("key_padding", "attention_mask")
    for mask in (each for each in map(texts.get, masks) if each is not None and each.dim() == 2):
        real = mask[:, list(select(name, selection, mask.shape[1]))].bool().any(1)
        if not bool(real.all()):
            raise InputError(
                got=f"{name} = {selection!r}, which is padding in text {int(real.int().argmin())}",
                expected="a real token of each text",
                fix="Pad the texts on the left.",
            )


def logits_at(
    head: nn.Module,
    positions: Callable[[int], list[int]],
    run: Callable[[], Any],
    *,
    whole: bool,
    ends: bool,
) -> Tensor:
    """The logits at some positions of a run of a model; a classifier's, [batch, class], as they
    are.

    Args:
        head: The module that computes logits; of other positions it computes none.
        positions: From the length of its input to positions in it.
        whole: Whether the head must read all positions, as hooks may name them; edits of its output
            do.
        ends: Whether the run may end with the head, as nothing changes the logits after it.
    """
    found: list[Tensor] = []
    whole = whole or is_changed(head, "output")

    def shorten(values: Tensor, _: Any = None) -> Tensor:
        if values.dim() == 2:
            return values
        return values[:, positions(values.shape[1])]

    def note(values: Tensor, _: Any) -> None:
        found.append(values)
        if ends:
            raise Enough

    with scope() as here, suppress(Enough):
        if not whole:
            here.insert(head, "input", shorten, Phase.READ)
        here.insert(head, "output", note, Phase.READ)
        output = run()
        found.append(
            output if isinstance(output, Tensor) else output.logits
        )  # with factors and caps
    return shorten(found[-1]) if whole else found[-1]


def _size(texts: Mapping[str, Tensor]) -> tuple[int, int]:
    """Texts and positions."""
    first = next(iter(texts.values()))
    return first.shape[0], first.shape[1]


def _unchanged(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The input of a block instead of its output."""
    return args[0] if args else kwargs["hidden_states"]


def _nothing(foreign: bool, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Zeros instead of the output of an attention."""
    zeros = torch.zeros_like(_unchanged(own, *args, **kwargs))
    return (zeros, None) if foreign else zeros


def _at_positions(positions: Sequence[int], own: Callable[..., Any], x: Tensor) -> Tensor:
    """The output of a feed-forward network at some positions, zeros at the others."""
    made = own(x[:, positions])
    return made.new_zeros(*x.shape[:2], made.shape[-1]).index_copy(
        1, torch.tensor(positions, device=x.device), made
    )
