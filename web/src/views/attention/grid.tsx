// A thumbnail of every head, layer by layer. Clicking or the arrow keys choose one.
import { useCallback } from "preact/hooks";
import { short } from "../../parts";
import type { Attention, Detected, Measures } from "../../source";
import type { Place, State, Store } from "../../state";
import { letterOn, share, styleOf } from "./colours";
import { HeadCells, drawFrame, type Ground } from "./head-cells";
import { hatching } from "./paint";
import { named, samePlace, seen } from "./stack";

/** What the grid may show: the unit, and the letter that marks heads of a kind. Most heads read the first token: no mark. */
export const MEASURES = {
  pictures: { title: "Pictures", unit: "" },
  entropy: { title: "Entropy", unit: "bits" },
  distance: { title: "Distance", unit: "tokens" },
  sink: { title: "Sink", unit: "%" },
  on_one: { title: "On one token", unit: "%" },
  previous: { title: "Previous token", unit: "%", mark: "P" },
  first: { title: "First token", unit: "%", mark: "" },
  duplicate: { title: "Same token before", unit: "%", mark: "D" },
  induction: { title: "Induction", unit: "%", mark: "I" },
} as const satisfies Record<State["measure"], { title: string; unit: string; mark?: string }>;

export const DETECTED = ["previous", "first", "duplicate", "induction"] as const;
/** The mean weight from which the one token that gets it is named. */
export const RESTING = 0.5;
/** The mean weight from which a head is called by what it looks for. */
const MARKED = 0.4;

/** What a head is called; null: none of these. */
export function labelOf(detected: Detected | null, { layer, head }: Place): { name: (typeof DETECTED)[number]; score: number } | null {
  if (!detected) return null;
  const scores = DETECTED.map((name) => ({ name, score: detected[name][layer]?.[head] ?? 0 }));
  const best = scores.reduce((most, each) => (each.score > most.score ? each : most));
  return best.score < MARKED ? null : best;
}

/** The values of a measure; null while they are awaited, and where there are none. */
export function valuesOf(name: State["measure"], measures: Measures | null, detected: Detected | null): (number | null)[][] | null {
  if (name === "pictures") return null;
  if (name === "entropy" || name === "distance" || name === "sink" || name === "on_one") return measures?.[name] ?? null;
  return detected?.[name] ?? null;
}

/** A value in the unit of its measure. */
export const valued = (name: State["measure"], value: number): string =>
  MEASURES[name].unit === "%" ? `${(100 * value).toFixed(0)} %` : short(value);

interface GridProps {
  store: Store;
  state: State;
  stack: Attention;
  /** Null while they are awaited; heads can be chosen before. */
  measures: Measures | null;
  /** Null while it is awaited, and for what is no decoder. */
  detected: Detected | null;
  place: Place;
  /** The largest side of a thumbnail. */
  most: number;
}

/** The largest side on a narrow screen. */
const NARROW = 48;

export function HeadGrid({ store, state, stack, measures, detected, place, most }: GridProps) {
  const { measure } = state;
  const values = valuesOf(measure, measures, detected);
  const draw = useCallback(
    (ground: Ground, { layer, head }: Place) => {
      if (values) return drawFigure(ground, values, layer, head, MEASURES[measure].unit === "%");
      drawHead(ground, stack, layer, measures?.thumbnails[layer]?.[head] ?? null);
      drawLabel(ground, labelOf(detected, { layer, head }));
    },
    [measures, values, detected, measure, stack],
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
        "aria-label": measures ? `${named(here)}: ${inWords(measures, detected, here)}` : named(here),
        "data-versus": samePlace(state.versus, here),
      })}
    />
  );
}

const isNumber = (value: number | null | undefined): value is number => typeof value === "number";

/** A head's measures in words. */
export function inWords(measures: Measures, detected: Detected | null, { layer, head }: Place): string {
  const of = (values: (number | null)[][] | null) => values?.[layer]?.[head];
  if (of(measures.entropy) === null) return "weights that are no numbers";
  const label = labelOf(detected, { layer, head });
  const [entropy, distance, sink, one] = [of(measures.entropy), of(measures.distance), of(measures.sink), of(measures.on_one)];
  const told = [
    isNumber(entropy) && `entropy ${short(entropy)} bits`,
    isNumber(distance) && `distance ${short(distance)} tokens`,
    isNumber(sink) && `${short(100 * sink)} % to the sink`,
    isNumber(one) && one >= RESTING && `${valued("on_one", one)} on one token`,
  ];
  // Its score is of other texts than the one that is shown.
  const called = label && `on random tokens, read twice: ${MEASURES[label.name].title.toLowerCase()} ${valued(label.name, label.score)}`;
  return [told.filter(Boolean).join(", "), called].filter(Boolean).join("; ");
}

/** Draw the letter of what a head is called. */
export function drawLabel({ context, side, paint }: Ground, label: ReturnType<typeof labelOf>): void {
  if (!label || label.name === "first" || side < 24) return;
  context.fillStyle = paint.second;
  context.fillRect(side - 13, 0, 13, 14);
  context.font = `bold 11px ${paint.mono}`;
  context.fillStyle = paint.panel;
  context.fillText(MEASURES[label.name].mark, side - 6.5, 7.5);
}

/** Draw a head's thumbnail, or an empty square. */
export function drawHead(place: Ground, stack: Attention, layer: number, rows: number[][] | null): void {
  if (!rows) return drawFrame(place);
  const { context, side, paint } = place;
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
      context.fillStyle = hidden ? hatching(context, paint) : styleOf("weights", paint.dark, share(value, largest, true));
      context.fillRect(column * width, at * height, width + 0.5, height + 0.5);
    });
  });
  drawFrame(place);
}

function drawFigure(place: Ground, values: (number | null)[][], layer: number, head: number, shares: boolean): void {
  const value = values[layer]?.[head] ?? null;
  if (value === null) return drawFrame(place);
  const { context, side, paint } = place;
  const largest = Math.max(0, ...values.flat().filter(isNumber));
  const ground = styleOf("weights", paint.dark, share(value, largest, false));
  context.fillStyle = ground;
  context.fillRect(0, 0, side, side);
  const text = shares ? (100 * value).toFixed(0) : value >= 9.95 ? value.toFixed(0) : value.toFixed(1);
  context.font = `${side >= 34 ? 12 : 10}px ${paint.mono}`;
  context.fillStyle = letterOn(ground);
  context.fillText(text, side / 2, side / 2);
  drawFrame(place);
}
