// The bar of a tour: what to do in its step, what to see, and the way to the next one.
import { useEffect, useRef } from "preact/hooks";
import type { ModelCard } from "./source";
import { START, startOfStep, type Address, type State, type Store } from "./state";
import { stepOf } from "./tours";
import "./tour.css";

interface TourBarProps {
  store: Store;
  state: State;
  card: ModelCard | null;
}

/** Milliseconds in which a step's panel is looked for. */
const PATIENCE = 4000;

export function TourBar({ store, state, card }: TourBarProps) {
  const bar = useRef<HTMLElement>(null);
  const found = stepOf(state.tour, state.step);
  const last = found?.tour.steps.length ?? 0;
  const go = (step: number) => {
    const next = startOfStep(state.tour, step);
    if (next) store.set(next, true);
  };
  /** To the start page, where there is one: of a folder of saved pages it is a page of its own. */
  const finish = () => {
    if (store.home === "index.html") location.assign(store.home);
    else store.set(store.home === null ? { tour: "" } : START, true);
  };
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const free = event.target === document.body || bar.current?.contains(event.target as Node);
      if (!by || !free || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go(state.step + by);
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [state.tour, state.step]);
  useEffect(() => {
    const begun = performance.now();
    let next = 0;
    let panel: Element | null = null;
    const look = () => {
      panel = bar.current?.closest(".glassformer")?.querySelector(`[aria-label="${found?.step.at}"]`) ?? null;
      if (panel) {
        panel.scrollIntoView({ block: "nearest" });
        panel.setAttribute("data-toured", "true");
      } else if (performance.now() - begun < PATIENCE) next = window.setTimeout(look, 100);
    };
    scrollTo({ top: 0 });
    if (found?.step.at) look();
    return () => {
      clearTimeout(next);
      panel?.removeAttribute("data-toured");
    };
  }, [state.tour, state.step, state.view]);
  if (!found) return null;
  const { tour, step } = found;
  const done = Object.entries(step.then).every(([name, value]) => JSON.stringify(state[name as keyof Address]) === JSON.stringify(value));
  return (
    <aside class="tour" ref={bar} aria-label={`Tour: ${tour.title}`}>
      <div class="tour-text" aria-live="polite">
        <p>
          <strong class="number">
            {state.step} of {last}
          </strong>{" "}
          {step.do}{" "}
          {card && (
            <button type="button" disabled={done} onClick={() => store.set(step.then, true)}>
              {done ? "Done" : "Do it for me"}
            </button>
          )}
        </p>
        {done && <p>{step.see}</p>}
      </div>
      <div class="tour-ways">
        <button type="button" disabled={state.step === 1} onClick={() => go(state.step - 1)}>
          Back
        </button>
        {state.step < last ? (
          <button type="button" class="main" onClick={() => go(state.step + 1)}>
            Next
          </button>
        ) : (
          <button type="button" class="main" onClick={finish}>
            Finish
          </button>
        )}
        <button type="button" aria-label="Close the tour" title="Close the tour" onClick={() => store.set({ tour: "" }, true)}>
          {"\u00D7"}
        </button>
      </div>
    </aside>
  );
}
