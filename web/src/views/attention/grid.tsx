// A thumbnail of every head, layer by layer. Clicking or the arrow keys choose one.
import { useCallback } from "preact/hooks";
import { short } from "../../parts";
import type { Attention, Measures } from "../../source";
import type { Place, State, Store } from "../../state";
import { letterOn, share, stepOf, table, type Paint } from "./colours";
import { HeadCells, type Ground } from "./head-cells";
import { hatching } from "./paint";
import { named, samePlace, seen } from "./stack";

export const MEASURES = {
  pictures: { title: "Pictures", unit: "" },
  entropy: { title: "Entropy", unit: "bits" },
  distance: { title: "Distance", unit: "tokens" },
  sink: { title: "Sink", unit: "%" },
} as const;

interface GridProps {
  store: Store;
  state: State;
  stack: Attention;
  /** Null while they are awaited; heads can be chosen before. */
  measures: Measures | null;
  place: Place;
  /** The largest side of a thumbnail. */
  most: number;
}

/** The largest side on a narrow screen. */
const NARROW = 48;

export function HeadGrid({ store, state, stack, measures, place, most }: GridProps) {
  const chosen = !measures || measures[state.measure === "pictures" ? "entropy" : state.measure] === null ? "pictures" : state.measure;
  const draw = useCallback(
    ({ context, side, paint }: Ground, { layer, head }: Place) => {
      if (!measures || chosen === "pictures") drawHead({ context, side, paint }, stack, layer, measures?.thumbnails[layer]?.[head] ?? null);
      else figure(context, measures[chosen] ?? [], layer, head, side, paint, chosen === "sink");
    },
    [measures, chosen, stack],
  );
  const choose = (next: Place, event: MouseEvent) => {
    if (event.shiftKey) store.set({ versus: samePlace(state.versus, next) || samePlace(place, next) ? null : next }, true);
    else store.set({ ...next, ...(state.shape === "heads" ? { shape: "matrix" as const } : {}) }, true);
  };
  return (
    <HeadCells
      {...{ stack, place, draw, choose }}
      label="Head"
      role="radiogroup"
      most={most}
      narrow={state.shape === "heads" ? most : NARROW}
      move={(next) => store.set(next)}
      cell={(here) => ({
        role: "radio",
        "aria-checked": samePlace(place, here),
        "aria-label": measures ? `${named(here)}: ${inWords(measures, here)}` : named(here),
        "data-versus": samePlace(state.versus, here),
      })}
    />
  );
}

function empty(context: CanvasRenderingContext2D, side: number, paint: Paint): void {
  context.strokeStyle = paint.line;
  context.strokeRect(0.5, 0.5, side - 1, side - 1);
}

const isNumber = (value: number | null | undefined): value is number => typeof value === "number";

/** A head's measures in words. */
export function inWords(measures: Measures, { layer, head }: Place): string {
  const of = (values: (number | null)[][] | null) => values?.[layer]?.[head];
  if (of(measures.entropy) === null) return "weights that are no numbers";
  const [entropy, distance, sink] = [of(measures.entropy), of(measures.distance), of(measures.sink)];
  return [
    isNumber(entropy) && `entropy ${short(entropy)} bits`,
    isNumber(distance) && `distance ${short(distance)} tokens`,
    isNumber(sink) && `${short(100 * sink)} % to the sink`,
  ]
    .filter(Boolean)
    .join(", ");
}

/** Draw a head's thumbnail, or an empty square. */
export function drawHead({ context, side, paint }: Ground, stack: Attention, layer: number, rows: number[][] | null): void {
  if (!rows) return empty(context, side, paint);
  const { styles } = table("weights", paint.dark);
  const largest = rows.reduce((most, row) => row.reduce((each, value) => Math.max(each, value), most), 0);
  const height = side / rows.length;
  rows.forEach((row, at) => {
    const width = side / row.length;
    // The keys that the last and the first query of this part may attend to.
    const last = seen(stack, layer, Math.ceil(((at + 1) * stack.queries) / rows.length) - 1);
    const first = seen(stack, layer, Math.floor((at * stack.queries) / rows.length));
    row.forEach((value, column) => {
      const keys = [Math.floor((column * stack.keys) / row.length), ((column + 1) * stack.keys) / row.length];
      const hidden = (keys[0] ?? 0) >= last.end || (keys[1] ?? 0) <= first.first;
      context.fillStyle = hidden
        ? hatching(context, paint)
        : (styles[stepOf("weights", share(value, largest, true))] ?? paint.panel);
      context.fillRect(column * width, at * height, width + 0.5, height + 0.5);
    });
  });
  context.strokeStyle = paint.line;
  context.strokeRect(0.5, 0.5, side - 1, side - 1);
}

function figure(
  context: CanvasRenderingContext2D,
  values: (number | null)[][],
  layer: number,
  head: number,
  side: number,
  paint: Paint,
  shares: boolean,
): void {
  const value = values[layer]?.[head] ?? null;
  if (value === null) {
    empty(context, side, paint);
    return;
  }
  const largest = Math.max(0, ...values.flat().filter(isNumber));
  const ground = table("weights", paint.dark).styles[stepOf("weights", share(value, largest, false))] ?? paint.panel;
  context.fillStyle = ground;
  context.fillRect(0, 0, side, side);
  const text = shares ? (100 * value).toFixed(0) : value >= 9.95 ? value.toFixed(0) : value.toFixed(1);
  context.font = `${side >= 34 ? 12 : 10}px ${paint.mono}`;
  context.fillStyle = letterOn(ground);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, side / 2, side / 2);
  context.strokeStyle = paint.line;
  context.strokeRect(0.5, 0.5, side - 1, side - 1);
}
