// Controls for stack, layer, head, second head, query, and display.
import { Choice, Numbered, PositionField, capital, counted, focusAround } from "../../parts";
import type { Attention, Run } from "../../source";
import type { Place, State, Store } from "../../state";
import contract from "../../contract.json";
import { samePlace, shown, type Words } from "./stack";

interface ControlsProps {
  store: Store;
  state: State;
  run: Run;
  stack: Attention;
  place: Place;
  versus: Place | null;
  words: Words;
  root: boolean;
  pin: number | null;
  setPin: (pin: number | null) => void;
  /** Whether the size of values is known, and whether it counts. */
  passes: boolean;
  passed: boolean;
  unpin: (place: Place) => void;
}

const MOST_PINNED = contract.State.properties.pinned.maxItems;
const SHAPES: { name: State["shape"]; title: string; hint: string }[] = [
  { name: "matrix", title: "Matrix", hint: "Every query by every key" },
  { name: "lines", title: "Lines", hint: "Lines between tokens" },
  { name: "words", title: "Text", hint: "The text, coloured by what a query reads" },
  { name: "layers", title: "Layers", hint: "One query followed over all layers" },
  { name: "heads", title: "Heads", hint: "Every head in small" },
];

export function Controls({ store, state, run, stack, place, versus, words, root, pin, setPin, passes, passed, unpin }: ControlsProps) {
  const shapes = SHAPES.filter(({ name }) => name !== "heads" || stack.layers * stack.heads > 1);
  const isPinned = state.pinned.some((each) => samePlace(each, place));
  const compares = state.shape === "matrix" || state.shape === "lines" || state.shape === "words";
  return (
    <div class="bar controls">
      <Choice label="How attention is drawn" chosen={state.shape} options={shapes} choose={(shape) => store.set({ shape }, true)} />
      {run.attentions.length > 1 && (
        <Choice
          label="Stack"
          chosen={stack.part}
          options={run.attentions.map(({ part, label }) => ({ name: part, title: capital(label) }))}
          choose={(part) => store.set({ part, layer: 0, head: 0, versus: null, pinned: [], window: null, pin: null }, true)}
        />
      )}
      <PlaceFields name="" place={place} stack={stack} choose={(next) => store.set(next, true)} />
      {compares && stack.layers * stack.heads > 1 && (
        <div class="versus">
          {versus && (
            <>
              <span class="with">with</span>
              <PlaceFields name="Second " place={versus} stack={stack} choose={(next) => store.set({ versus: { ...versus, ...next } }, true)} />
            </>
          )}
          {/* One button, which keeps the focus. */}
          <button type="button" onClick={() => store.set({ versus: versus ? null : another(place, stack) }, true)}>
            {versus ? "End comparison" : "Compare with another head"}
          </button>
          <button
            type="button"
            title="Keeps this head beside those that are chosen next"
            disabled={!isPinned && state.pinned.length >= MOST_PINNED}
            onClick={() => (isPinned ? unpin(place) : store.set({ pinned: [...state.pinned, place] }, true))}
          >
            {isPinned ? "Unpin this head" : "Pin this head"}
          </button>
        </div>
      )}
      {state.shape !== "heads" && <Query {...{ words, pin, setPin }} />}
      {passes && (
        <label class="tick" hidden={state.shape === "heads"}>
          <input type="checkbox" checked={passed} onChange={(event) => store.set({ passed: event.currentTarget.checked }, true)} />
          <span title="Each key's share of weight times size of its value, after the output projection">{"Weight \u00D7 value"}</span>
        </label>
      )}
      <label class="tick" hidden={state.shape === "heads"}>
        <input type="checkbox" checked={root} onChange={(event) => store.set({ root: event.currentTarget.checked })} />
        <span title="Colours follow the square root of the weight">Enhance small weights</span>
      </label>
    </div>
  );
}

interface PlaceFieldsProps {
  name: string;
  place: Place;
  stack: Attention;
  choose: (next: Partial<Place>) => void;
}

export function PlaceFields({ name, place, stack, choose }: PlaceFieldsProps) {
  const layers = counted(stack.layers).map(({ id }) => ({ id, name: stack.windows[id] ? `${id} (window ${stack.windows[id]})` : id }));
  const title = (text: string) => (name ? name + text.toLowerCase() : text);
  return (
    <span class="places">
      {stack.layers > 1 && <Numbered label={title("Layer")} chosen={place.layer} options={layers} choose={(layer) => choose({ layer })} />}
      {stack.heads > 1 && <Numbered label={title("Head")} chosen={place.head} options={counted(stack.heads)} choose={(head) => choose({ head })} />}
    </span>
  );
}

/** The first head offered for a comparison: the next one. */
function another(place: Place, stack: Attention): Place {
  if (stack.heads > 1) return { layer: place.layer, head: (place.head + 1) % stack.heads };
  return { layer: (place.layer + 1) % stack.layers, head: 0 };
}

/** A field for the pinned query's position, and a button that unpins it. */
function Query({ words, pin, setPin }: Pick<ControlsProps, "words" | "pin" | "setPin">) {
  return (
    <span class="query" role="group" aria-label="Query" tabIndex={-1}>
      <PositionField label="Query" last={words.queries.length - 1} value={pin} placeholder="none" change={setPin} />
      {pin !== null && (
        <button type="button" aria-label={`Unpin ${shown(words.queries[pin] ?? "")}`} onClick={(event) => (focusAround(event), setPin(null))}>
          <span class="word">{shown(words.queries[pin] ?? "", 14)}</span> <span aria-hidden="true">{"\u00D7"}</span>
        </button>
      )}
    </span>
  );
}
