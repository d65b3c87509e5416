// A thumbnail of every head, layer by layer. Clicking or the arrow keys choose one.
import { useEffect, useRef } from "preact/hooks";
import { screenDensity, useWidth } from "../../measuring";
import { short } from "../../parts";
import type { Attention, Measures } from "../../source";
import type { Place, State, Store } from "../../state";
import { letterOn, share, stepOf, table, usePaint, type Paint } from "./colours";
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

const LEAST = 20;
const GAP = 4;
/** The largest side on a narrow screen. */
const NARROW = 48;
const LABEL = 22;

/** The width of a panel that holds all heads of a layer in one row, if that is not too wide. */
export const panelWidth = (heads: number): number => Math.min(380, Math.max(268, heads * 44 + LABEL + 42));

export function HeadGrid({ store, state, stack, measures, place, most }: GridProps) {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(frame);
  const paint = usePaint(frame);
  const side = Math.max(LEAST, Math.min(width < 400 && state.shape !== "heads" ? Math.min(most, NARROW) : most, Math.floor((width - LABEL - 2) / stack.heads) - GAP));
  const step = side + GAP;
  const chosen = !measures || measures[state.measure === "pictures" ? "entropy" : state.measure] === null ? "pictures" : state.measure;
  const size = { width: stack.heads * step, height: stack.layers * step };
  const density = screenDensity();
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context || !paint || width === 0) return;
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    for (let layer = 0; layer < stack.layers; layer += 1) {
      for (let head = 0; head < stack.heads; head += 1) {
        context.save();
        context.translate(head * step + GAP / 2, layer * step + GAP / 2);
        if (!measures) empty(context, side, paint);
        else if (chosen === "pictures") picture(context, stack, layer, measures.thumbnails[layer]?.[head] ?? [], side, paint);
        else figure(context, measures[chosen] ?? [], layer, head, side, paint, chosen === "sink");
        context.restore();
      }
    }
  }, [measures, chosen, side, paint, stack, width === 0, density]);
  const keys = (event: KeyboardEvent) => {
    const steps: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    };
    const by = steps[event.key];
    if (!by) return;
    event.preventDefault();
    const held = (at: number, count: number) => Math.min(count - 1, Math.max(0, at));
    const next = { layer: held(place.layer + by[0], stack.layers), head: held(place.head + by[1], stack.heads) };
    store.set(next);
    const list = event.currentTarget as HTMLElement;
    requestAnimationFrame(() => list.querySelector<HTMLElement>('[aria-checked="true"]')?.focus());
  };
  const choose = (event: MouseEvent, next: Place) => {
    if (event.shiftKey) store.set({ versus: samePlace(state.versus, next) || samePlace(place, next) ? null : next }, true);
    else store.set({ ...next, ...(state.shape === "heads" ? { shape: "matrix" as const } : {}) }, true);
  };
  return (
    <div class="head-grid" ref={frame}>
      {width > 0 && (
        <div class="heads" role="radiogroup" aria-label="Head" onKeyDown={keys} style={{ width: `${size.width + LABEL}px` }}>
          <canvas
            ref={canvas}
            aria-hidden="true"
            width={Math.round(size.width * density)}
            height={Math.round(size.height * density)}
            style={{ width: `${size.width}px`, height: `${size.height}px`, left: `${LABEL}px` }}
          />
          {count(stack.layers).map((layer) => (
            <div class="layer" style={{ height: `${step}px` }}>
              <span class="number quiet" aria-hidden="true">
                {layer}
              </span>
              {count(stack.heads).map((head) => {
                const here = { layer, head };
                const about = measures ? `${named(here)}: ${inWords(measures, here)}` : named(here);
                return (
                  <button
                    type="button"
                    role="radio"
                    aria-checked={samePlace(place, here)}
                    aria-label={about}
                    title={about}
                    data-versus={samePlace(state.versus, here)}
                    tabIndex={samePlace(place, here) ? 0 : -1}
                    style={{ width: `${step}px`, height: `${step}px` }}
                    onClick={(event) => choose(event, here)}
                  />
                );
              })}
            </div>
          ))}
        </div>
      )}
    </div>
  );
}

const count = (size: number): number[] => Array.from({ length: size }, (_, at) => at);

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

function picture(
  context: CanvasRenderingContext2D,
  stack: Attention,
  layer: number,
  rows: number[][],
  side: number,
  paint: Paint,
): void {
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
