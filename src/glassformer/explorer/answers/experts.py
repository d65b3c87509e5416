"""Which experts every token of a run went to."""

from __future__ import annotations

from glassformer.errors import require
from glassformer.explorer.answers.forward import Routed
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.messages import MOST_TOLD, AskExperts, ExpertLayer, Experts


def experts(runs: Runs, ask: AskExperts) -> Experts:
    """The choices, shares and probabilities of every router, as they were in the run's forward pass.

    With T tokens, L routers, E experts and k choices these are ``T * L * (E + 2 k)`` numbers. Where they would be more
    than ``MOST_TOLD``, probabilities are left out, and ``T * L * 2 k`` remain.

    Raises:
        UnknownName: No such run.
        InputError: A run of a model without experts, more than ``MOST_TOLD`` choices and shares, or a router that gives
            no numbers.
    """
    run = runs.of(ask.run)
    require(
        len(run.routed) > 0,
        f"a run of {run.message.ask.model!r}, which has no experts",
        "a run of a mixture of experts",
        "Choose a model whose card names the view 'experts'.",
    )
    for routed in run.routed:
        finite = bool(routed.probabilities.isfinite().all() and routed.shares.isfinite().all())
        require(
            finite,
            f"probabilities of layer {routed.layer}'s router that are not finite",
            "numbers",
            "Look for the first NaN in the model's weights and forward pass.",
        )
    chosen = sum(2 * routed.choices.numel() for routed in run.routed)
    fitting = int(len(run.message.tokens) * MOST_TOLD / chosen)
    require(
        chosen <= MOST_TOLD,
        f"{chosen:,} choices and shares of {len(run.message.tokens):,} tokens",
        f"at most {MOST_TOLD:,}",
        f"Shorten the text to {fitting:,} tokens.",
    )
    whole = chosen + sum(routed.probabilities.numel() for routed in run.routed) <= MOST_TOLD
    first = run.routed[0]
    return Experts(
        num_experts=first.probabilities.shape[1],
        top_k=first.choices.shape[1],
        layers=[_layer(routed, whole) for routed in run.routed],
    )


def without_probabilities(told: Experts) -> Experts:
    """The same with no more than choices, shares and loads, where there is no room for all."""
    layers = [layer.model_copy(update={"probabilities": []}) for layer in told.layers]
    return told.model_copy(update={"layers": layers})


def _layer(routed: Routed, whole: bool) -> ExpertLayer:
    count = routed.choices.flatten().bincount(minlength=routed.probabilities.shape[1])
    return ExpertLayer(
        layer=routed.layer,
        choices=routed.choices.tolist(),
        shares=_rounded(routed.shares.tolist()),
        probabilities=_rounded(routed.probabilities.tolist()) if whole else [],
        load=(count.double() / routed.choices.numel()).tolist(),
    )


def _rounded(rows: list[list[float]]) -> list[list[float]]:
    # Six digits are what float32 holds; all sixteen would make a long text's answer three times as large.
    return [[round(number, 6) for number in row] for row in rows]
