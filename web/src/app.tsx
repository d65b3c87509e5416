// The frame around the views: which model, which text, which view; and the run that all views look at.
import { useEffect, useId, useMemo } from "preact/hooks";
import { useAsk } from "./asking";
import { Header } from "./header";
import { Reading } from "./reading";
import { remembering, type Ask, type ModelCard, type Run, type Source, type View } from "./source";
import type { State, Store } from "./state";
import { Fault, Tabs } from "./parts";
import { AttentionView } from "./views/attention";
import { DesignView } from "./views/design";
import { ExpertsView } from "./views/experts";
import { SamplingView } from "./views/sampling";
import { ScrambleView } from "./views/scramble";

export interface ViewProps {
  source: Source;
  store: Store;
  state: State;
  card: ModelCard;
  /** What the model made of the text; null until the first answer, and of the text before while one is awaited. */
  run: Run | null;
}

export const VIEWS: Record<View, { title: string; show: (props: ViewProps) => preact.JSX.Element }> = {
  attention: { title: "Attention", show: AttentionView },
  design: { title: "Design", show: DesignView },
  scramble: { title: "Scramble", show: ScrambleView },
  sampling: { title: "Sampling", show: SamplingView },
  experts: { title: "Experts", show: ExpertsView },
};

export interface AppProps {
  source: Source;
  store: Store;
  /** Where the page stands: a whole window, a notebook's cell, or a saved file. */
  within: "window" | "notebook" | "file";
}

export function App({ source: answering, store, within }: AppProps) {
  const source = useMemo(() => remembering(answering), [answering]);
  const address = store.state.value;
  // Several pages may stand in one notebook.
  const id = useId();
  const catalogue = useAsk(source, "models", {});
  const models = catalogue.answer?.models ?? [];
  const card = models.find((each) => each.name === address.model) ?? models[0] ?? null;
  const state: State = { ...address, text: address.text ?? card?.text ?? "" };
  useEffect(() => {
    // A new address names no model, or one that is not here, or a view that this model lacks.
    if (!card) return;
    if (state.model !== card.name) store.set(beginning(card));
    else if (!card.views.includes(state.view)) store.set({ view: card.views[0] ?? "attention" });
  }, [card, state.model, state.view]);
  const asked = card && card.name === state.model ? asking(card, state) : null;
  const run = useAsk(source, "run", asked, 150);
  const answer = run.answer && card && run.answer.ask.model === card.name ? run.answer : null;
  const Shown = VIEWS[state.view].show;
  return (
    <div class="glassformer" data-within={within}>
      <Header {...{ source, store, state, models, card, within }} />
      {catalogue.refusal && <Fault refusal={catalogue.refusal} />}
      {card && card.name === state.model && (
        <main>
          <Reading {...{ source, store, state, card, run: answer, busy: run.busy }} />
          {run.refusal && <Fault refusal={run.refusal} />}
          <Tabs
            id={id}
            label="Views"
            chosen={state.view}
            tabs={card.views.map((view) => ({ name: view, title: VIEWS[view].title }))}
            choose={(view) => store.set({ view }, true)}
          />
          <section
            class="view"
            id={`${id}-view-${state.view}`}
            role="tabpanel"
            aria-labelledby={`${id}-tab-${state.view}`}
          >
            <Shown {...{ source, store, state, card, run: answer }} />
          </section>
        </main>
      )}
    </div>
  );
}

/** The state with which a model is first shown. */
export function beginning(card: ModelCard): Partial<State> {
  return {
    model: card.name,
    view: card.views[0] ?? "attention",
    text: card.text,
    source: null,
    order: null,
    part: null,
    layer: 0,
    head: 0,
    versus: null,
    pin: null,
    window: null,
    cells: {},
    written: [],
    expertLayer: 0,
  };
}

export function asking(card: ModelCard, state: State): Ask {
  const encoder = card.kind === "encoder_decoder";
  return {
    model: card.name,
    text: state.text,
    source: encoder ? (state.source ?? card.source ?? null) : null,
    order: encoder ? state.order : null,
  };
}
