"""Capture exact attention and other activations of a running model without changing them."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers.attention import Attended, watching
from glassformer.observe import hugging_face
from glassformer.observe.captured import Captured
from glassformer.observe.hook_points import (
    AttentionPoint,
    Heads,
    HookPoint,
    LogitsPoint,
    MixturePoint,
    Modules,
    Selection,
    choose_points,
    kinds_of,
    of_kind,
    own_points,
    sites_of,
    whole_numbers,
)
from glassformer.observe.module_hooks import Phase, Scope, scope
from glassformer.observe.patches import patched
from glassformer.observe.recorder import OF_CALLS, Recorder


@contextmanager
def capture(
    model: Any,
    modules: Modules | None = None,
    *,
    what: str | Sequence[str] = "weights",
    layers: Selection | None = None,
    heads: Heads | None = None,
    queries: Selection | None = None,
    retain_grad: bool = False,
) -> Iterator[Captured]:
    """Record what a model computes while it runs::

        with capture(model, layers=-1, heads=[0, 3], queries=-1) as seen:
            logits = model(tokens)
        seen.weights["layers.5.attention"]     # [batch, head, query, key]

    ===========  ==================================================================================
    what         is captured
    ===========  ==================================================================================
    weights      attention weights, before dropout, [batch, head, query, key]; with sinks a row sums
                 to less than 1
    scores       the input of the softmax, scaled and with key weights; -inf where masked
    sinks        the share of each query's softmax that goes to the sink, [batch, head, query]
    q            queries after the rotation, [batch, head, query, dim]
    k, v         keys and values that this call has computed, of the key-value heads that the chosen
                 heads read; in cross-attention those of the whole memory
    heads        the output of each head, before the output projection, [batch, head, query, dim]
    attention    the output of each attention, [batch, query, dim]; ``attention_input`` its input,
                 after the norm
    ffn          the output of each feed-forward network or mixture of experts; ``ffn_input`` its
                 input, after the norm
    neurons      the input of the last projection of a dense feed-forward network,
                 [batch, query, neuron]
    embedding    the input of the first block
    residual     the output of each block; ``residual_before`` its input, ``residual_between`` the
                 stream between its attention and its feed-forward network
    logits       the output of the model, [batch, query, class]
    router       probabilities of all experts, [batch, query, expert]
    choices      indices of the chosen experts, the most probable first, [batch, query, choice]
    shares       routing weights of the chosen experts; they sum to 1
    experts      the output of each chosen expert, before it is weighted,
                 [batch, query, choice, dim]
    inputs       the inputs of each attention, all heads and queries, in ``seen.inputs``:
                 :func:`~glassformer.observe.exact_attention.exact_rows` computes any row of weights
                 from them later; only for a forward pass from the start of the text
    ===========  ==================================================================================

    Weights, scores and shares of sinks are computed next to the fused kernel, from the same queries
    and keys. Only the chosen heads and queries are computed, in blocks of a few MB, with the keys
    between the first and the last that causality and window allow these queries. The results are in
    float32 or wider. In bfloat16 models, they may differ by 0.01 from the weights that an eager
    attention returns, which rounds its scores. Outputs and random numbers stay the same to the last
    bit. In cached generation each step is a call of one query, and positions continue to count.

    Captures may be nested. Hooks are removed when the ``with`` block ends, also by an error. Only
    forward passes of the thread that opened the block are captured. Within the block, modules
    compiled by ``torch.compile`` run uncompiled, in every thread, because a compiled graph has no
    hooks. Their output is then that of the plain model, which may differ from the compiled one's in
    rounding.

    Args:
        model: A model with glassformer's attention, or one of ``transformers`` that calls its
            attention interface, compiled or not; or the ``LanguageModel`` that
            :func:`glassformer.load` returns.
        modules: Names of hook points, or of modules that contain them; or a predicate on name and
            module; all when None. :func:`find_hook_points` lists the names.
        what: One or more kinds of the table above.
        layers: Indices of blocks, in both stacks of an encoder-decoder.
        heads: Query heads of every attention. A mapping, ``{layer: heads}`` or
            ``{module name: heads}``, captures the named attentions alone.
        queries: Positions in the text, for all kinds of records. Negative ones count from the
            newest: -1 is each step of a generation. With a cache, positions of other calls are
            skipped.
        retain_grad: Keep the gradient of a later backward pass as ``record.grad``, where gradients
            are on and there is no cache. Records of sinks, router, choices, shares, experts and a
            classifier's logits have none. Gradients of weights are computed from those of the
            attention's output, ``d loss / d weights[i, j] = grad[i] . v[j]``, and gradients of
            scores from these. The records keep the graph alive.

    Example:
        >>> from glassformer.models import Decoder, DecoderConfig
        >>> model = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8))
        >>> with capture(model, layers=-1, heads=[0, 3], queries=-1) as seen:
        ...     logits = model(torch.tensor([[3, 1, 4]]))
        >>> seen[1, "weights"].shape  # batch, head, query, key
        torch.Size([1, 2, 1, 3])

    Raises:
        InputError: A model without hook points, an unknown or empty selection; and from
            within the model: a position out of range, an attention that bypasses the hook, or
            ``retain_grad`` for weights or scores under attention dropout.
    """
    model = network_of(model)
    foreign = hugging_face.is_hugging_face(model)
    points = find_hook_points(model)
    _check_attention(model, points)
    kinds = kinds_of(what)
    chosen = choose_points(points, sites_of(what), modules, layers, heads)
    recorded_kinds = tuple(kind for kind in kinds if kind != "inputs")
    queries = _checked_queries(queries)
    seen = Captured([], model=weakref.ref(model))
    inputs = seen.inputs if "inputs" in kinds else None
    recorder = Recorder(seen.records, recorded_kinds, chosen, queries, retain_grad, inputs)
    recorder.foreign = foreign
    with ExitStack() as stack, stack, scope() as hooks:  # twice, as in intervene()
        stack.enter_context(uncompiled())
        if foreign:
            stack.enter_context(hugging_face.proving(points, kinds))
        _attach(stack, hooks, recorder, points)
        yield seen
    if recorder.calls != 0 and not recorder.has_records and recorded_kinds:
        raise InputError(
            got=f"queries = {queries!r}, which no call had",
            expected="positions of the text",
            fix="Choose positions that the model computes.",
        )


def _check_attention(model: nn.Module, points: Sequence[HookPoint]) -> None:
    """Refuse a model without an attention that can be captured."""
    if not of_kind(points, AttentionPoint):
        name = type(model).__name__
        raise InputError(
            got=f"{name}, none of whose modules calls an attention that can be captured",
            expected=(
                "a model of glassformer's attention, or one of transformers that calls "
                "ALL_ATTENTION_FUNCTIONS"
            ),
            fix="Pass such a model.",
        )


def _checked_queries(queries: Selection | None) -> slice | tuple[int, ...] | None:
    """Return the selected queries, of which there must be some."""
    if queries is None or isinstance(queries, slice):
        return queries
    positions = whole_numbers("queries", queries)
    if not positions:
        raise InputError(
            got="no queries",
            expected="at least one position",
            fix="Omit queries to capture all.",
        )
    return positions


def find_hook_points(model: Any) -> tuple[HookPoint, ...]:
    """Return every hook point of a model in the order of its modules, if its kind is known."""
    model = network_of(model)
    if hugging_face.is_hugging_face(model):
        return tuple(hugging_face.points(model))
    return tuple(own_points(model))


def network_of(model: Any) -> nn.Module:
    """Return the network of a compiled model or of a ``LanguageModel``."""
    if not isinstance(model, nn.Module):
        model = getattr(model, "model", model)
    network: nn.Module = getattr(model, "_orig_mod", model)
    return network


def _attach(
    stack: ExitStack, hooks: Scope, recorder: Recorder, points: Sequence[HookPoint]
) -> None:
    """Let the recorder read the chosen modules and their blocks."""
    running = recorder.running
    attentions = of_kind(recorder.chosen, AttentionPoint)
    running.enter(hooks, points, recorder.chosen, attentions)
    for attention in attentions:
        if recorder.retain_grad and attention.out_proj is not None and not recorder.foreign:
            # Before hooks and edits of the heads, which come after the weights.
            hooks.insert(attention.out_proj, "first input", recorder.note_output, Phase.BEFORE)
    for point in recorder.chosen:
        _listen(hooks, recorder, point)
    # After the records of a module's output.
    running.leave_attentions(hooks)
    running.leave_blocks(hooks)
    if not attentions:
        return

    def note(attended: Attended) -> None:
        run = running.attention
        if run is not None and hooks.is_active():
            recorder.attention(attended, run, _dropout(run.point.module))

    def note_foreign(
        module: nn.Module, inputs: Callable[[], Attended], output: Tensor, dropout: float
    ) -> None:
        run = running.attention
        if run is not None and hooks.is_active() and run.point.module is module:
            recorder.attention(inputs(), run, dropout)
            recorder.output(output)

    if recorder.foreign:
        stack.enter_context(hugging_face.watching(note_foreign))
    else:
        stack.enter_context(watching(note))


def _listen(hooks: Scope, recorder: Recorder, point: HookPoint) -> None:
    """Let the recorder read the modules of a hook point."""
    if isinstance(point, MixturePoint):
        note_mixture = partial(recorder.mixture, point)
        hooks.insert(point.module, "first output", note_mixture, Phase.READ)
        return
    if isinstance(point, LogitsPoint):
        hooks.insert(point.module, "output", partial(recorder.logits, point), Phase.READ)
        return
    for kind in recorder.kinds:
        if kind in point.sites and kind not in OF_CALLS:
            module, where = point.place(kind)
            if module is not None:
                hooks.insert(module, where, partial(recorder.note, kind, point), Phase.READ)


def _dropout(module: nn.Module) -> float:
    """Return the probability with which an attention drops a weight now."""
    dropout = getattr(module, "dropout", 0.0)
    return dropout if module.training and isinstance(dropout, float) else 0.0


def uncompiled() -> AbstractContextManager[None]:
    """Within the block, compiled modules of the whole process run uncompiled."""
    return patched("compiler stance", _force_eager)


def _force_eager() -> Callable[[], object]:
    stance = torch.compiler.set_stance("force_eager")
    return partial(stance.__exit__, None, None, None)
