"""Attention and whatever else of a running model, exact, without touching what it computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from glassformer.errors import InputError, require
from glassformer.layers.attention import Attended, watching
from glassformer.observe import hugging_face
from glassformer.observe.captured import Captured, as_texts
from glassformer.observe.exact_attention import Given
from glassformer.observe.readings import Frame, Reader
from glassformer.observe.watch_points import Heads, Modules, Point, Selection, choose_points, own_points, whole_numbers


@contextmanager
def capture(
    model: nn.Module,
    modules: Modules | None = None,
    *,
    what: str | Sequence[str] = "weights",
    layers: Selection | None = None,
    heads: Heads | None = None,
    queries: Selection | None = None,
    retain_grad: bool = False,
    tokens: Any = None,
    source_tokens: Any = None,
) -> Iterator[Captured]:
    """Watch a model while it runs::

        with capture(model, layers=-1, heads=[0, 3], queries=-1) as seen:
            logits = model(tokens)
        seen.weights["layers.5.attention"]     # [batch, head, query, key]

    ===========  ====================================================================================================
    what         is captured
    ===========  ====================================================================================================
    weights      attention weights, before dropout, [batch, head, query, key]; with sinks a row sums to less than 1
    scores       what the softmax is of, scaled, with key weights; -inf where forbidden
    sinks        the share of each query's softmax that goes to the sink, [batch, head, query]
    q            queries as they enter the attention, rotated if they are, [batch, head, query, dim]
    k, v         keys and values that this call has made, of the key-value heads that the chosen heads read; the whole
                 memory's in cross-attention
    residual     what each block returns, [batch, query, dim]
    ffn          what each feed-forward network returns, mixtures of experts too
    router       probabilities of all experts, [batch, query, expert]
    choices      the experts that were chosen, the best first, [batch, query, choice]
    shares       what each of them counts; sums to 1
    experts      what each chosen expert makes of the position, before it is weighted, [batch, query, choice, dim]
    given        queries, keys and all else that the weights follow from, of all heads and queries, in ``seen.given``:
                 :func:`~glassformer.observe.exact_attention.exact_rows` gives any row later; only from a text's start
    ===========  ====================================================================================================

    Weights, scores and shares of sinks are computed beside the fused kernel, from the queries and keys that it is
    given: just the asked heads and queries, in blocks of a few MiB, with the keys between the first and the last that
    causality and window let these queries see. They are in float32 or wider. No output and no random number changes,
    to the last bit. In cached generation each step is a call of one query, and positions go on counting.

    Captures may be nested. Nothing is left behind when the ``with`` block is left, however that happens. Seen are the
    forward passes of the thread that opened the block. What ``torch.compile`` has made runs uncompiled within the
    block, in every thread: a compiled graph cannot be looked into. Its output is then that of the plain model, which
    may differ from the compiled one's in rounding.

    Args:
        model: A model of glassformer's attention, or a GPT-2, Llama, Mixtral or BERT of ``transformers``; compiled
            or not.
        modules: Names of what is watched, or of modules that it lies in; or a rule on name and module; all when None.
        what: One or more of the above.
        layers: Numbers of blocks; in an encoder-decoder those of both stacks.
        heads: Query heads of every attention; ``{layer: heads}`` or ``{module name: heads}`` watches those alone.
        queries: Positions in the text, of queries for attention and of what passes for the rest. Negative ones count
            from the newest: -1 is each step of a generation. With a cache, positions of other calls are passed over.
        retain_grad: Each record of weights, scores, q, k, v, residual and ffn gets the gradient of whatever is
            differentiated later as ``record.grad``, where gradients are on and there is no cache. That of the weights
            is computed from the gradient of the attention's output, ``d loss / d weights[i, j] = grad[i] . v[j]``,
            and that of the scores from it, as if the weights had been held. The others are computed aside, from the
            model's own numbers, and have none. Records then hold on to the graph.
        tokens: The words of the text, or of each text, which then name the positions.
        source_tokens: Those of an encoder-decoder's sources.

    Raises:
        InputError: A model without anything to watch, a choice of what there is not or of nothing, words that are
            none; and from within the model: a position out of range, an attention that did not pass where it is
            seen, or ``retain_grad`` of weights under attention dropout, which is not seen.
    """
    model = getattr(model, "_orig_mod", model)
    foreign = hugging_face.is_hugging_face(model)
    points = watchable(model)
    require(
        any(point.role == "attention" for point in points),
        f"{type(model).__name__}, which has no attention that can be watched",
        "a model of glassformer's attention, or a GPT-2, Llama, Mixtral or BERT of transformers",
        "Watch one of these.",
    )
    asked = (what,) if isinstance(what, str) else tuple(what)
    # What is given is seen where queries are.
    chosen = choose_points(points, ["q" if kind == "given" else kind for kind in asked], modules, layers, heads)
    kinds = tuple(kind for kind in asked if kind != "given")
    if queries is not None and not isinstance(queries, slice):
        queries = whole_numbers("queries", queries)
        require(len(queries) > 0, "queries of nothing", "at least one", "Leave queries out to see all.")
    seen = Captured([], as_texts("tokens", tokens), as_texts("source_tokens", source_tokens))
    reader = Reader(seen.records, kinds, chosen, queries, retain_grad, seen.given if "given" in asked else None)
    with ExitStack() as attached:
        attached.enter_context(_uncompiled())
        _attach(attached, reader, foreign)
        yield seen
    require(
        reader.calls == 0 or len(seen.records) > 0 or not kinds,
        f"queries = {queries!r}, which no call had",
        "positions of the text",
        "Mend the positions.",
    )


def watchable(model: nn.Module) -> tuple[Point, ...]:
    """Every place of a model that can be watched, in the order of its modules; none where it is of another kind."""
    model = getattr(model, "_orig_mod", model)
    return tuple(hugging_face.points(model) if hugging_face.is_hugging_face(model) else own_points(model))


def _attach(attached: ExitStack, reader: Reader, foreign: bool) -> None:
    """Hook the reader into the chosen modules and the blocks around them until ``attached`` is closed."""
    thread, frames = threading.get_ident(), reader.frames

    def here() -> bool:
        # A compiler that traces would leave these hooks out of what it makes.
        if torch.compiler.is_compiling():
            raise RuntimeError("a model is exported or traced within a capture: do it before or after")
        return threading.get_ident() == thread

    def hook(module: nn.Module, layer: int, point: Point | None, residual: Point | None) -> None:
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if here():
                frames.append(reader.frame(point, layer, args, kwargs))
                frames[-1].owner = module

        def leave(_: nn.Module, args: Any, output: Any) -> None:
            # Another's hook may have raised before the module was entered here.
            if here() and frames and frames[-1].owner is module:
                frame = frames.pop()
                if output is None:  # the module has raised
                    return
                if point is not None and not frame.noted:
                    raise InputError(
                        f"{point.name}, which has run without passing where attention is seen",
                        "an attention that is not written by itself",
                        "Watch other modules, or choose another implementation of attention.",
                    )
                if residual is not None:
                    reader.tensor("residual", residual, output[0] if isinstance(output, tuple) else output, frame)

        attached.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
        attached.callback(module.register_forward_hook(leave, always_call=True).remove)

    roles = {(point.role, point.module): point for point in reader.chosen}
    blocks = {point.block: point.layer for point in reader.chosen if point.block is not None}
    for block, layer in blocks.items():
        hook(block, layer, None, roles.get(("block", block)))
    for point in reader.chosen:
        if point.role == "attention":
            hook(point.module, point.layer, point, None)
            if reader.retain_grad and point.mixed is not None and not foreign:

                def mixed(_: nn.Module, args: tuple[Any, ...]) -> None:
                    if here():
                        reader.output(args[0])

                attached.callback(point.mixed.register_forward_pre_hook(mixed).remove)
        elif point.role in ("ffn", "experts"):

            def after(_: nn.Module, args: Any, output: Any, point: Point = point) -> None:
                if here() and frames:
                    reader.after(point, args[0], output, frames[-1])

            attached.callback(point.module.register_forward_hook(after).remove)
    if not any(point.role == "attention" for point in reader.chosen):
        return

    def current() -> Frame | None:
        return frames[-1] if threading.get_ident() == thread and frames and frames[-1].point is not None else None

    def note(attended: Attended) -> None:
        frame = current()
        if frame is not None:
            given = Given(
                attended.q,
                attended.k,
                attended.v,
                attended.scale,
                attended.pattern,
                key_weights=attended.key_weights,
                sinks=attended.sinks,
            )
            reader.attention(given, frame)

    def note_foreign(module: nn.Module, given: Callable[[], Given], output: torch.Tensor, dropout: float) -> None:
        frame = current()
        if frame is not None and frame.point is not None and frame.point.module is module:
            frame.dropout = dropout
            reader.attention(given(), frame)
            reader.output(output)

    attached.enter_context(hugging_face.watching(note_foreign) if foreign else watching(note))


_stance_lock = threading.Lock()
_stances: list[Any] = []


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Let what has been compiled run as it was written; the state is the process's, so openings are counted."""
    with _stance_lock:
        stance = torch.compiler.set_stance("force_eager") if not _stances else None
        _stances.append(stance)
    try:
        yield
    finally:
        with _stance_lock:
            first = _stances[0]
            _stances.pop()
            if not _stances:
                first.__exit__(None, None, None)
