// One query through all layers: a row for each layer, a column for each key.
import { useEffect, useRef } from "preact/hooks";
import { screenDensity } from "../../measuring";
import { FONT_SIZE, fontOf, hatching } from "./paint";
import { share, styleOf, type Paint } from "./colours";
import { seen, shown } from "./stack";
import type { Attention } from "../../source";

export interface Spot {
  layer: number;
  key: number;
}

interface StripProps {
  /** [layer][key]. */
  rows: Float32Array[];
  stack: Attention;
  query: number;
  words: string[];
  width: number;
  /** The height of a layer's row. */
  high: number;
  largest: number;
  root: boolean;
  paint: Paint;
  name: string;
  /** Whether words are shown above. */
  labelled: boolean;
  /** The marked layer. */
  chosen: number | null;
  look: (spot: Spot | null) => void;
}

const WORD = 13;
/** The width of the layers' numbers, and the least height of a row with one. */
export const NUMBERS = 24;
const NUMBERED = 12;

/** The height for words above. */
export const titleRoom = (words: string[], cell: number): number =>
  cell >= WORD ? Math.ceil(Math.max(...words.map((word) => shown(word, 12).length)) * FONT_SIZE * 0.61) + 8 : 20;

export function Strip(props: StripProps) {
  const { rows, stack, query, words, width, high, largest, root, paint, name, labelled, chosen, look } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const cell = (width - NUMBERS) / stack.keys;
  const top = labelled ? titleRoom(words, cell) : 0;
  const height = top + rows.length * high;
  const density = screenDensity();
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, width, height);
    numbers(context, rows.length, top, high, paint);
    context.translate(NUMBERS, 0);
    if (labelled) titles(context, words, cell, top, paint);
    rows.forEach((row, layer) => {
      const y = top + layer * high;
      context.fillStyle = hatching(context, paint);
      context.fillRect(0, y, width - NUMBERS, high - 1);
      const { first, end } = seen(stack, layer, query);
      context.fillStyle = paint.panel;
      context.fillRect(first * cell, y, (end - first) * cell, high - 1);
      // A pixel shows the largest weight of its keys.
      const points = Math.max(1, Math.ceil((end - first) * Math.min(1, cell * density)));
      const each = (end - first) / points;
      for (let at = 0; at < points; at += 1) {
        const from = first + Math.floor(at * each);
        const to = Math.max(from + 1, first + Math.floor((at + 1) * each));
        let most = 0;
        for (let key = from; key < to; key += 1) most = Math.max(most, row[key] ?? 0);
        context.fillStyle = styleOf("weights", paint.dark, share(most, largest, root));
        const gap = cell >= 6 ? 1 : 0;
        context.fillRect(from * cell, y, Math.max(1 / density, (to - from) * cell - gap), high - 1);
      }
    });
    if (chosen !== null) {
      context.strokeStyle = paint.second;
      context.lineWidth = 2;
      context.strokeRect(1, top + chosen * high, width - NUMBERS - 2, high - 1);
    }
  }, [rows, stack, query, words, width, high, largest, root, paint, labelled, chosen, density]);
  const point = (event: PointerEvent) => {
    const frame = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const layer = Math.floor((event.clientY - frame.top - top) / high);
    const key = Math.floor((event.clientX - frame.left - NUMBERS) / cell);
    look(layer >= 0 && layer < rows.length && key >= 0 && key < stack.keys ? { layer, key } : null);
  };
  return (
    <canvas
      ref={canvas}
      role="img"
      aria-label={name}
      width={Math.round(width * density)}
      height={Math.round(height * density)}
      style={{ width: `${width}px`, height: `${height}px` }}
      onPointerMove={point}
      onPointerDown={point}
      onPointerLeave={(event) => event.pointerType === "mouse" && look(null)}
    />
  );
}

/** The number of each layer, or of every fifth where rows are low. */
function numbers(context: CanvasRenderingContext2D, layers: number, top: number, high: number, paint: Paint): void {
  context.font = fontOf(paint);
  context.fillStyle = paint.quiet;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let layer = 0; layer < layers; layer += high < NUMBERED ? 5 : 1) {
    context.fillText(String(layer), NUMBERS - 6, top + (layer + 0.5) * high);
  }
  context.textAlign = "left";
}

function titles(context: CanvasRenderingContext2D, words: string[], cell: number, top: number, paint: Paint): void {
  context.font = fontOf(paint);
  context.fillStyle = paint.quiet;
  context.textBaseline = "middle";
  if (cell < WORD) {
    context.fillText("0", 0, top - 9);
    context.textAlign = "right";
    context.fillText(String(words.length - 1), cell * words.length, top - 9);
    context.textAlign = "left";
    return;
  }
  words.forEach((word, key) => {
    context.save();
    context.translate((key + 0.5) * cell, top - 5);
    context.rotate(-Math.PI / 2);
    context.fillText(shown(word, 12), 0, 0);
    context.restore();
  });
}
