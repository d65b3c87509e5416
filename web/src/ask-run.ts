// The request for the run that is shown, as glassformer/explorer/saving/page_state.py makes it for a saved page.
import type { Ask, ModelCard } from "./source";
import type { State } from "./state";
import type { Edited } from "./views/design/weights";
import { asStored, orderOf } from "./views/scramble/orders";

export function askRun(card: ModelCard, state: State, edits: Edited | null): Ask {
  const source = card.kind === "encoder_decoder" ? (state.source ?? card.source ?? null) : null;
  return {
    model: card.name,
    text: state.text,
    source,
    order: source && asStored(orderOf(state.order, source.length)),
    changes: null,
    weights: edits?.differs ? edits.weights : null,
  };
}
