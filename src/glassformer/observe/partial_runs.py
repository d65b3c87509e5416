"""Run a model from one of its layers on, for copies of its texts, and apply a metric."""

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
    ForwardEnded,
    Phase,
    is_changed,
    other_hooks,
    scope,
    standing_in,
)

Metric = Callable[[Tensor], Tensor]
"""Maps logits [batch, position, class] to a number for each text [batch], or to their mean []."""

Part = Literal["encoder", "decoder", "cross"]
"""Part of an encoder-decoder: encoder, decoder (with its self-attention) or cross-attention."""

Stage = Literal["residual_before", "residual_between", "residual"]

_NONE: Mapping[int, KeysAndValues] = MappingProxyType({})


class _OnePosition(TorchFunctionMode):
    """Refuses a metric that broadcasts the logits of one position against those of several.

    The shape of its result would not reveal it: the mean of a difference has the right shape.
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
        _check_model(model, self.points, part)
        head = of_kind(self.points, LogitsPoint)[0]
        self._head = head.module
        self._pools = head.name == "score"  # reads each text's last token of a decoder
        blocks = of_kind(self.points, BlockPoint)
        self.known = hugging_face.unknown_block(model, blocks) is None
        """True if parts of the blocks may be skipped; for others :meth:`skips` finds it out."""
        self.alone = bool(other_hooks(model))
        """True if copies of the texts must run one by one and whole.

        Hooks of users may select rows and positions.
        """
        self.passes = 0
        """Forward passes so far, those of some layers or positions included."""
        self._whole: Tensor | None = None
        self._skips: dict[int, bool] = {}  # by the number of skipped blocks
        self._layers_are_checked = False
        self._metric_is_checked = False
        self.blocks = [point for point in blocks if point.source == (part == "encoder")]
        self.memory = [point for point in blocks if point.source and part != "encoder"]
        """The encoder's blocks, where only the decoder is resumed."""
        self.parted = (
            self.known
            and not self.alone
            and all(block.between is not None for block in self.blocks)
        )
        """True if the stream between attention and ffn can be captured and resumed."""

    def places(self, site: str) -> dict[int, HookPoint]:
        """Return the hook points of a site in this part, by layer."""
        role = ROLES[site]
        cross = self._part == "cross"
        if role != "attention" and cross:
            raise InputError(
                got=f"{site} of the cross-attention",
                expected="heads, q, k, v",
                fix="Omit part.",
            )
        source = self._part == "encoder"
        of_role = [point for point in self.points if point.role == role]
        by_layer = {
            point.layer: point
            for point in of_role
            if point.source == source and point.cross == cross
        }
        if not by_layer:
            raise InputError(
                got=f"{site} of {type(self.model).__name__}",
                expected="a site that it has",
                fix="Choose another site.",
            )
        if not self._layers_are_checked:
            self._check_layers()
            self._layers_are_checked = True
        return by_layer

    def _check_layers(self) -> None:
        """Refuse a model in which layers have no attention, or share modules."""
        require_every_layer(self.model, [point.layer for point in self.blocks])
        # Stacks may share an embedding.
        shareable = ("embedding", "logits")
        require_one_place(
            self.model, [point for point in self.points if point.role not in shareable]
        )

    def attentions(self) -> dict[int, AttentionPoint]:
        """Return the attentions in this part, by layer."""
        points = self.places("heads")
        return {point.layer: point for point in of_kind(points.values(), AttentionPoint)}

    def first_needed(self, texts: Mapping[str, Tensor]) -> int:
        """Return the first position to compute if the keys and values before it are known."""
        if self.alone or not self.known:
            return 0
        names = set(texts)
        model = self.model
        if isinstance(model, Decoder):
            can_continue = names <= {"", "tokens", "key_padding"}
        else:
            can_continue = names <= {"", "input_ids", "attention_mask", "position_ids"} and all(
                point.pre_norm and getattr(model, "can_generate", bool)() for point in self.blocks
            )
        if not can_continue:
            return 0
        return min(select("logits", self._logits, _size(texts)[1]))

    def logits(
        self,
        texts: Mapping[str, Tensor],
        copies: int = 1,
        start: int = 0,
        before: Mapping[int, KeysAndValues] = _NONE,
    ) -> Float[Tensor, "row position class"]:
        """Return the logits that the metric reads, in evaluation mode.

        Args:
            texts: The arguments of the model by name.
            copies: Number of copies of the texts.
            start: The first position to compute.
            before: Keys and values of each layer; those before ``start`` are used.
        """
        require_positions(self.model, texts)
        self.passes += 1
        repeated: dict[str, Any] = {
            name: tensor.repeat(copies, *[1] * (tensor.dim() - 1)) for name, tensor in texts.items()
        }

        def read(length: int) -> list[int]:
            return [position - start for position in select("logits", self._logits, start + length)]

        def run() -> Any:
            arguments = self._continued(repeated, start, before) if start else repeated
            positional = [arguments.pop("")] if "" in arguments else []
            return self.model(*positional, **arguments)

        with evaluating(self.model):
            whole = self.alone or self._pools
            ends = self.known and not self._pools
            logits = logits_at(self._head, read, run, whole=whole, ends=ends)
        if logits.dim() == 2:
            return logits[:, None]
        require_real(self.points, texts, "logits", self._logits)
        return logits

    def run(self, texts: Mapping[str, Tensor], copies: int = 1) -> Float[Tensor, "copy text"]:
        """Return the metric of each text of each copy, or one number for each copy."""
        return self.measured(self.logits(texts, copies), texts)

    def measured(self, logits: Tensor, texts: Mapping[str, Tensor]) -> Float[Tensor, "copy value"]:
        """Return the metric of logits: a value for each text of each copy, or one for each copy."""
        copies = logits.unflatten(0, (-1, _size(texts)[0]))
        values = torch.stack([self._measured_alone(copy) for copy in copies])
        if not bool(values.isfinite().all()):
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
            raise InputError(
                got=f"a metric that fails on logits {list(logits.shape)}: {first_line(error)}",
                expected=f"one that reads what is kept, the positions logits = {self._logits!r}",
                fix="Pass the positions that it reads as logits=.",
            ) from error
        is_floating = isinstance(value, Tensor) and value.is_floating_point()
        if not is_floating or value.shape not in ((), logits.shape[:1]):
            form = type(value).__name__
            if isinstance(value, Tensor):
                form = f"{value.dtype} {list(value.shape)}"
            raise InputError(
                got=f"a metric that gives {form}",
                expected=f"a floating number for each text, [{len(logits)}], or their mean, []",
                fix="Choose one class, or a difference of two.",
            )
        return value.reshape(-1)

    def _checked_metric(self, logits: Float[Tensor, "text position vocab"]) -> Any:
        """Return the value of the metric; the first call with one position is checked."""
        if self._metric_is_checked or logits.shape[1] > 1:
            return self._metric(logits)
        with _OnePosition():
            value = self._metric(logits)
        self._metric_is_checked = True
        return value

    def differentiated(
        self, texts: Mapping[str, Tensor], leaves: Sequence[Tensor]
    ) -> Float[Tensor, "copy text"]:
        """Return the metric, and add the gradient of its mean to ``leaves``."""
        logits = self.logits(texts)
        values = self.measured(logits, texts)
        if not logits.requires_grad:
            return values.detach()
        flow = None
        if values.requires_grad:
            (flow,) = torch.autograd.grad(values.mean(), logits, allow_unused=True)
        if flow is None:
            raise InputError(
                got="a metric without a gradient, such as an argmax or a comparison",
                expected="a metric that can be differentiated by the logits",
                fix=(
                    "Use patch_sweep() or ablation_sweep(), which take any metric, or pass a "
                    "difference of logits."
                ),
            )
        torch.autograd.backward(logits, flow, inputs=list(leaves))
        return values.detach()

    def skips(
        self, texts: Mapping[str, Tensor], layer: int, stage: Stage | None, seen: Captured
    ) -> bool:
        """Return whether a run without the blocks before a stage gives the logits of ``seen``."""
        if self.known:
            return True
        stage = "residual" if stage == "residual" else "residual_before"
        num_skipped = layer + (stage == "residual")
        if num_skipped not in self._skips:
            if self._whole is None:
                self._whole = self.logits(texts)
            whole = self._whole
            try:
                stream = seen.last(stage)[self.blocks[layer].name]
                resumed = self.resumed(texts, layer, stage, stream)
                tolerance = 4 * torch.finfo(whole.dtype).eps * float(whole.abs().max())
                self._skips[num_skipped] = float((resumed - whole).abs().max()) <= tolerance
            except Exception:  # a block of an unknown kind may need those before it in any way
                self._skips[num_skipped] = False
        return self._skips[num_skipped]

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
        """Return the logits of a run from a stage of ``layer`` on, with a residual ``stream``.

        Args:
            texts: The texts; ``stream`` holds one copy of them or several, one after another.
            layer: A layer of the part.
            stage: Stage to resume from, for a post-norm block not ``residual_between``. None: a
                whole run, in which ``edits`` are made.
            stream: The output of the blocks before, at all positions or, if :meth:`first_needed`
                allows it, at the last ones.
            memory: The last residual stream of the encoder, if the encoder is not resumed.
            before: Keys and values of each layer in the unchanged run.
            edits: Further changes.
            mixture: A mixture of experts, and the function that changes its output.
            brief: Whether the last network may compute only the positions that the metric reads.
            skip: False to run the blocks before too.
            copies: Number of copies of the texts, if there is no stream.
        """
        rows, length = _size(texts)
        block = self.blocks[layer]
        changes = [*edits]
        start = 0
        if stream is not None:
            copies = len(stream) // rows
            if before:
                start = length - stream.shape[1]
            if stage is not None:
                changes.insert(0, put(stage, stream, modules=[block.name]))
        skipped: list[BlockPoint] = []
        if skip and stage is not None:
            skipped = [*self.blocks[: layer + (stage == "residual")], *self.memory]
        if memory is not None and skipped:
            memories = memory.repeat(copies, 1, 1)
            changes.insert(0, put("residual", memories, modules=[self.memory[-1].name]))
        stand_ins: dict[nn.Module, Callable[..., Any]] = {
            point.module: _unchanged for point in skipped
        }
        if stage == "residual_between" and skipped and block.pre_norm:
            module, zeros = self._without_attention(block)
            stand_ins[module] = zeros
        if brief:
            stand_ins |= self._at_read_positions(edits, start, length)
        with ExitStack() as stack:
            stack.enter_context(repeating(copies))
            stack.enter_context(standing_in(stand_ins))
            if mixture is not None:
                network, output = mixture
                hooks = stack.enter_context(scope())
                hooks.insert(network, "first output", lambda values, _: output(values), Phase.EDIT)
            if changes:
                stack.enter_context(intervene(self.model, *changes))
            if not before:
                return self.logits(texts, copies, start)
            assert stream is not None
            nothing = stream.new_zeros(1, 1, length, 1)
            cached = {
                index: keys_and_values if index >= layer else (nothing, nothing)
                for index, keys_and_values in before.items()
            }
            return self.logits(texts, copies, start, cached)

    def _without_attention(self, block: BlockPoint) -> tuple[nn.Module, Callable[..., Any]]:
        """Return the module that adds a block's attention, and a forward that adds nothing."""
        attentions = of_kind(self.points, AttentionPoint)
        attention = next(point for point in attentions if point.block is block.module)
        foreign = type(attention.module).__module__.startswith("transformers.")
        if foreign or attention.residual_writer is None:
            return attention.module, partial(_nothing, foreign)
        return attention.residual_writer, partial(_nothing, foreign)

    def _at_read_positions(
        self, edits: Sequence[Edit], start: int, length: int
    ) -> dict[nn.Module, Callable[..., Any]]:
        """Return a forward of the last network at only those positions that the metric reads."""
        if any(edit.site == "neurons" for edit in edits):  # which names positions of the network
            return {}
        last = [point for point in self.points if point.block is self.blocks[-1].module]
        if of_kind(last, MixturePoint):
            return {}
        positions = [position - start for position in select("logits", self._logits, length)]
        ffn = of_kind(last, FeedForwardPoint)[0].module
        return {ffn: partial(_at_positions, positions)}

    def _continued(
        self, texts: Mapping[str, Tensor], start: int, before: Mapping[int, KeysAndValues]
    ) -> dict[str, Any]:
        """Return the arguments of a run from ``start`` on, with a cache of the positions before."""
        rows, length = _size(texts)
        arguments: dict[str, Any] = {
            name: tensor[:, start:] for name, tensor in texts.items() if name != "attention_mask"
        }
        cached: list[tuple[Tensor, Tensor]] = []
        for layer in sorted(before):
            k, v = (
                tensor[:, :, :start].repeat(rows // len(tensor), 1, 1, 1)
                for tensor in before[layer]
            )
            cached.append((k, v))
        if not isinstance(self.model, Decoder):
            dynamic_cache: Any = importlib.import_module("transformers").DynamicCache()
            for layer, (k, v) in enumerate(cached):
                dynamic_cache.update(k, v, layer)
            if "attention_mask" in texts:
                arguments["attention_mask"] = texts["attention_mask"]
            return {**arguments, "past_key_values": dynamic_cache}
        last_k = cached[-1][0]
        layer_caches: list[LayerCache] = []
        for layer, (k, _) in enumerate(cached):
            size = (rows, k.shape[1], k.shape[3], length)
            window = self.model.layer_window(layer)
            layer_caches.append(LayerCache(*size, window, dtype=last_k.dtype, device=last_k.device))
        cache = Cache(layer_caches)
        padding = texts.get("key_padding")
        if padding is not None:
            padding = padding[:, :start]
        cache.begin(rows, start, padding)
        for layer_cache, (k, v) in zip(cache.layers, cached, strict=True):
            layer_cache.append(k, v)
        return {**arguments, "cache": cache}


def _check_model(model: nn.Module, points: Sequence[HookPoint], part: Part | None) -> None:
    """Refuse a model without attention or logits, and a part that the model does not have."""
    name = type(model).__name__
    if not points:
        raise InputError(
            got=f"{name}, whose attention is not captured",
            expected="a model that capture() takes",
            fix="Take another model, or load it as a Decoder.",
        )
    if len(of_kind(points, LogitsPoint)) != 1:
        raise InputError(
            got=f"{name}, which has no logits",
            expected="a decoder, or an encoder with a classifier",
            fix="Load the model with its head.",
        )
    parts: list[Part | None] = [None, "decoder"]
    if any(point.source for point in points):
        parts.append("encoder")
    if any(point.cross for point in points):
        parts.append("cross")
    if part not in parts:
        raise InputError(
            got=f"part = {part!r} of {name}",
            expected=f"one of {parts}",
            fix="Omit part.",
        )


_PLACE_BY_PLACE = "Capture and intervene, which take any model, one place at a time."


def require_every_layer(model: nn.Module, layers: Sequence[int]) -> None:
    """Refuse a model of which only ``layers`` have attention.

    Rows of a result would be taken for other layers.
    """
    if list(layers) != list(range(len(layers))):
        raise InputError(
            got=f"{type(model).__name__} with attention in the layers {list(layers)} alone",
            expected="attention in every layer",
            fix=_PLACE_BY_PLACE,
        )


def require_one_place(model: nn.Module, points: Sequence[HookPoint]) -> None:
    """Refuse a model that uses a module of these points in several places."""
    names = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    several = [point.name for point in points if names[id(point.module)] > 1]
    if several:
        raise InputError(
            got=f"{type(model).__name__}, where {', '.join(several[:3])} stands in several places",
            expected="layers with modules of their own",
            fix=_PLACE_BY_PLACE,
        )


def require_one_call(model: nn.Module, seen: Captured) -> None:
    """Refuse a model that ran a module several times in ``seen``, like ALBERT's only block."""
    name = next((record.name for record in seen.records if record.call), None)
    if name is not None:
        raise InputError(
            got=f"{type(model).__name__}, which runs {name} several times",
            expected="layers with modules of their own",
            fix=_PLACE_BY_PLACE,
        )


def require_gradients() -> None:
    """Refuse inference mode, whose tensors have no gradient."""
    if torch.is_inference_mode_enabled():
        raise InputError(
            got="gradients within torch.inference_mode()",
            expected="torch.no_grad(), or none",
            fix="Leave the block.",
        )


def require_positions(model: nn.Module, texts: Mapping[str, Tensor]) -> None:
    """Refuse padding on the left without the positions that learned embeddings need."""
    mask = texts.get("attention_mask")
    if mask is None or mask.dim() != 2 or "position_ids" in texts or bool(mask[:, 0].all()):
        return
    # GPT-2's embedding, which counts padding.
    if any(name.endswith("wpe") for name, _ in model.named_modules()):
        raise InputError(
            got=f"{type(model).__name__} and padding on the left without position_ids",
            expected="its positions",
            fix="Pass position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0).",
        )


def require_real(
    points: Sequence[HookPoint], texts: Mapping[str, Tensor], name: str, selection: Selection
) -> None:
    """Refuse positions at which one of the texts has only padding.

    The last position is padding where padding is on the right.
    """
    names = ("key_padding", "attention_mask")
    if any(point.cross for point in points):
        names = ("target_real", "decoder_attention_mask")
    for mask_name in names:
        mask = texts.get(mask_name)
        if mask is None or mask.dim() != 2:
            continue
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
    """Return the logits at some positions of a run of a model.

    A classifier's logits, [batch, class], are returned as they are.

    Args:
        head: The module that computes logits; it computes no other positions.
        positions: Maps the length of its input to positions in it.
        run: Runs the model, and returns its output.
        whole: Whether the head must read all positions, because hooks may name them. It also reads
            all if its output is edited.
        ends: Whether the run may end with the head, because nothing changes the logits after it.
    """
    outputs: list[Tensor] = []
    whole = whole or is_changed(head, "output")

    def shorten(values: Tensor, _: Any = None) -> Tensor:
        if values.dim() == 2:
            return values
        return values[:, positions(values.shape[1])]

    def note(values: Tensor, _: Any) -> None:
        outputs.append(values)
        if ends:
            raise ForwardEnded

    with scope() as hooks, suppress(ForwardEnded):
        if not whole:
            hooks.insert(head, "input", shorten, Phase.READ)
        hooks.insert(head, "output", note, Phase.READ)
        output = run()
        # These logits include factors and caps.
        outputs.append(output if isinstance(output, Tensor) else output.logits)
    return shorten(outputs[-1]) if whole else outputs[-1]


def _size(texts: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the numbers of texts and positions."""
    first = next(iter(texts.values()))
    return first.shape[0], first.shape[1]


def _unchanged(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the input of a block, in place of its output."""
    return args[0] if args else kwargs["hidden_states"]


def _nothing(foreign: bool, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return zeros in place of the output of an attention."""
    zeros = torch.zeros_like(_unchanged(forward, *args, **kwargs))
    return (zeros, None) if foreign else zeros


def _at_positions(positions: Sequence[int], forward: Callable[..., Any], x: Tensor) -> Tensor:
    """Return the output of a feed-forward network at some positions, zeros at the others."""
    output = forward(x[:, positions])
    zeros = output.new_zeros(*x.shape[:2], output.shape[-1])
    return zeros.index_copy(1, torch.tensor(positions, device=x.device), output)
