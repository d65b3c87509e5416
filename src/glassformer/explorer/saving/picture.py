"""What the page shows as a figure, for places that show neither pages nor widgets, such as a notebook on GitHub."""

from __future__ import annotations

from matplotlib.figure import Figure

from glassformer.explorer.messages.calls import Answering
from glassformer.explorer.saving.calls_of import runs_of
from glassformer.explorer.saving.kept_weights import EXACT_TOKENS, coarse_enough, matrix
from glassformer.explorer.saving.view_state import Words, ask_page, view_state
from glassformer.observe.figures.attention_maps import attention_map
from glassformer.observe.figures.heat_maps import MOST_NAMES


def picture(explorer: Answering, state: Words) -> Figure:
    """The attention of the head that is chosen.

    Args:
        explorer: Who answers.
        state: The words of the page's address.

    Raises:
        UnknownName: No such model.
        InputError: The model refuses the text, or has no attention to draw.
    """
    shown = view_state(ask_page(state), explorer.catalogue().models)
    run = runs_of(explorer, shown)[0]
    stack = shown.stack(run)
    layer, head = min(shown.layer, stack.layers - 1), min(shown.head, stack.heads - 1)
    level = coarse_enough(max(stack.queries, stack.keys), EXACT_TOKENS)
    weights = matrix(explorer, run, stack, layer, head, level)
    texts = {"tokens": run.tokens, "source": run.source or []}
    named = level == 0 and max(stack.queries, stack.keys) <= MOST_NAMES
    keys, queries = (texts[stack.keys_are], texts[stack.queries_are]) if named else ([], [])
    title = f"{stack.label[:1].upper()}{stack.label[1:]}, layer {layer}, head {head}"
    return attention_map(weights, keys, queries, title, axis_names=("token that is read", "token that reads"))
