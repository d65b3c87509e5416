"""List the experts that every token of a run was routed to."""

from glassformer.errors import InputError
from glassformer.explorer.answers.forward import Routed
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.messages import MOST_EXPERT_NUMBERS, AskExperts, ExpertLayer, Experts


def experts(runs: Runs, ask: AskExperts) -> Experts:
    """Return the choices, routing weights and probabilities of every router in the run.

    With T tokens, L routers, E experts and k choices, these are ``T * L * (E + 2 k)`` numbers. If
    there are more than ``MOST_EXPERT_NUMBERS``, the probabilities are omitted, and ``T * L * 2 k``
    numbers remain.
    """
    run = runs.of(ask.run)
    if not run.routed:
        raise InputError(
            got=f"a run of {run.message.ask.model!r}, which has no experts",
            expected="a run of a mixture of experts",
            fix="Choose a model whose card names the view 'experts'.",
        )
    for routed in run.routed:
        finite = bool(routed.probabilities.isfinite().all() and routed.shares.isfinite().all())
        if not finite:
            raise InputError(
                got=f"probabilities of layer {routed.layer}'s router that are not finite",
                expected="finite probabilities",
                fix="Find the first NaN in the model's weights and forward pass.",
            )
    chosen = sum(2 * routed.choices.numel() for routed in run.routed)
    fitting = int(len(run.message.tokens) * MOST_EXPERT_NUMBERS / chosen)
    if chosen > MOST_EXPERT_NUMBERS:
        raise InputError(
            got=f"{chosen:,} choices and routing weights of {len(run.message.tokens):,} tokens",
            expected=f"at most {MOST_EXPERT_NUMBERS:,}",
            fix=f"Shorten the text to {fitting:,} tokens.",
        )
    probabilities = sum(routed.probabilities.numel() for routed in run.routed)
    complete = chosen + probabilities <= MOST_EXPERT_NUMBERS
    first = run.routed[0]
    return Experts(
        num_experts=first.probabilities.shape[1],
        top_k=first.choices.shape[1],
        layers=[_layer(routed, complete) for routed in run.routed],
    )


def _layer(routed: Routed, complete: bool) -> ExpertLayer:
    probabilities: list[list[float]] = []
    if complete:
        probabilities = routed.probabilities.double().round(decimals=6).tolist()
    count = routed.choices.flatten().bincount(minlength=routed.probabilities.shape[1])
    return ExpertLayer(
        layer=routed.layer,
        choices=routed.choices.tolist(),
        # float32 holds six digits; sixteen would triple the size of the answer.
        shares=routed.shares.double().round(decimals=6).tolist(),
        probabilities=probabilities,
        load=(count.double() / routed.choices.numel()).tolist(),
    )
