// The frame around the views: the choice of model, text and view, and the run that all views show.
import { useEffect, useId, useMemo } from "preact/hooks";
import { useAsk } from "./asking";
import { Header } from "./header";
import { Reading } from "./reading";
import { askRun } from "./ask-run";
import { remembering, reviving, type ModelCard, type Refusal, type Source, type View } from "./source";
import { cardOf, firstView, isOpen, isViewOpen, resolved, type Address, type State, type Store } from "./state";
import { stepOf } from "./tours";
import { Fault, Tabs } from "./parts";
import { StartPage } from "./start";
import { TourBar } from "./tour";
import { useEdited } from "./views/design/edits";
import { AttentionView } from "./views/attention";
import { beginningWith, useTelling } from "./views/attention/telling";
import { DesignView } from "./views/design";
import { ExpertsView } from "./views/experts";
import { FlowView } from "./views/flow";
import { ProgramView } from "./views/program";
import { SamplingView } from "./views/sampling";
import type { ViewProps } from "./views/props";
import { ScrambleView } from "./views/scramble";
import { TwoTextsView } from "./views/patch";
import { WhatIfView } from "./views/what-if";
import { Words } from "./words";

const VIEWS: Record<View, { title: string; show: (props: ViewProps) => preact.JSX.Element }> = {
  flow: { title: "Flow", show: FlowView },
  attention: { title: "Attention", show: AttentionView },
  design: { title: "Design", show: DesignView },
  program: { title: "Program", show: ProgramView },
  scramble: { title: "Scramble", show: ScrambleView },
  sampling: { title: "Sampling", show: SamplingView },
  experts: { title: "Experts", show: ExpertsView },
  whatif: { title: "What if", show: WhatIfView },
  patch: { title: "Two texts", show: TwoTextsView },
};

export interface AppProps {
  source: Source;
  store: Store;
  /** Where the page is shown: in a window, in a notebook's cell, or from a saved file. */
  within: "window" | "notebook" | "file";
}

export function App({ source: answering, store: addressed, within }: AppProps) {
  const source = useMemo(() => remembering(reviving(answering)), [answering]);
  const address = addressed.state.value;
  // One notebook may hold several pages.
  const id = useId();
  const catalogue = useAsk(source, "models", {});
  const models = catalogue.answer?.models ?? [];
  // Of a single model there is nothing to choose.
  const starting = addressed.home !== null && address.model === "" && models.length !== 1;
  const card = starting ? null : cardOf(address, models);
  const missing = catalogue.answer !== null && card === null && address.model !== "";
  const first = resolved(address, card);
  useEffect(() => {
    // The address names no model, or a view that this model does not have.
    if (!card) return;
    // The state may have changed since this was rendered.
    const now = addressed.state.value.model;
    if (now === "") addressed.set({ model: card.name });
    else if (now === card.name && !card.views.includes(first.view)) addressed.set({ view: firstView(card) });
  }, [card, first.model, first.view]);
  const shown = card && card.name === first.model ? card : null;
  const edits = useEdited(source, shown, first);
  const edited = shown?.kind === "head" && (first.exercise || Object.keys(first.cells).length > 0);
  // Edits are sent as whole matrices, which need the design.
  const awaited = edited && edits === null;
  // Where a model takes its time, reading each text that it writes would keep it from writing.
  const wait = source.typing > 0 && addressed.writing.value ? Infinity : source.typing;
  const run = useAsk(source, "run", shown && !awaited ? askRun(shown, first, edits) : null, wait);
  const answer = run.answer && card && run.answer.ask.model === card.name ? run.answer : null;
  const told = useTelling(source, shown, address, first.view, answer);
  const { state, store } = useShown(addressed, first, told, card);
  // Errors of edited weights are shown where they are edited.
  const toldBelow = state.view === "design" && edits !== null && edits.differs;
  // What is shown is of an earlier text.
  const stale = answer !== null && (run.busy || run.refusal !== null);
  const Shown = source.shows(state.view) ? VIEWS[state.view].show : NotHeld;
  return (
    <div class="glassformer" data-within={within}>
      <Header {...{ source, store, state, models, card }} />
      {catalogue.refusal && <Fault refusal={catalogue.refusal} />}
      {missing && <Fault refusal={notHere(address, within)} />}
      {starting && catalogue.answer && <StartPage {...{ models, within }} />}
      {card && card.name === state.model && (
        <main>
          <Reading {...{ source, store, state, card, run: answer, busy: run.busy || awaited, stale }} />
          {run.refusal && !toldBelow && <Fault refusal={run.refusal} />}
          <Tabs
            id={id}
            label="Views"
            chosen={state.view}
            tabs={card.views.map((view) => ({ name: view, title: VIEWS[view].title }))}
            choose={(view) => store.set({ view }, true)}
          />
          <section
            class={`view view-${state.view}`}
            data-stale={stale}
            id={`${id}-view-${state.view}`}
            role="tabpanel"
            aria-labelledby={`${id}-tab-${state.view}`}
          >
            {/* Mounted again for another model: its answers differ. */}
            <Shown key={card.name} {...{ source, store, state, card, edits, told, run: answer, busy: run.busy || awaited }} />
          </section>
          <Words view={state.view} />
        </main>
      )}
      {state.tour !== "" && <TourBar {...{ store, state, card }} />}
    </div>
  );
}

/** Instead of a view that a saved file does not hold. */
function NotHeld() {
  return (
    <p class="quiet">
      This file does not hold this view: go back to the one that it was saved with, or open the model with {"\u2018"}glassformer explore{"\u2019"}.
    </p>
  );
}

/**
 * The state that is shown and its store: with the head that stands out, where the address leaves the head open; in Flow
 * where none does and the address leaves the view open too.
 */
function useShown(store: Store, first: State, told: ReturnType<typeof useTelling>, card: ModelCard | null): { state: State; store: Store } {
  const open = isOpen(store.state.value);
  const known = open && told !== "looking" ? told : null;
  const viewIsOpen = isViewOpen(store.state.value) && card?.views.includes("flow");
  let state = first;
  if (known?.head) {
    state = { ...first, layer: known.head.layer, head: known.head.head, pin: known.head.pin };
  } else if (known && known.answer !== null && viewIsOpen) {
    state = { ...first, view: "flow" };
  }
  const begun = useMemo(() => (open ? beginningWith(store, state) : store), [store, open, state.layer, state.head, state.pin]);
  return { state, store: begun };
}

function notHere({ model, tour, step }: Address, within: AppProps["within"]): Refusal {
  const where = within === "file" ? "this saved file" : "the list above";
  const command = stepOf(tour, step)?.tour.needs;
  const fix = command ? `Start '${command}'.` : "Choose one there, or change the address.";
  return { got: `Unknown model \u201C${model}\u201D`, expected: `one of ${where}`, fix };
}
