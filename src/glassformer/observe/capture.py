"""Capture exact attention and other activations of a running model without changing its forward
pass.
"""

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
    of_kind,
    own_points,
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

    ===========
    ==================================================================================================== what         is captured
    ===========
    ==================================================================================================== weights      attention weights, before dropout, [batch, head, query, key]; with sinks a row sums to less than 1
    scores       the input of the softmax, scaled and with key weights; -inf where masked
    sinks        the share of each query's softmax that goes to the sink, [batch, head, query]
    q            queries after the rotation, [batch, head, query, dim]
    k, v         keys and values that this call has computed, of the key-value heads that the chosen
    heads read; in
                 cross-attention those of the whole memory
    heads        the output of each head, before the output projection, [batch, head, query, dim]
    attention    the output of each attention, [batch, query, dim]; ``attention_input`` what it
    reads, after the norm ffn          the output of each feed-forward network or mixture of
    experts; ``ffn_input`` what it reads, after the
                 norm
    neurons      of a dense feed-forward network, the input of its last projection, [batch, query,
    neuron] embedding    the input of the first block
    residual     the output of each block; ``residual_before`` its input, ``residual_between`` the
    stream between its
                 attention and its feed-forward network
    logits       the output of the model, [batch, query, class]
    router       probabilities of all experts, [batch, query, expert]
    choices      indices of the chosen experts, the most probable first, [batch, query, choice]
    shares       routing weights of the chosen experts; they sum to 1
    experts      the output of each chosen expert, before it is weighted, [batch, query, choice,
    dim] inputs       the inputs of each attention, all heads and queries, in ``seen.inputs``:
                 :func:`~glassformer.observe.exact_attention.exact_rows` computes any row of weights
                 from them later; only for a forward pass from the start of the text
    ===========
    ====================================================================================================

    Weights, scores and shares of sinks are computed next to the fused kernel, from the same queries
    and keys: only for the chosen heads and queries, in blocks of a few MB, with the keys between
    the first and the last that causality and window allow these queries. They are in float32 or
    wider: those of a model in bfloat16 may differ by 0.01 from what an eager attention returns,
    which rounds its scores. Outputs and random numbers stay the same to the last bit. In cached
    generation each step is a call of one query, and positions continue to count.

    Captures may be nested. Hooks are removed when the ``with`` block ends, also by an error. Only
    forward passes of the thread that opened the block are captured. Within the block, modules
    compiled by ``torch.compile`` run uncompiled, in every thread, as a compiled graph has no hooks;
    their output is then that of the plain model, which may differ from the compiled one's in
    rounding.

    Args:
        model: A model of glassformer's attention, or one of ``transformers`` that goes through its
            attention interface; compiled or not; or a ``LanguageModel``, as
            :func:`glassformer.load` gives it.
        modules: Names of hook points, or of modules that contain them; or a predicate on name and
            module; all when None. :func:`find_hook_points` lists the names.
        what: One or more of the above.
        layers: Indices of blocks; in an encoder-decoder of both stacks.
        heads: Query heads of every attention; ``{layer: heads}`` or ``{module name: heads}``
            captures those alone.
        queries: Positions in the text, for all kinds of records. Negative ones count from the
            newest: -1 is each step of a generation. With a cache, positions of other calls are
                skipped.
        retain_grad: Records give the gradient of a later backward pass as ``record.grad``, where
            gradients are on and there is no cache; those of sinks, router, choices, shares, experts
            and a classifier's logits do not. That of the weights is computed from the gradient of
            the attention's output, ``d loss / d weights[i, j] = grad[i] . v[j]``, and that of the
            scores from it, as if the weights had been stored. The records then keep the graph
            alive.

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
    if not bool(of_kind(points, AttentionPoint)):
        raise InputError(
            got=(
                f"{type(model).__name__}, none of whose modules calls an attention that can be "
                "captured"
            ),
            expected=(
                "a model of glassformer's attention, or one of transformers that calls "
                "ALL_ATTENTION_FUNCTIONS"
            ),
            fix="Pass such a model.",
        )
    asked: tuple[str, ...]
    if isinstance(what, str):
        asked = (what,)
    else:
        asked = tuple(dict.fromkeys(what))
    # Inputs are captured at the same points as queries.
    chosen = choose_points(
        points, ["q" if kind == "inputs" else kind for kind in asked], modules, layers, heads
    )
    kinds = tuple(kind for kind in asked if kind != "inputs")
    if queries is not None and not isinstance(queries, slice):
        queries = whole_numbers("queries", queries)
        if len(queries) <= 0:
            raise InputError(
                got="no queries",
                expected="at least one position",
                fix="Omit queries to capture all.",
            )
    seen = Captured([], model=weakref.ref(model))
    recorder = Recorder(
        seen.records,
        kinds,
        chosen,
        queries,
        retain_grad,
        seen.inputs if "inputs" in asked else None,
    )
    recorder.foreign = foreign
    with ExitStack() as attached, attached, scope() as here:  # twice, as in intervene()
        attached.enter_context(uncompiled())
        if foreign:
            attached.enter_context(hugging_face.proving(points, asked))
        _attach(attached, here, recorder, points)
        yield seen
    if recorder.calls != 0 and not recorder.made and kinds:
        raise InputError(
            got=f"queries = {queries!r}, which no call had",
            expected="positions of the text",
            fix="Choose positions that the model computes.",
        )


def find_hook_points(model: Any) -> tuple[HookPoint, ...]:
    """Every hook point of a model, in the order of its modules; none for a model of an unknown
    kind.
    """
    model = network_of(model)
    return tuple(
        hugging_face.points(model) if hugging_face.is_hugging_face(model) else own_points(model)
    )


def network_of(model: Any) -> nn.Module:
    """The network of a compiled model, or of a ``LanguageModel``, which has it in ``model``."""
    if isinstance(model, nn.Module):
        model = model
    else:
        model = getattr(model, "model", model)
    network: nn.Module = getattr(model, "_orig_mod", model)
    return network


def _attach(
    attached: ExitStack, here: Scope, recorder: Recorder, points: Sequence[HookPoint]
) -> None:
    """Let the recorder read the chosen modules and the blocks that contain them until ``attached``
    and ``here`` end.
    """
    running = recorder.running
    listen = partial(here.insert, phase=Phase.READ)
    attentions = of_kind(recorder.chosen, AttentionPoint)
    running.enter(here, points, recorder.chosen, attentions)
    for attention in attentions:
        if recorder.retain_grad and attention.out_proj is not None and not recorder.foreign:
            # Ahead of hooks and edits of the heads, which come after the weights.
            here.insert(attention.out_proj, "first input", recorder.note_output, Phase.BEFORE)
    for point in recorder.chosen:
        if isinstance(point, MixturePoint):
            listen(point.module, "first output", partial(recorder.mixture, point))
        elif isinstance(point, LogitsPoint):
            listen(point.module, "output", partial(recorder.logits, point))
        else:
            for kind in (
                kind for kind in recorder.kinds if kind in point.sites and kind not in OF_CALLS
            ):
                module, where = point.place(kind)
                if module is not None:
                    listen(module, where, partial(recorder.note, kind, point))
    # After what is recorded of a module's output.
    running.leave_attentions(here)
    running.leave_blocks(here)
    if not attentions:
        return

    def note(attended: Attended) -> None:
        run = running.attention
        if run is not None and here.here():
            recorder.attention(attended, run, _dropout(run.point.module))

    def note_foreign(
        module: nn.Module, inputs: Callable[[], Attended], output: Tensor, dropout: float
    ) -> None:
        run = running.attention
        if run is not None and here.here() and run.point.module is module:
            recorder.attention(inputs(), run, dropout)
            recorder.output(output)

    attached.enter_context(
        hugging_face.watching(note_foreign) if recorder.foreign else watching(note)
    )


def _dropout(module: nn.Module) -> float:
    """Return the probability with which an attention drops a weight now."""
    if module.training:
        dropout = getattr(module, "dropout", 0.0)
    else:
        dropout = 0.0
    return dropout if isinstance(dropout, float) else 0.0


def uncompiled() -> AbstractContextManager[None]:
    """Within the block compiled modules run uncompiled. torch's stance is that of the whole
    process.
    """
    return patched("compiler stance", _force_eager)


def _force_eager() -> Callable[[], object]:
    stance = torch.compiler.set_stance("force_eager")
    return partial(stance.__exit__, None, None, None)
