// Attention of one head, of two heads, or of one query through all layers.
import { useMemo } from "preact/hooks";
import type { ViewProps } from "./props";
import { useAsk } from "../asking";
import { Awaited, Fault, Field, capital, percent } from "../parts";
import type { Attention, Detected, Measures, Run } from "../source";
import { UNCHANGED, type Place } from "../state";
import "./attention.css";
import "./attention/shapes.css";
import { Controls } from "./attention/controls";
import { DETECTED, HeadGrid, inWords, MEASURES, RESTING, valued, valuesOf } from "./attention/grid";
import { panelWidth } from "./attention/head-cells";
import { Layers } from "./attention/layers";
import { useSelection } from "./attention/selection";
import { Matrix } from "./attention/matrix";
import { Word } from "./attention/reading";
import { chosenStack, named, samePlace, within, wordsOf, type Words } from "./attention/stack";
import { headTiles } from "./attention/tiles";
import { ToldSentence } from "./attention/told";
import { Tokens } from "./attention/tokens";

/** With more keys than this, colours follow the square root of a weight by default. */
const MANY_KEYS = 64;

export function AttentionView(props: ViewProps) {
  const stack = props.run ? chosenStack(props.run, props.state) : null;
  if (!props.run) return <Awaited busy={props.busy} />;
  if (!stack) return <p class="quiet">This model has no attention to show.</p>;
  return <Shown {...props} run={props.run} stack={stack} />;
}

function Shown({ source, store, state, card, run, stack, told }: ViewProps & { run: Run; stack: Attention }) {
  const words = useMemo(() => wordsOf(run, stack), [run, stack]);
  const place = within({ layer: state.layer, head: state.head }, stack);
  const wanted = state.versus ? within(state.versus, stack) : null;
  const versus = wanted && !samePlace(wanted, place) ? wanted : null;
  const pinned = state.pinned.map((each) => within(each, stack)).filter((each) => !samePlace(each, place) && !samePlace(each, versus));
  const measured = useAsk(source, "measures", { run: run.run, part: stack.part });
  // Pictures of another text are not shown beside this one.
  const fits = measured.of?.run === run.run && measured.of.part === stack.part;
  const measures = fits ? measured.answer : null;
  // A saved page without its model holds weights alone.
  const passes = source.answers("weights") && measures?.passed !== null;
  const passed = state.passed && passes;
  const tilesOf = (each: Place) => headTiles(source, run.run, stack, each, passed);
  const [one, other, beside] = [tilesOf(place), versus && tilesOf(versus), pinned.map(tilesOf)];
  const detected = useAsk(source, "detect", card.kind === "decoder" ? { model: card.name } : null).answer;
  const selection = useSelection(stack);
  const root = state.root ?? stack.keys > MANY_KEYS;
  const largest = passed ? 1 : largestOf([place, ...(versus ? [versus] : []), ...pinned], measures);
  const pin = state.pin !== null && state.pin < stack.queries ? state.pin : null;
  const setPin = (next: number | null, side: "query" | "key" = "query") =>
    store.set(side === "query" ? { pin: next, key: null } : { pin: null, key: next });
  const pinnedKey = state.key !== null && state.key < stack.keys ? state.key : null;
  const choose = (next: Place) => store.set(next, true);
  const unpin = (gone: Place) => store.set({ pinned: state.pinned.filter((each) => !samePlace(within(each, stack), gone)) }, true);
  const note = <Rests {...{ source, store, card, run, stack, place, measures, words, pin }} />;
  const common = { words, largest, root, pin, setPin, one, other, pinned: beside, choose, unpin, note };
  const several = stack.layers * stack.heads > 1;
  return (
    <div class="attention">
      {told && <ToldSentence {...{ source, store, run, told }} />}
      <Controls {...{ store, state, run, stack, place, versus, words, root, pin, setPin, passes, passed, unpin }} />
      {/* Mounted again for another stack, unlike the controls, one of which has the focus. */}
      <div
        key={stack.part}
        class={several && state.shape !== "heads" ? "attention-body with-grid" : "attention-body"}
        style={{ "--heads-width": `${panelWidth(stack.heads)}px` }}
      >
        {several && (
          <section class="panel heads-panel" aria-label="Heads" data-busy={measured.busy}>
            <div class="heads-title">
              <h2>{capital(stack.label)}</h2>
              <p class="quiet">Rows are layers, columns are heads.</p>
            </div>
            {measures && <Measured {...{ store, state, measures, detected }} />}
            <HeadGrid {...{ store, state, stack, measures, detected, place }} most={state.shape === "heads" ? 132 : 64} />
            <p class="details number">
              <strong>{capital(named(place))}</strong>
              {measures ? `: ${inWords(measures, detected, place)}` : " \u2013 measuring every head\u2026"}
            </p>
          </section>
        )}
        {(state.shape !== "heads" || !several) && (
          <section class="panel shape-panel" aria-label="Attention" tabIndex={-1}>
            {(state.shape === "matrix" || state.shape === "heads") && <Matrix {...common} {...{ store, state }} />}
            {(state.shape === "lines" || state.shape === "words") && (
              <Tokens {...common} shape={state.shape} {...{ selection, pinnedKey }} />
            )}
            {state.shape === "layers" && (
              <Layers {...{ source, store, state, run, stack, place, words, root, passed, selection, pin, setPin }} />
            )}
          </section>
        )}
      </div>
      {measured.refusal && <Fault refusal={measured.refusal} />}
    </div>
  );
}

/** The weight at the end of the colour scale: the largest of the heads shown. */
function largestOf(places: Place[], measures: Measures | null): number {
  const of = ({ layer, head }: Place): number => {
    const rows = measures?.thumbnails[layer]?.[head];
    return rows ? rows.reduce((most, row) => row.reduce((each, value) => Math.max(each, value), most), 0) : 0;
  };
  return Math.max(...places.map(of)) || 1;
}

type RestsProps = Pick<ViewProps, "source" | "store" | "card"> & {
  run: Run;
  stack: Attention;
  place: Place;
  measures: Measures | null;
  words: Words;
  pin: number | null;
};

/** Of a head that reads one token with most of its weight: what that weight passes on, and how to see what it does. */
function Rests({ source, store, card, run, stack, place, measures, words, pin }: RestsProps) {
  const of = <T,>(values: T[][] | null | undefined): T | null => values?.[place.layer]?.[place.head] ?? null;
  const [weight, key, passed] = [of(measures?.on_one), of(measures?.most_read), of(measures?.passed)];
  if (weight === null || key === null || weight < RESTING) return null;
  const query = pin ?? stack.queries - 1;
  const cuts = card.kind === "decoder" && card.views.includes("whatif") && source.answers("whatif") && query !== key;
  const cut = () => store.set({ ...UNCHANGED, view: "whatif", place: null, ...place, forbidden: [{ part: stack.part, ...place, query, key }] }, true);
  return (
    <section class="rests" aria-label="On one token">
      <p>
        {capital(named(place))}: {percent(weight, 0)} of its attention rests on <Word text={words.keys[key] ?? ""} place={key} />
        {passed !== null && `, and ${percent(passed, 0)} of what it passes on comes from there`}. A large weight is not a large effect
        {cuts ? ": cut it and see." : "."}
      </p>
      {cuts && (
        <button type="button" onClick={cut}>
          Cut it for <Word text={run.tokens[query] ?? ""} place={query} /> in What if
        </button>
      )}
    </section>
  );
}

/** Heads with the largest values that are listed. */
const FIRST = 10;

type MeasuredProps = Pick<ViewProps, "store" | "state"> & { measures: Measures; detected: Detected | null };

/** The choice of what is shown of each head, and the heads that have most of it. */
function Measured({ store, state: { measure }, measures, detected }: MeasuredProps) {
  const names = (Object.keys(MEASURES) as (keyof typeof MEASURES)[]).filter(
    (name) => name === "pictures" || valuesOf(name, measures, detected) !== null,
  );
  const option = (name: keyof typeof MEASURES) => (
    <option value={name} selected={name === measure}>
      {MEASURES[name].title}
      {MEASURES[name].unit && `, ${MEASURES[name].unit}`}
    </option>
  );
  const values = valuesOf(measure, measures, detected);
  const ranked = (values ?? [])
    .flatMap((row, layer) => row.flatMap((value, head) => (value === null ? [] : [{ layer, head, value }])))
    .sort((one, other) => other.value - one.value)
    .slice(0, FIRST);
  return (
    <>
      <Field label="Show of each head">
        <select value={values ? measure : "pictures"} onChange={(event) => store.set({ measure: event.currentTarget.value as typeof measure })}>
          <optgroup label="In this text">{names.filter((name) => !DETECTED.includes(name as never)).map(option)}</optgroup>
          {detected && <optgroup label="On random tokens, read twice">{DETECTED.map(option)}</optgroup>}
        </select>
      </Field>
      {values && (
        <ol class="strongest" aria-label="The heads with most">
          {ranked.map(({ layer, head, value }) => (
            <li>
              <button type="button" aria-label={`${named({ layer, head })}, ${valued(measure, value)}`} onClick={() => store.set({ layer, head }, true)}>
                {layer}.{head} <span class="number">{valued(measure, value)}</span>
              </button>
            </li>
          ))}
        </ol>
      )}
      {!values && detected && <p class="details quiet">Marked: {DETECTED.filter((name) => MEASURES[name].mark).map((name) => `${MEASURES[name].mark} ${MEASURES[name].title.toLowerCase()}`).join(", ")}.</p>}
    </>
  );
}
