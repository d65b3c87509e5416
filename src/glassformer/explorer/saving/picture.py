"""The head that the page shows as a figure, for places that show neither pages nor widgets, such as GitHub."""

from __future__ import annotations

from matplotlib.figure import Figure

from glassformer.explorer import messages as m
from glassformer.explorer.calls import Answering
from glassformer.explorer.saving.page_state import page_state
from glassformer.explorer.saving.recorded_answers import asks_of
from glassformer.explorer.saving.recorded_weights import EXACT_TOKENS, coarse_enough, matrix
from glassformer.explorer.state import State
from glassformer.observe.figures.attention_maps import attention_map
from glassformer.observe.figures.heat_maps import MOST_NAMES


def picture(explorer: Answering, state: State) -> Figure:
    """The attention of the head that is shown.

    Args:
        explorer: Answers the requests.
        state: What the page shows.

    Raises:
        UnknownName: No such model.
        InputError: The model refuses the text or the edited weights, or has no attention to draw.
    """
    shown = page_state(state, explorer.catalogue().models)
    run = explorer.answer("run", asks_of(explorer, shown)[0])
    assert isinstance(run, m.Run)
    stack = shown.stack(run)
    layer, head = min(shown.state.layer, stack.layers - 1), min(shown.state.head, stack.heads - 1)
    level = coarse_enough(max(stack.queries, stack.keys), EXACT_TOKENS)
    weights = matrix(explorer, run, stack, layer, head, level)
    texts = {"tokens": run.tokens, "source": run.source or []}
    named = level == 0 and max(stack.queries, stack.keys) <= MOST_NAMES
    keys, queries = (texts[stack.keys_are], texts[stack.queries_are]) if named else ([], [])
    title = f"{stack.label[:1].upper()}{stack.label[1:]}, layer {layer}, head {head}"
    return attention_map(weights, keys, queries, title, axis_names=("token that is read", "token that reads"))
