"""Hook points of models of Hugging Face's transformers."""

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
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
from glassformer.observe.module_hooks import Phase, scope, without_other_hooks
from glassformer.observe.patches import patched

Watcher = Callable[[nn.Module, Callable[[], Attended], Tensor, float], None]
"""Receives an attention's module, its inputs, its output [batch, query, head, value_dim] and its
dropout.
"""


def is_hugging_face(model: nn.Module) -> bool:
    """Whether a model, or a part of it, comes from transformers, which is not imported for the
    check.
    """
    return any(type(module).__module__.startswith("transformers.") for module in model.modules())


_RESUMED = (
    *(
        "GPT2Block",
        "LlamaDecoderLayer",
        "MistralDecoderLayer",
        "Qwen2DecoderLayer",
        "MixtralDecoderLayer",
    ),
    *("GptOssDecoderLayer", "BertLayer", "RobertaLayer"),
)


def unknown_block(model: nn.Module, blocks: Sequence[HookPoint]) -> str | None:
    """The class of a block of transformers whose parts may be other than in the blocks that are
    known here: factors of parts, caps of logits, what one layer takes from another. What reads or
    skips parts of it checks what it gets.
    """
    other = (
        type(each.module).__name__ for each in blocks if type(each.module).__name__ not in _RESUMED
    )
    return next(other, None) if is_hugging_face(model) else None


def require_resumable(model: nn.Module, blocks: Sequence[HookPoint]) -> None:
    """Refuse a model of transformers with blocks of a class that is not known here."""
    other = unknown_block(model, blocks)
    if other is not None:
        raise InputError(
            got=f"{type(model).__name__} with blocks of {other}",
            expected=f"a model of glassformer, or of transformers with {', '.join(_RESUMED)}",
            fix=(
                "Load it with glassformer, or use capture() and intervene(), which take this model."
            ),
        )


def points(model: nn.Module) -> Iterator[HookPoint]:
    """Every hook point of a model of transformers, in the order of its modules, by structure.

    Attentions are the modules that call transformers' attention interface. Their blocks are members
    of a list of like modules; what a block's source says of its parts is checked by :func:`proving`
    when it first runs.
    """
    modules = dict(model.named_modules())
    blocks: dict[str, list[str]] = {}
    for name, module in modules.items():
        if calls_interface(module):
            blocks.setdefault(_block_of(name, modules) or name, []).append(name)
    two_stacks = any(_is_cross(name) for names in blocks.values() for name in names)
    crossed = {
        name.rpartition(".")[0] for name, inside in blocks.items() if any(map(_is_cross, inside))
    }
    loose = 0
    found = dict[Any, Parts]()
    for name, attentions in blocks.items():
        block = modules[name]
        at = f"{name}.".removeprefix(".")
        if name == attentions[0]:  # in no block
            yield AttentionPoint(
                name=name,
                module=block,
                layer=layer_of(name, loose),
                block=None,
                source=False,
                kind="self",
                **_sizes(block),
                has_sinks=False,
                out_proj=None,
                residual_writer=None,
                post_norm=False,
            )
            loose += 1
            continue
        stack = name.rpartition(".")[0]
        place: dict[str, Any] = {"layer": layer_of(name, 0), "block": block}
        place["source"] = (
            two_stacks
            and stack not in crossed
            and len({each.rpartition(".")[0] for each in blocks}) > 1
        )
        kind = _structure(block)
        parts = found[kind] = found.get(kind) or parts_of(block)

        def part(inside: str | None, at: str = at) -> nn.Module | None:
            return None if inside is None else modules[at + inside]

        if place["layer"] == 0:
            yield EmbeddingPoint(name=name, module=block, **place)
        for each in attentions:
            out_proj, writer, post_norm = parts.attentions.get(
                each.removeprefix(at), (None, None, False)
            )
            module = modules[each]
            sizes = _sizes(modules[each])
            yield AttentionPoint(
                name=each,
                module=module,
                **place,
                **sizes,
                kind="cross" if _is_cross(each) else "self",
                has_sinks=isinstance(getattr(module, "sinks", None), Tensor),
                out_proj=part(out_proj),
                residual_writer=part(writer),
                post_norm=post_norm,
            )
        norms = tuple(modules[at + each] for each in parts.norms)
        if parts.ffn is not None:
            ffn = part(parts.ffn)
            assert ffn is not None
            mixture: Any = part(parts.network)
            if parts.network == parts.reads:
                last = [getattr(mixture, each, None) for each in _LAST]
            else:
                last = [mixture]
            down = next((each for each in last if isinstance(each, nn.Module)), None)
            reads = part(parts.reads)
            yield FeedForwardPoint(
                name=at + parts.ffn, module=ffn, **place, reads=reads, down_proj=down
            )
            gate: Any = getattr(mixture, "gate", getattr(mixture, "router", None))
            # Before 5.6 a router may give probabilities as its scores.
            recent = tuple(map(int, sys.modules["transformers"].__version__.split(".")[:2])) >= (
                5,
                6,
            )
            if (
                recent
                and type(block).__name__ in _ROUTED
                and getattr(gate, "norm_topk_prob", gate is not None)
            ):
                yield MixturePoint(
                    name=at + parts.ffn,
                    module=mixture,
                    **place,
                    experts=gate.num_experts,
                    gate=gate,
                    route=partial(_route, gate),
                    expert_outputs=partial(_expert_outputs, mixture),
                    post_norm=False,
                )
        between = part(parts.between)
        yield BlockPoint(
            name=name, module=block, **place, between=between, pre_norm=not norms, norms=norms
        )
    heads_of = (
        "lm_head",
        "classifier",
        "score",
        "cls.predictions.decoder",
        "lm_head.decoder",
        "embed_out",
    )
    output = None
    if not any(
        name in modules for name in heads_of
    ):  # by other names, as of Electra and DistilBERT
        output = getattr(model, "get_output_embeddings", lambda: None)()
    for name, module in modules.items():
        inner = name in heads_of and any(
            f"{name}.{each}" in heads_of for each, _ in module.named_children()
        )
        # Any module: a classifier's may read positions.
        wrapped = "head" in name or "embed" in name or "decoder" in name
        named = name in heads_of and not inner and (wrapped or isinstance(module, nn.Linear))
        if blocks and (named or (output is not None and module is output)):
            owner = modules[name.rpartition(".")[0]]
            yield LogitsPoint(
                name=name, module=module, layer=0, block=None, source=False, owner=owner
            )


_LAST = ("down_proj", "c_proj", "dense_4h_to_h", "fc2")
"""Names of the last projection of a dense feed-forward network."""
_ROUTED = ("MixtralDecoderLayer", "GptOssDecoderLayer", "Qwen3MoeDecoderLayer")
"""Blocks whose routers give scores, routing weights and choices, with a softmax over the chosen
experts; Qwen3Moe's by ``norm_topk_prob``, as in its released models.
"""


def _structure(block: nn.Module) -> tuple[Any, ...]:
    """What :func:`parts_of` reads: equal for blocks with equal parts, as most of a stack are."""
    return tuple(
        (
            name,
            type(module),
            *(
                each.dim()
                for each in (*module._parameters.values(), *module._buffers.values())
                if each is not None
            ),
            *(
                key
                for key, value in vars(module).items()
                if isinstance(value, int | float | str) and value
            ),
        )
        for name, module in block.named_modules()
    )


def _block_of(name: str, modules: dict[str, nn.Module]) -> str | None:
    """The innermost member of a list of like modules that contains a module."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        stack = modules[".".join(parts[: end - 1])]
        block = modules[".".join(parts[:end])]
        if isinstance(stack, nn.ModuleList) and all(type(each) is type(block) for each in stack):
            return ".".join(parts[:end])
    return None


def _is_cross(name: str) -> bool:
    return any(
        "cross" in part or part in ("encoder_attn", "EncDecAttention") for part in name.split(".")
    )


def _sizes(module: Any) -> dict[str, Any]:
    """Its heads, and how many of them share keys; :func:`proving` compares them with the first
    call.
    """
    names = ("num_heads", "num_attention_heads", "n_heads", "n_head")
    found = [
        getattr(of, name, None)
        for of in (module, getattr(module, "config", None))
        for name in names
    ]
    heads = next((each for each in found if isinstance(each, int)), 0)
    group = getattr(module, "num_key_value_groups", None)
    if group is None:
        config = getattr(module, "config", None)
        group = heads // (getattr(config, "num_key_value_heads", None) or heads or 1)
    return {"heads": heads, "group": group or 1}


_proved: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
"""Blocks, and attentions of no block, whose hook points were found where their structure says; with
their :func:`_form` at that time.
"""


def _form(block: nn.Module) -> list[Any]:
    """The implementation of a block's attention, its modules, and their settings."""
    form = [
        getattr(getattr(each, "config", None), "_attn_implementation", None)
        for each in block.modules()
    ]
    for each in block.modules():
        settings = {
            name: value
            for name, value in vars(each).items()
            if isinstance(value, int | float | str)
        }
        form += type(each), settings | {"training": None}
    return form


@contextmanager
def proving(points: Sequence[HookPoint], kinds: Collection[str]) -> Iterator[None]:
    """Check, when a block first runs, that its hook points are what they are taken for::

        output = input + attention + ffn                      pre-norm or parallel; every attention
        of the block output = norm(norm(input + attention) + ffn)          post-norm

    and that each attention has the heads it is said to have, whose outputs enter its output
    projection. A block in training mode with dropout, which changes the sums, is not checked.
    """
    proved = {
        module
        for module in {p.block or p.module for p in points}
        if _proved.get(module) == _form(module)
    }
    given = [point for point in points if (point.block or point.module) not in proved]
    if not given:
        yield
        return

    def prove(module: nn.Module) -> None:
        _proved[module] = _form(module)
        proved.add(module)

    seen = _Sums(prove)
    outputs = dict[nn.Module, Tensor]()

    def note(
        module: nn.Module, inputs: Callable[[], Attended], output: Tensor, dropout: float
    ) -> None:
        point = next(
            (each for each in of_kind(given, AttentionPoint) if each.module is module), None
        )
        if point is None or (point.block or module) in proved:
            return
        outputs[module] = output
        call = inputs()
        got = f"{point.name} with {call.q.shape[1]} heads in groups of {call.group}"
        fix = "Capture other modules."
        fits = (call.q.shape[1], call.group) == (point.heads, point.group)
        if not fits:
            raise InputError(
                got=got,
                expected=f"{point.heads} in groups of {point.group}, as its configuration says",
                fix=fix,
            )
        if dropout == 0:
            _check_output(point, call, output)
        if point.block is None:
            prove(module)

    with watching(note), scope() as own:

        def listen(
            owner: nn.Module,
            module: nn.Module | None,
            where: str,
            phase: Phase,
            do: Callable[[Tensor], None],
        ) -> None:
            def here(values: Tensor, _: tuple[Any, ...]) -> None:
                if owner not in proved:
                    do(values)

            if module is not None:
                own.insert(module, where, here, phase)

        for block in of_kind(given, BlockPoint):
            mine = [point for point in given if point.block is block.module]
            on = partial(listen, block.module)
            on(block.module, "input", Phase.READ, partial(seen.start, block.module))
            for point in mine:
                if isinstance(point, AttentionPoint):
                    on(
                        point.residual_writer,
                        "output",
                        Phase.READ,
                        partial(seen.add, block.module, "attention"),
                    )
                    on(
                        point.out_proj,
                        "first input",
                        Phase.BEFORE,
                        partial(seen.merged, point, outputs),
                    )
                elif isinstance(point, FeedForwardPoint):
                    on(point.module, "output", Phase.READ, partial(seen.add, block.module, "ffn"))
            for norm in block.norms or ([block.between] if block.between is not None else []):
                compare = partial(seen.compare, block, f"the input of {type(norm).__name__}")
                on(norm, "first input", Phase.BEFORE, compare)
            for norm in block.norms:
                on(norm, "output", Phase.READ, partial(seen.start, block.module))
            complete = bool(of_kind(mine, FeedForwardPoint))
            on(
                block.module,
                "first output",
                Phase.BEFORE,
                partial(seen.end, block, kinds, complete),
            )
        yield


class _Sums:
    """The sum of what each running block's parts have added to its input so far."""

    def __init__(self, prove: Callable[[nn.Module], None]) -> None:
        self._prove = prove
        self._sums: dict[nn.Module, Tensor] = {}
        self._sizes: dict[nn.Module, Tensor] = {}
        """The sums of absolute parts, by which rounding is judged: one number may be far larger
        than the others.
        """
        self._wrong: dict[nn.Module, tuple[str, str]] = {}
        """What is wrong with a block, and which sites it concerns."""

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
            sites = (
                f"{_SUMMED}, neurons, ffn_input" if part == "ffn" else _SUMMED
            )  # computed in chunks of positions
            self._wrong.setdefault(block, (f"{part} has the shape {list(values.shape)}", sites))

    def merged(
        self, point: AttentionPoint, outputs: dict[nn.Module, Tensor], values: Tensor
    ) -> None:
        made = outputs.get(point.module)
        if (
            made is None
            or made.numel() != values.numel()
            or not torch.equal(made.flatten(), values.flatten())
        ):
            assert point.block is not None
            wrong = f"the output of the heads is changed before {type(point.out_proj).__name__}"
            self._wrong.setdefault(point.block, (wrong, "heads"))

    def end(self, point: HookPoint, kinds: Collection[str], complete: bool, values: Tensor) -> None:
        if complete:
            self.compare(point, "its output", values)
        wrong, sites = self._wrong.pop(point.module, (None, ""))
        self._sums.pop(point.module, None)
        self._sizes.pop(point.module, None)
        if wrong is None and not point.module.training:
            self._prove(point.module)
        elif wrong is not None and not _drops(point.module):
            if set(kinds) & set(sites.split(", ")):
                raise InputError(
                    got=(
                        f"{', '.join(kinds)} of {type(point.module).__name__} {point.name}, where "
                        f"{wrong}"
                    ),
                    expected=(
                        "a block whose attention and ffn, as its source shows them, are added to "
                        "its input"
                    ),
                    fix=f"There, capture or edit other sites than {sites}.",
                )

    def _by_text(self, block: nn.Module, values: Tensor) -> Tensor:
        """``values`` with the axes of the stream, of which a block may fold texts and positions
        into one.
        """
        stream = self._sums.get(block)
        folded = (
            stream is not None and values.dim() == 2 and values.shape == stream.flatten(0, -2).shape
        )
        if stream is not None and folded:
            return values.view(stream.shape)
        return values

    def compare(self, point: HookPoint, what: str, values: Tensor) -> None:
        values = self._by_text(point.module, values)
        expected = self._sums.get(point.module)
        if expected is None or expected.shape != values.shape:
            self._wrong.setdefault(
                point.module, (f"{what} has another shape than its input", _SUMMED)
            )
            return
        off = (expected - values.detach()).abs()
        rounding = 4 * torch.finfo(values.dtype).eps * self._sizes[point.module]
        error = float(off.max())
        if not bool((off <= rounding).all()):
            wrong = f"{what} differs by {error:.2g} from the sum of its input and its parts"
            self._wrong.setdefault(point.module, (wrong, _SUMMED))


_SUMMED = "attention, ffn, residual_between"


def _drops(block: nn.Module) -> bool:
    """Whether a block in training mode may change what its parts add, by dropout."""
    rates = (
        rate
        for each in block.modules()
        for name, rate in ({"p": each.p} if isinstance(each, nn.Dropout) else vars(each)).items()
        if isinstance(rate, float) and ("drop" in name or name == "p")
    )
    return block.training and any(rate > 0 for rate in rates)


@torch.no_grad()
def _check_output(point: HookPoint, call: Attended, output: Tensor) -> None:
    """Compare the newest query's output with that of its exact weights: another kind of attention
    would not give it.
    """
    newest = call.q.shape[2] - 1
    rows = exact_rows(call, range(call.q.shape[1]), [newest], ["weights"])
    assert rows.weights is not None
    last = rows.first + rows.weights.shape[3]
    v = call.v[:, :, rows.first : last].to(rows.weights.dtype).repeat_interleave(call.group, 1)
    expected = (rows.weights @ v)[:, :, 0]
    near = (1e-3 if output.dtype in (torch.float32, torch.float64) else 0.1) * v.abs().amax(
        (1, 2, 3)
    )
    seen = rows.weights.sum((1, 2, 3)) > 0
    error = (expected - output[:, newest]).abs().amax((1, 2))
    kind = type(point.module).__name__
    if not bool((error <= near)[seen].all()):
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
    """Call ``watcher`` for each attention that a model of transformers computes in this thread
    within the block.

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
    """Within the block the entries of transformers' table, which is that of the whole process, call
    our function.
    """
    return patched("attention functions of transformers", _replace_table)


def _replace_table() -> Callable[[], None]:
    table = _table()
    mapping = table._local_mapping
    replaced: dict[str, Any] = {}
    for name in ("eager", *table.valid_keys()):
        replaced[name] = mapping.get(name)
        if name not in mapping:
            original = table._global_mapping.get(name)
        else:
            original = mapping[name]
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
            f"a model of transformers, and {error}",
            "transformers 5 or later",
            "pip install -U transformers",
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
        compute = function
        if compute is None:  # the eager one, which is defined in each model's own file
            compute = sys.modules[type(module).__module__].eager_attention_forward
        dropout = float(kwargs.get("dropout") or 0.0)
        inputs = partial(_inputs, name, module, query, key, value, attention_mask, kwargs)
        if torch.compiler.is_compiling() or not attention.is_edited():
            call = None
        else:
            call = inputs()
        edited = call if call is None else attention.edited(call)
        if edited is call or edited is None:
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
    got = f"{type(module).__name__} computed by {name}, whose mask is a {type(mask).__name__}"
    fix = "Call model.set_attn_implementation('sdpa')."
    if mask is not None and not isinstance(mask, Tensor):
        raise InputError(
            got=got,
            expected="a mask of numbers or booleans",
            fix=fix,
        )
    bias, cap = (
        options.get("position_bias"),
        options.get("softcap") if name != "sdpa" else None,
    )  # which ignores it
    got = f"an attention with a cache or a bias of positions in {type(module).__name__}, computed by {name}"
    fits = options.get("cache") is None and (bias is None or name in ("eager", "sdpa"))
    if not fits:
        raise InputError(
            got=got,
            expected="the softmax of scaled products, a bias and a mask",
            fix=fix,
        )
    scale = options.get("scaling")
    causal = options.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", True)
    else:
        causal = causal
    # As in the fused functions: an explicit mask is complete, and a single query sees all keys.
    causal = causal and name != "eager" and mask is None and q.shape[2] > 1
    if causal and k.shape[2] > q.shape[2]:  # empty slots of a cache
        k = k[:, :, : q.shape[2]]
        v = v[:, :, : q.shape[2]]
    if mask is not None:
        if mask.dim() == 2:
            mask = mask.bool()[:, None, None, :]
        else:
            mask = mask
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
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    return Attended(
        q, k, v, scale, CAUSAL if causal else FULL, mask=mask, sinks=options.get("s_aux"), cap=cap
    )


def _route(gate: Any, x: Tensor) -> Routed:
    scores, shares, choices = without_other_hooks(gate, x.reshape(-1, x.shape[-1]))
    probabilities = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return tuple(each.view(*x.shape[:-1], -1) for each in (probabilities, choices, shares))


def _expert_outputs(mixture: Any, x: Tensor, choices: Tensor) -> Tensor:
    return one_by_one(
        lambda tokens, ones, choice: mixture.experts.forward(tokens, choice, ones), x, choices
    )
