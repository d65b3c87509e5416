"""Which experts every token of a run went to."""

from __future__ import annotations

from glassformer.errors import require
from glassformer.explorer.messages import AskExperts, ExpertLayer, Experts
from glassformer.explorer.reading import Routed
from glassformer.explorer.runs import Runs


def experts(runs: Runs, ask: AskExperts) -> Experts:
    """The choices, shares and probabilities of every router, as they were in the run's forward pass.

    Raises:
        UnknownName: No such run.
        InputError: A run of a model without experts.
    """
    run = runs.of(ask.run)
    require(
        len(run.routed) > 0,
        f"a run of {run.message.ask.model!r}, which has no experts",
        "a run of a mixture of experts",
        "Choose a model whose card names the view 'experts'.",
    )
    first = run.routed[0]
    return Experts(
        num_experts=first.probabilities.shape[1],
        top_k=first.choices.shape[1],
        layers=[_layer(routed) for routed in run.routed],
    )


def _layer(routed: Routed) -> ExpertLayer:
    count = routed.choices.flatten().bincount(minlength=routed.probabilities.shape[1])
    return ExpertLayer(
        layer=routed.layer,
        choices=routed.choices.tolist(),
        shares=_rounded(routed.shares.tolist()),
        probabilities=_rounded(routed.probabilities.tolist()),
        load=(count.double() / routed.choices.numel()).tolist(),
    )


def _rounded(rows: list[list[float]]) -> list[list[float]]:
    # Six digits are what float32 holds; all sixteen would make a long text's answer three times as large.
    return [[round(number, 6) for number in row] for row in rows]
