"""What an intervention changes: a site of the model, the part of it that is meant, and the new value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError, require
from glassformer.observe.captured import AXES, Captured
from glassformer.observe.hook_points import Heads, HookPoint, Modules, Selection, select

SITES = tuple(kind for kind in AXES if kind not in ("sinks", "choices", "shares"))
"""The kinds of :func:`~glassformer.observe.capture.capture` that can be changed."""

Labels = dict[str, tuple[int, ...]]
"""The chosen indices on the axes "batch", "head", "query" and "key" of the tensor that is changed."""


@dataclass(frozen=True)
class Edit:
    """One change of a running model; made by the functions of this module, used by
    :func:`~glassformer.observe.intervene.intervene`.

    Args:
        site: One of :data:`SITES`.
        change: From the chosen part of the tensor, its hook point and its labels to the new value, which may be
            broadcast. It must not write into its argument.
        modules: As for ``capture``.
        layers: As for ``capture``.
        heads: As for ``capture``; of ``k`` and ``v`` key-value heads.
        queries: Positions of the text, for all sites but ``k`` and ``v``; negative ones count from the newest.
        keys: Positions of the text (of the memory, in cross-attention), for ``k``, ``v``, ``scores`` and ``weights``.
        examples: Rows of the batch.
        experts: For ``router`` and ``experts``.
        kernel: What the attention's kernel does by itself.
        run: The run whose values are used, which must be one of the same model.
    """

    site: str
    change: Callable[[Tensor, HookPoint, Labels], Tensor | float]
    modules: Modules | None = None
    layers: Selection | None = None
    heads: Heads | None = None
    queries: Selection | None = None
    keys: Selection | None = None
    examples: Selection | None = None
    experts: Selection | None = None
    kernel: Literal["forbid", "no sink"] | None = None
    run: Captured | None = None

    def __post_init__(self) -> None:
        require(self.site in SITES, f"site = {self.site!r}", f"one of {', '.join(SITES)}", "Choose one of these.")
        axes = AXES[self.site]
        for name, axis in (("heads", "head"), ("queries", "query"), ("keys", "key"), ("experts", "expert")):
            given = getattr(self, name) is not None
            fits = axis in axes or (name == "experts" and self.site == "experts")
            require(
                not given or fits,
                f"{name} of the site {self.site}, which has the axes {', '.join(axes)}",
                "a selection on one of these axes",
                f"Omit {name}, or choose another site.",
            )


def change(site: str, function: Callable[[Tensor], Tensor | float], **where: Any) -> Edit:
    """Replace the chosen part of a site by ``function`` of it; ``where``: see :class:`Edit`.

    ``function`` receives a copy with the site's axes (see ``capture``) and returns what can be broadcast to it. The
    site ``experts`` is an exception: it receives ``[choice, dim]``, a row for each token that chose the expert. Calls
    with equal values must give equal values: a capture of what follows from the site may call it once more.
    """

    def changed(values: Tensor, point: HookPoint, labels: Labels) -> Tensor | float:
        new = function(values.clone())
        got = f"a change of {site} at {point.name} whose function returns {type(new).__name__}"
        require(isinstance(new, Tensor | float | int), got, "a tensor or a number", "Return the new value.")
        return new

    return Edit(site, changed, **where)


def zero(site: str, **where: Any) -> Edit:
    """Set to 0: zero ablation. Of ``router``, which is probabilities, that forbids the expert."""
    return Edit(site, lambda values, point, labels: torch.zeros_like(values), **where)


def scale(site: str, factor: float | int, **where: Any) -> Edit:
    """Multiply by ``factor``."""
    return Edit(site, lambda values, point, labels: values * factor, **where)


def add(site: str, vector: Float[Tensor, "..."] | float, **where: Any) -> Edit:
    """Add a vector, or anything that can be broadcast: steering."""
    vector = torch.as_tensor(vector)

    def added(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        ends = zip(reversed(vector.shape), reversed(values.shape), strict=False)
        fits = vector.dim() <= values.dim() and all(size in (1, whole) for size, whole in ends)
        got = f"a vector of shape {list(vector.shape)} for {site} at {point.name}"
        require(fits, got, f"what can be broadcast to {list(values.shape)}", "Pass a vector of the site's width.")
        return values + vector.to(values)

    return Edit(site, added, **where)


def put(site: str, value: Float[Tensor, "..."] | float | int, **where: Any) -> Edit:
    """Replace by ``value``, which is broadcast; of ``weights``, it forces an attention pattern."""
    return Edit(site, lambda values, point, labels: torch.as_tensor(value).to(values), **where)


def patch(site: str, run: Captured, **where: Any) -> Edit:
    """Replace by what another run computed at the same place: activation patching.

    Args:
        site: The site, which ``run`` has captured for all that ``where`` names.
        run: A capture of a run of the same model: of as many texts as are edited, of all texts of the batch, from which
            the edited ones are taken, or of one text for all.
        where: See :class:`Edit`.

    Raises:
        InputError: While the model runs: the run lacks the place, or has another shape there.
    """
    _check_run("a patch", site, run)

    def taken(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        records = run.of(site).get(point.name, [])
        if not records:
            raise InputError(f"a patch of {site} at {point.name}", f"a capture of it: {sorted(run.of(site))}", _CAPTURE)
        record = records[-1]
        found = record.values
        examples = range(len(found))
        for axis, chosen in labels.items():
            if axis == "batch" and len(found) in (1, len(values)):
                continue
            there = {"batch": examples, "head": record.heads, "query": record.queries, "key": record.keys}[axis]
            missing = [each for each in chosen if there is None or each not in there]
            require(not missing, f"a patch of {site} at {point.name}, {axis} {missing}", f"{axis} in {there}", _CAPTURE)
            assert there is not None
            places = torch.tensor([there.index(each) for each in chosen], device=found.device)
            found = found.index_select(record.axes.index(axis), places)
        require(
            found.shape[1:] == values.shape[1:] and len(found) in (1, len(values)),
            f"a patch of {site} at {point.name} of shape {list(found.shape)}",
            f"{list(values.shape)}, or one example",
            "Run both on texts of equal length.",
        )
        return found

    return Edit(site, taken, run=run, **where)


def mean(site: str, run: Captured, **where: Any) -> Edit:
    """Replace by the mean over the examples and positions of all calls of a reference run: mean ablation.

    Positions that are padding count too: give the reference run texts of one length.
    """
    _check_run("a mean", site, run)

    def averaged(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        records = run.of(site).get(point.name, [])
        if not records:
            raise InputError(f"a mean of {site} at {point.name}", f"a capture of it: {sorted(run.of(site))}", _CAPTURE)
        record = records[-1]
        across = record.axes.index("key" if site in ("k", "v") else "query")
        rows = [each.values.transpose(1, across).flatten(0, 1) for each in records]
        found = torch.cat(rows).mean(0, keepdim=True).unsqueeze(across)
        if "head" in labels:
            assert record.heads is not None
            missing = [head for head in labels["head"] if head not in record.heads]
            require(not missing, f"a mean of {site} of heads {missing}", f"heads in {record.heads}", _CAPTURE)
            found = found[:, [record.heads.index(head) for head in labels["head"]]]
        return found

    return Edit(site, averaged, run=run, **where)


def forbid(queries: Selection | None = None, keys: Selection | None = None, **where: Any) -> Edit:
    """Forbid that ``queries`` attend to ``keys``. It is a mask of the fused kernel."""
    return Edit("scores", _infinite, queries=queries, keys=keys, kernel="forbid", **where)


def remove_sinks(
    *, modules: Modules | None = None, layers: Selection | None = None, heads: Heads | None = None
) -> Edit:
    """Leave the sinks of the chosen heads out of their softmax, for all queries."""
    return Edit("scores", _infinite, modules, layers, heads, kernel="no sink")


def force_experts(experts: Selection, **where: Any) -> Edit:
    """Route to these experts alone, weighed by the router's own scores; the chosen ``queries`` only."""

    def kept(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        chosen = torch.tensor(select("experts", experts, values.shape[-1]), device=values.device)
        return torch.zeros_like(values).index_copy(2, chosen, values.index_select(2, chosen))

    return Edit("router", kept, **where)


def _check_run(name: str, site: str, run: Captured) -> None:
    require(site not in ("experts", "scores", "weights"), f"{name} of {site}", "another site", "Use put(...).")
    got = f"{name} of {site} from {type(run).__name__}"
    require(isinstance(run, Captured), got, "what capture() gives", "Use put(site, value) for a tensor.")


def _infinite(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
    return torch.full_like(values, -torch.inf)


_CAPTURE = "Capture it with capture(model, what=..., ...) in the other run."
