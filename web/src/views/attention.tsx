// Attention of one head, of two heads, or of one query through all layers.
import { useMemo } from "preact/hooks";
import type { ViewProps } from "./props";
import { useAsk } from "../asking";
import { Awaited, Choice, Fault, capital } from "../parts";
import type { Attention, Measures, Run } from "../source";
import "./attention.css";
import "./attention/shapes.css";
import { Controls } from "./attention/controls";
import { HeadGrid, inWords, MEASURES } from "./attention/grid";
import { panelWidth } from "./attention/head-cells";
import { Layers } from "./attention/layers";
import { useSelection } from "./attention/selection";
import { Matrix } from "./attention/matrix";
import { chosenStack, named, samePlace, within, wordsOf } from "./attention/stack";
import { headTiles, type HeadTiles } from "./attention/tiles";
import { Tokens } from "./attention/tokens";

/** With more keys than this, colours follow the square root of a weight by default. */
const MANY_KEYS = 64;

export function AttentionView(props: ViewProps) {
  const stack = props.run ? chosenStack(props.run, props.state) : null;
  if (!props.run) return <Awaited busy={props.busy} />;
  if (!stack) return <p class="quiet">This model has no attention to show.</p>;
  return <Shown {...props} run={props.run} stack={stack} key={stack.part} />;
}

function Shown({ source, store, state, run, stack }: ViewProps & { run: Run; stack: Attention }) {
  const words = useMemo(() => wordsOf(run, stack), [run, stack]);
  const place = within({ layer: state.layer, head: state.head }, stack);
  const wanted = state.versus ? within(state.versus, stack) : null;
  const versus = wanted && !samePlace(wanted, place) ? wanted : null;
  const one = headTiles(source, run.run, stack, place);
  const other = versus ? headTiles(source, run.run, stack, versus) : null;
  const measured = useAsk(source, "measures", { run: run.run, part: stack.part });
  // Pictures of another text are not shown beside this one.
  const fits = measured.of?.run === run.run && measured.of.part === stack.part;
  const measures = fits ? measured.answer : null;
  const selection = useSelection(stack);
  const root = state.root ?? stack.keys > MANY_KEYS;
  const largest = largestOf(one, other, measures);
  const pin = state.pin !== null && state.pin < stack.queries ? state.pin : null;
  const setPin = (next: number | null) => store.set({ pin: next });
  const common = { words, largest, root, pin, setPin };
  const several = stack.layers * stack.heads > 1;
  return (
    <div class="attention">
      <Controls {...{ store, state, run, stack, place, versus, words, root, pin, setPin }} />
      <div
        class={several && state.shape !== "heads" ? "attention-body with-grid" : "attention-body"}
        style={{ "--heads-width": `${panelWidth(stack.heads)}px` }}
      >
        {several && (
          <section class="panel heads-panel" aria-label="Heads" data-busy={measured.busy}>
            <div class="heads-title">
              <h2>{capital(stack.label)}</h2>
              <p class="quiet">Rows are layers, columns are heads.</p>
            </div>
            {measures && <Measured {...{ store, state, measures }} />}
            <HeadGrid {...{ store, state, stack, measures, place }} most={state.shape === "heads" ? 132 : 64} />
            <p class="details number">
              <strong>{capital(named(place))}</strong>
              {measures ? `: ${inWords(measures, place)}` : " \u2013 measuring every head\u2026"}
            </p>
          </section>
        )}
        {(state.shape !== "heads" || !several) && (
          <section class="panel shape-panel" aria-label="Attention">
            {(state.shape === "matrix" || state.shape === "heads") && <Matrix {...common} {...{ store, state, one, other }} />}
            {(state.shape === "lines" || state.shape === "words") && (
              <Tokens {...common} shape={state.shape} {...{ one, other, selection }} />
            )}
            {state.shape === "layers" && (
              <Layers {...{ source, store, state, run, stack, place, words, root, selection, pin, setPin }} />
            )}
          </section>
        )}
      </div>
      {measured.refusal && <Fault refusal={measured.refusal} />}
    </div>
  );
}

/** The weight at the end of the colour scale: the largest of the heads shown. */
function largestOf(one: HeadTiles, other: HeadTiles | null, measures: Measures | null): number {
  const of = (tiles: HeadTiles): number => {
    const rows = measures?.thumbnails[tiles.place.layer]?.[tiles.place.head];
    return rows ? rows.reduce((most, row) => row.reduce((each, value) => Math.max(each, value), most), 0) : 0;
  };
  return Math.max(of(one), other ? of(other) : 0) || 1;
}

function Measured({ store, state, measures }: Pick<ViewProps, "store" | "state"> & { measures: Measures }) {
  const names = (Object.keys(MEASURES) as (keyof typeof MEASURES)[]).filter(
    (name) => name === "pictures" || measures[name] !== null,
  );
  return (
    <Choice
      label="What is shown of each head"
      chosen={names.includes(state.measure) ? state.measure : "pictures"}
      options={names.map((name) => ({
        name,
        title: MEASURES[name].title,
        ...(MEASURES[name].unit ? { hint: `Mean over queries, in ${MEASURES[name].unit}` } : {}),
      }))}
      choose={(measure) => store.set({ measure })}
    />
  );
}
