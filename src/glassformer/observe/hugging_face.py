"""Hook points of models of Hugging Face's transformers."""

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.kernels.pattern import CAUSAL, FULL
from glassformer.layers import attention
from glassformer.layers.attention import Attended, Editor
from glassformer.layers.opened import entries, opened
from glassformer.observe.block_structure import Parts, calls_interface, parts_of
from glassformer.observe.exact_attention import exact_rows
from glassformer.observe.hook_points import (
    AttentionPoint,
    BlockPoint,
    EmbeddingPoint,
    FeedForwardPoint,
    HookPoint,
    LogitsPoint,
    MixturePoint,
    Routed,
    layer_of,
    of_kind,
    one_by_one,
)
from glassformer.observe.module_hooks import Phase, Scope, scope, without_other_hooks
from glassformer.observe.patches import patched

Watcher = Callable[[nn.Module, Callable[[], Attended], Tensor, float], None]
"""Receives an attention, its inputs, its output [batch, query, head, value_dim] and its dropout."""


def is_hugging_face(model: nn.Module) -> bool:
    """Return whether a part of a model comes from transformers, without importing it."""
    return any(type(module).__module__.startswith("transformers.") for module in model.modules())


_RESUMED = (
    "GPT2Block",
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "MixtralDecoderLayer",
    "GptOssDecoderLayer",
    "BertLayer",
    "RobertaLayer",
)
"""Blocks of which a run may skip parts."""


def unknown_block(model: nn.Module, blocks: Sequence[HookPoint]) -> str | None:
    """Return the first class of a block of transformers that is not known here, or None.

    Such blocks may have factors of parts, caps of logits, or read another layer. Code that reads or
    skips their parts must check its results.
    """
    names = (type(block.module).__name__ for block in blocks)
    unknown = (name for name in names if name not in _RESUMED)
    return next(unknown, None) if is_hugging_face(model) else None


def require_resumable(model: nn.Module, blocks: Sequence[HookPoint]) -> None:
    """Refuse a model of transformers with blocks of a class that is not known here."""
    unknown = unknown_block(model, blocks)
    if unknown is not None:
        raise InputError(
            got=f"{type(model).__name__} with blocks of {unknown}",
            expected=f"a model of glassformer, or of transformers with {', '.join(_RESUMED)}",
            fix=(
                "Load it with glassformer, or use capture() and intervene(), which take this model."
            ),
        )


def points(model: nn.Module) -> Iterator[HookPoint]:
    """Yield every hook point of a model of transformers, in the order of its modules.

    Attentions are the modules that call transformers' attention interface. Their blocks are members
    of a list of like modules. The parts of a block are read from its source; :func:`proving` checks
    them when the block first runs.
    """
    modules = dict(model.named_modules())
    attentions_of: dict[str, list[str]] = {}
    for name, module in modules.items():
        if calls_interface(module):
            attentions_of.setdefault(_block_of(name, modules) or name, []).append(name)
    sources = _source_blocks(attentions_of)
    parts_by_structure: dict[Any, Parts] = {}
    num_lone = 0
    for name, attentions in attentions_of.items():
        if name == attentions[0]:  # an attention in no block
            yield _lone_attention(name, modules[name], num_lone)
            num_lone += 1
            continue
        block = modules[name]
        structure = _structure(block)
        if structure not in parts_by_structure:
            parts_by_structure[structure] = parts_of(block)
        parts = parts_by_structure[structure]
        yield from _points_of_block(name, modules, attentions, parts, name in sources)
    if attentions_of:
        yield from _logits_points(model, modules)


def _source_blocks(attentions_of: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the names of an encoder's blocks: their stack has no cross-attention."""
    stacks = {name: name.rpartition(".")[0] for name in attentions_of}
    crossed = {
        stacks[name] for name, inside in attentions_of.items() if any(map(_is_cross, inside))
    }
    if not crossed or len(set(stacks.values())) == 1:
        return set()
    return {name for name, stack in stacks.items() if stack not in crossed}


def _lone_attention(name: str, module: nn.Module, index: int) -> AttentionPoint:
    """Return the hook point of an attention in no block."""
    return AttentionPoint(
        name=name,
        module=module,
        layer=layer_of(name, index),
        block=None,
        source=False,
        kind="self",
        **_sizes(module),
        has_sinks=False,
        out_proj=None,
        residual_writer=None,
        post_norm=False,
    )


def _points_of_block(
    name: str,
    modules: Mapping[str, nn.Module],
    attentions: Sequence[str],
    parts: Parts,
    source: bool,
) -> Iterator[HookPoint]:
    """Yield the hook points of a block."""
    block = modules[name]
    prefix = f"{name}.".removeprefix(".")
    shared: dict[str, Any] = {"layer": layer_of(name, 0), "block": block, "source": source}

    def part(inner_name: str | None) -> nn.Module | None:
        return None if inner_name is None else modules[prefix + inner_name]

    if shared["layer"] == 0:
        yield EmbeddingPoint(name=name, module=block, **shared)
    for attention_name in attentions:
        module = modules[attention_name]
        out_proj, writer, post_norm = parts.attentions.get(
            attention_name.removeprefix(prefix), (None, None, False)
        )
        yield AttentionPoint(
            name=attention_name,
            module=module,
            **shared,
            **_sizes(module),
            kind="cross" if _is_cross(attention_name) else "self",
            has_sinks=isinstance(getattr(module, "sinks", None), Tensor),
            out_proj=part(out_proj),
            residual_writer=part(writer),
            post_norm=post_norm,
        )
    if parts.ffn is not None:
        ffn = part(parts.ffn)
        assert ffn is not None
        network: Any = part(parts.network)
        yield FeedForwardPoint(
            name=prefix + parts.ffn,
            module=ffn,
            **shared,
            reads=part(parts.reads),
            down_proj=_last_projection(network) if parts.network == parts.reads else network,
        )
        gate: Any = getattr(network, "gate", getattr(network, "router", None))
        if _is_known_router(block, gate):
            yield MixturePoint(
                name=prefix + parts.ffn,
                module=network,
                **shared,
                experts=gate.num_experts,
                gate=gate,
                route=partial(_route, gate),
                expert_outputs=partial(_expert_outputs, network),
                post_norm=False,
            )
    norms = tuple(modules[prefix + norm] for norm in parts.norms)
    yield BlockPoint(
        name=name,
        module=block,
        **shared,
        between=part(parts.between),
        pre_norm=not norms,
        norms=norms,
    )


def _last_projection(network: nn.Module) -> nn.Module | None:
    """Return the last projection of a dense feed-forward network."""
    for name in ("down_proj", "c_proj", "dense_4h_to_h", "fc2"):
        projection = getattr(network, name, None)
        if isinstance(projection, nn.Module):
            return projection
    return None


def _is_known_router(block: nn.Module, gate: Any) -> bool:
    """Return whether a router gives scores, routing weights and choices as in the known blocks."""
    version = sys.modules["transformers"].__version__
    if tuple(map(int, version.split(".")[:2])) < (5, 6):  # scores may be probabilities
        return False
    if type(block).__name__ not in _ROUTED:
        return False
    return bool(getattr(gate, "norm_topk_prob", gate is not None))


_ROUTED = ("MixtralDecoderLayer", "GptOssDecoderLayer", "Qwen3MoeDecoderLayer")
"""Blocks whose routing weights are a softmax over the chosen experts.

Those of Qwen3Moe are if ``norm_topk_prob`` is set, as in its released models.
"""
_HEADS = (
    "lm_head",
    "classifier",
    "score",
    "cls.predictions.decoder",
    "lm_head.decoder",
    "embed_out",
)
"""Names of modules that compute logits."""


def _logits_points(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[LogitsPoint]:
    """Yield the hook points of the modules that compute logits."""
    output = None
    if not any(name in modules for name in _HEADS):  # other names, as in Electra and DistilBERT
        output = getattr(model, "get_output_embeddings", lambda: None)()
    for name, module in modules.items():
        is_output = output is not None and module is output
        if is_output or (name in _HEADS and _is_head(name, module)):
            owner = modules[name.rpartition(".")[0]]
            yield LogitsPoint(
                name=name, module=module, layer=0, block=None, source=False, owner=owner
            )


def _is_head(name: str, module: nn.Module) -> bool:
    """Return whether a module with the name of a head computes logits itself."""
    if any(f"{name}.{child}" in _HEADS for child, _ in module.named_children()):
        return False
    # A module with another name must be a matrix: a classifier may read positions.
    is_language_head = "head" in name or "embed" in name or "decoder" in name
    return is_language_head or isinstance(module, nn.Linear)


def _structure(block: nn.Module) -> tuple[Any, ...]:
    """Return everything that :func:`parts_of` reads; most blocks of a stack have it in common."""
    structure: list[Any] = []
    for name, module in block.named_modules():
        tensors = (*module._parameters.values(), *module._buffers.values())
        structure += name, type(module)
        structure += [tensor.dim() for tensor in tensors if tensor is not None]
        structure += [
            key
            for key, value in vars(module).items()
            if isinstance(value, int | float | str) and value
        ]
    return tuple(structure)


def _block_of(name: str, modules: dict[str, nn.Module]) -> str | None:
    """Return the innermost member of a list of like modules that contains a module."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        stack = modules[".".join(parts[: end - 1])]
        block = modules[".".join(parts[:end])]
        if isinstance(stack, nn.ModuleList) and all(type(other) is type(block) for other in stack):
            return ".".join(parts[:end])
    return None


def _is_cross(name: str) -> bool:
    return any(
        "cross" in part or part in ("encoder_attn", "EncDecAttention") for part in name.split(".")
    )


def _sizes(module: Any) -> dict[str, Any]:
    """Return the number of heads, and how many share keys; :func:`proving` checks them later."""
    config = getattr(module, "config", None)
    names = ("num_heads", "num_attention_heads", "n_heads", "n_head")
    numbers = [getattr(module, name, None) for name in names]
    numbers += [getattr(config, name, None) for name in names]
    heads = next((number for number in numbers if isinstance(number, int)), 0)
    group = getattr(module, "num_key_value_groups", None)
    if group is None:
        group = heads // (getattr(config, "num_key_value_heads", None) or heads or 1)
    return {"heads": heads, "group": group or 1}


_proved: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
"""Blocks and lone attentions whose hook points have been checked, with their :func:`_form` then."""


def _form(block: nn.Module) -> list[Any]:
    """Return the implementation of a block's attention, its modules, and their settings."""
    form: list[Any] = []
    for module in block.modules():
        config = getattr(module, "config", None)
        implementation = getattr(config, "_attn_implementation", None)
        settings = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, int | float | str)
        }
        form += type(module), implementation, settings | {"training": None}
    return form


@contextmanager
def proving(points: Sequence[HookPoint], kinds: Collection[str]) -> Iterator[None]:
    """Check, when a block first runs, that its hook points are what they are taken for::

        output = input + attention + ffn                pre-norm or parallel; all its attentions
        output = norm(norm(input + attention) + ffn)    post-norm

    Each attention must also have the expected number of heads, whose outputs enter its output
    projection. A block in training mode with dropout, which changes the sums, is not checked.
    """
    owners = {point.block or point.module for point in points}
    proved = {module for module in owners if _proved.get(module) == _form(module)}
    unproved = [point for point in points if (point.block or point.module) not in proved]
    if not unproved:
        yield
        return
    proof = _Proof(unproved, kinds, proved)
    with watching(proof.note_attention), scope() as hooks:
        for block in of_kind(unproved, BlockPoint):
            proof.watch_block(hooks, block)
        yield


class _Proof:
    """The check of the hook points of some blocks and lone attentions.

    Args:
        points: Hook points to check.
        kinds: Sites that are captured or edited; errors elsewhere are ignored.
        proved: Blocks and lone attentions that need no check; grows.
    """

    def __init__(
        self, points: Sequence[HookPoint], kinds: Collection[str], proved: set[nn.Module]
    ) -> None:
        self._points = points
        self._kinds = kinds
        self._proved = proved
        self._attentions = {point.module: point for point in of_kind(points, AttentionPoint)}
        self._outputs: dict[nn.Module, Tensor] = {}
        """The output of each attention, by its module."""
        self._sums = _Sums(self._prove)

    def _prove(self, module: nn.Module) -> None:
        _proved[module] = _form(module)
        self._proved.add(module)

    def note_attention(
        self, module: nn.Module, inputs: Callable[[], Attended], output: Tensor, dropout: float
    ) -> None:
        """Check the heads and the output of an attention."""
        point = self._attentions.get(module)
        if point is None or (point.block or module) in self._proved:
            return
        self._outputs[module] = output
        call = inputs()
        if (call.q.shape[1], call.group) != (point.heads, point.group):
            raise InputError(
                got=f"{point.name} with {call.q.shape[1]} heads in groups of {call.group}",
                expected=f"{point.heads} in groups of {point.group}, as its configuration says",
                fix="Capture other modules.",
            )
        if dropout == 0:
            _check_output(point, call, output)
        if point.block is None:
            self._prove(module)

    def watch_block(self, hooks: Scope, block: BlockPoint) -> None:
        """Sum what the parts of a block add to its stream, and compare at its norms and its end."""
        owner = block.module
        sums = self._sums
        points = [point for point in self._points if point.block is owner]

        def listen(
            module: nn.Module | None, where: str, phase: Phase, do: Callable[[Tensor], None]
        ) -> None:
            def unless_proved(values: Tensor, _: tuple[Any, ...]) -> None:
                if owner not in self._proved:
                    do(values)

            if module is not None:
                hooks.insert(module, where, unless_proved, phase)

        listen(owner, "input", Phase.READ, partial(sums.start, owner))
        for point in points:
            if isinstance(point, AttentionPoint):
                add_attention = partial(sums.add, owner, "attention")
                check_merged = partial(sums.merged, point, self._outputs)
                listen(point.residual_writer, "output", Phase.READ, add_attention)
                listen(point.out_proj, "first input", Phase.BEFORE, check_merged)
            elif isinstance(point, FeedForwardPoint):
                listen(point.module, "output", Phase.READ, partial(sums.add, owner, "ffn"))
        for norm in block.norms or (block.between,):
            compare = partial(sums.compare, block, f"the input of {type(norm).__name__}")
            listen(norm, "first input", Phase.BEFORE, compare)
        for norm in block.norms:
            listen(norm, "output", Phase.READ, partial(sums.start, owner))
        complete = bool(of_kind(points, FeedForwardPoint))
        end = partial(sums.end, block, self._kinds, complete)
        listen(owner, "first output", Phase.BEFORE, end)


class _Sums:
    """The sum of the input of each running block and of what its parts have added so far."""

    def __init__(self, prove: Callable[[nn.Module], None]) -> None:
        self._prove = prove
        self._sums: dict[nn.Module, Tensor] = {}
        self._sizes: dict[nn.Module, Tensor] = {}
        """Sums of absolute parts, which bound the rounding of each number of a sum."""
        self._wrong: dict[nn.Module, tuple[str, str]] = {}
        """The error of a block, and the sites that it concerns."""

    def start(self, block: nn.Module, values: Tensor) -> None:
        values = self._by_text(block, values)
        self._sums[block] = values.detach()
        self._sizes[block] = values.detach().abs()

    def add(self, block: nn.Module, part: str, values: Tensor) -> None:
        values = self._by_text(block, values)
        if block in self._sums and self._sums[block].shape == values.shape:
            self._sums[block] = self._sums[block] + values.detach()
            self._sizes[block] = self._sizes[block] + values.detach().abs()
        else:
            sites = _SUMMED
            if part == "ffn":  # computed in chunks of positions
                sites = f"{_SUMMED}, neurons, ffn_input"
            self._wrong.setdefault(block, (f"{part} has the shape {list(values.shape)}", sites))

    def merged(
        self, point: AttentionPoint, outputs: dict[nn.Module, Tensor], values: Tensor
    ) -> None:
        output = outputs.get(point.module)
        is_same_size = output is not None and output.numel() == values.numel()
        if output is not None and is_same_size and torch.equal(output.flatten(), values.flatten()):
            return
        assert point.block is not None
        wrong = f"the output of the heads is changed before {type(point.out_proj).__name__}"
        self._wrong.setdefault(point.block, (wrong, "heads"))

    def end(self, point: HookPoint, kinds: Collection[str], complete: bool, values: Tensor) -> None:
        if complete:
            self.compare(point, "its output", values)
        wrong, sites = self._wrong.pop(point.module, (None, ""))
        self._sums.pop(point.module, None)
        self._sizes.pop(point.module, None)
        if wrong is None:
            if not point.module.training:
                self._prove(point.module)
            return
        if set(kinds) & set(sites.split(", ")) and not _drops(point.module):
            name = f"{type(point.module).__name__} {point.name}"
            raise InputError(
                got=f"{', '.join(kinds)} of {name}, where {wrong}",
                expected=(
                    "a block whose attention and ffn, as its source shows them, are added to its "
                    "input"
                ),
                fix=f"There, capture or edit other sites than {sites}.",
            )

    def _by_text(self, block: nn.Module, values: Tensor) -> Tensor:
        """Return ``values`` with the axes of the stream; a block may fold texts and positions."""
        stream = self._sums.get(block)
        if stream is None or values.dim() != 2:
            return values
        is_folded = values.shape == stream.flatten(0, -2).shape
        return values.view(stream.shape) if is_folded else values

    def compare(self, point: HookPoint, what: str, values: Tensor) -> None:
        values = self._by_text(point.module, values)
        expected = self._sums.get(point.module)
        if expected is None or expected.shape != values.shape:
            self._wrong.setdefault(
                point.module, (f"{what} has another shape than its input", _SUMMED)
            )
            return
        errors = (expected - values.detach()).abs()
        rounding = 4 * torch.finfo(values.dtype).eps * self._sizes[point.module]
        largest = float(errors.max())
        if not bool((errors <= rounding).all()):
            wrong = f"{what} differs by {largest:.2g} from the sum of its input and its parts"
            self._wrong.setdefault(point.module, (wrong, _SUMMED))


_SUMMED = "attention, ffn, residual_between"


def _drops(block: nn.Module) -> bool:
    """Return whether a block in training mode may change what its parts add, by dropout."""
    if not block.training:
        return False
    for module in block.modules():
        settings = {"p": module.p} if isinstance(module, nn.Dropout) else vars(module)
        for name, value in settings.items():
            is_rate = isinstance(value, float) and ("drop" in name or name == "p")
            if is_rate and value > 0:
                return True
    return False


@torch.no_grad()
def _check_output(point: HookPoint, call: Attended, output: Tensor) -> None:
    """Check the newest query's output against its exact weights.

    Another kind of attention would give another output.
    """
    newest = call.q.shape[2] - 1
    rows = exact_rows(call, range(call.q.shape[1]), [newest], ["weights"])
    assert rows.weights is not None
    last = rows.first + rows.weights.shape[3]
    v = call.v[:, :, rows.first : last].to(rows.weights.dtype).repeat_interleave(call.group, 1)
    expected = (rows.weights @ v)[:, :, 0]
    is_wide = output.dtype in (torch.float32, torch.float64)
    tolerance = (1e-3 if is_wide else 0.1) * v.abs().amax((1, 2, 3))
    sees_keys = rows.weights.sum((1, 2, 3)) > 0
    error = (expected - output[:, newest]).abs().amax((1, 2))
    if not bool((error <= tolerance)[sees_keys].all()):
        kind = type(point.module).__name__
        raise InputError(
            got=(
                f"{point.name} ({kind}), whose output is not that of the softmax of scaled "
                "products and a mask"
            ),
            expected="an attention that can be captured",
            fix="Capture other modules.",
        )


@dataclass(frozen=True, eq=False)
class _Watching:
    """An open block of :func:`watching`."""

    watcher: Watcher


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Call ``watcher`` for each attention of a model of transformers in this thread.

    transformers looks its attention functions up in a table. Within the block, each entry of the
    table calls the watchers after the original function; the outputs are the same.
    """
    with opened(_Watching(watcher)), _table_replaced():
        yield


@contextmanager
def editing(editor: Editor) -> Iterator[None]:
    """:func:`glassformer.layers.attention.editing`, for models of transformers too."""
    with _table_replaced(), attention.editing(editor):
        yield


def _table_replaced() -> AbstractContextManager[None]:
    """Within the block, the entries of transformers' process-wide table call our function."""
    return patched("attention functions of transformers", _replace_table)


def _replace_table() -> Callable[[], None]:
    table = _table()
    mapping = table._local_mapping
    replaced: dict[str, Any] = {}
    for name in ("eager", *table.valid_keys()):
        replaced[name] = mapping.get(name)
        original = mapping[name] if name in mapping else table._global_mapping.get(name)
        mapping[name] = _watched(name, original)

    def undo() -> None:
        for name, before in replaced.items():
            if before is None:
                mapping.pop(name, None)
            else:
                mapping[name] = before

    return undo


def _table() -> Any:
    try:
        return importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    except (ImportError, AttributeError) as error:
        raise InputError(
            got=f"a model of transformers, and {error}",
            expected="transformers 5 or later",
            fix="pip install -U transformers",
        ) from error


def _watched(name: str, function: Callable[..., Any] | None) -> Callable[..., Any]:
    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        dropout = float(kwargs.get("dropout") or 0.0)
        inputs = partial(_inputs, name, module, query, key, value, attention_mask, kwargs)
        edited: Attended | None = None
        if not torch.compiler.is_compiling() and attention.is_edited():
            call = inputs()
            edited = attention.edited(call)
            if edited is call:
                edited = None
        if edited is None:
            compute = function
            if compute is None:  # the eager one, which is defined in each model's own file
                compute = sys.modules[type(module).__module__].eager_attention_forward
            result = compute(module, query, key, value, attention_mask, *args, **kwargs)
        else:
            edited = attention.boolean_mask(edited)
            weights = None
            if name == "eager":
                weights = attention.matrices(edited, range(query.shape[1]))[1].to(query.dtype)
            result = attention.compute(edited, dropout).transpose(1, 2), weights
            inputs = partial(attention.boolean_mask, edited)
        if not torch.compiler.is_compiling():
            for entry in entries(_Watching):
                entry.watcher(module, inputs, result[0], dropout)
        return result

    return attend


def _inputs(
    name: str,
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
) -> Attended:
    """Return a call of transformers' attention interface as a call of ours."""
    bias = options.get("position_bias")
    _check_call(name, module, mask, bias, options)
    causal = options.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", True)
    # As in the fused functions: an explicit mask is complete, and a single query sees all keys.
    causal = causal and name != "eager" and mask is None and q.shape[2] > 1
    if causal and k.shape[2] > q.shape[2]:  # empty slots of a cache
        k = k[:, :, : q.shape[2]]
        v = v[:, :, : q.shape[2]]
    if mask is not None:
        if mask.dim() == 2:
            mask = mask.bool()[:, None, None, :]
        mask = mask[..., : k.shape[2]]
    if bias is not None:  # of learned relative positions, added to the scores
        bias = bias[..., : k.shape[2]]
        if mask is not None:
            lowest = torch.finfo(q.dtype).min
            if mask.dtype == torch.bool:
                bias = torch.where(mask, bias, lowest)
            else:
                bias = (bias + mask).clamp(min=lowest)
        mask = bias
    scale = options.get("scaling")
    return Attended(
        q,
        k,
        v,
        q.shape[3] ** -0.5 if scale is None else float(scale),
        CAUSAL if causal else FULL,
        mask=mask,
        sinks=options.get("s_aux"),
        cap=None if name == "sdpa" else options.get("softcap"),  # sdpa ignores it
    )


def _check_call(name: str, module: Any, mask: Any, bias: Any, options: Mapping[str, Any]) -> None:
    """Refuse a call of the attention interface that cannot be expressed as one of ours."""
    kind = type(module).__name__
    fix = "Call model.set_attn_implementation('sdpa')."
    if mask is not None and not isinstance(mask, Tensor):
        raise InputError(
            got=f"{kind} computed by {name}, whose mask is a {type(mask).__name__}",
            expected="a mask of numbers or booleans",
            fix=fix,
        )
    has_unknown_bias = bias is not None and name not in ("eager", "sdpa")
    if has_unknown_bias or options.get("cache") is not None:
        raise InputError(
            got=f"an attention with a cache or a bias of positions in {kind}, computed by {name}",
            expected="the softmax of scaled products, a bias and a mask",
            fix=fix,
        )


def _route(gate: Any, x: Tensor) -> Routed:
    scores, shares, choices = without_other_hooks(gate, x.reshape(-1, x.shape[-1]))
    probabilities = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    axes = (*x.shape[:-1], -1)
    return probabilities.view(axes), choices.view(axes), shares.view(axes)


def _expert_outputs(mixture: Any, x: Tensor, choices: Tensor) -> Tensor:
    return one_by_one(
        lambda tokens, ones, choice: mixture.experts.forward(tokens, choice, ones), x, choices
    )
