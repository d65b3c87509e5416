// The whole text as a thumbnail: first choices in all layers, the visible part, and the followed token.
import { useEffect, useRef } from "preact/hooks";
import { blank, coloursIn, followColours, screenDensity, useWidth } from "../../measuring";
import type { Experts } from "../../source";
import { COLOURS } from "./names";

interface OverviewProps {
  experts: Experts;
  count: number;
  token: number;
  /** The visible part, in tokens. */
  from: number;
  to: number;
  go: (middle: number) => void;
}

const LINE = 7;

/** For pointers, a substitute for the strip's scroll bar. Keyboards scroll the strip itself. */
export function Overview({ experts, count, token, from, to, go }: OverviewProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(canvas);
  const density = screenDensity();
  const height = experts.layers.length * LINE;
  useEffect(() => {
    const place = canvas.current;
    if (!place || width === 0) return;
    const again = () => draw(place, experts, count, width, height, density);
    again();
    return followColours(place, again);
  }, [experts, count, width, height, density]);
  const move = (event: PointerEvent) => {
    const place = event.currentTarget as HTMLElement;
    const box = place.getBoundingClientRect();
    go(((event.clientX - box.left) / box.width) * count);
  };
  return (
    <div
      class="overview"
      aria-hidden="true"
      style={{ height: `${height}px` }}
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        move(event);
      }}
      onPointerMove={(event) => {
        if (event.currentTarget.hasPointerCapture(event.pointerId)) move(event);
      }}
    >
      <canvas ref={canvas} style={{ height: `${height}px` }} />
      <span class="seen" style={{ left: `${(100 * from) / count}%`, width: `${(100 * (to - from)) / count}%` }} />
      <span class="here" style={{ left: `${(100 * (token + 0.5)) / count}%` }} />
    </div>
  );
}

const NAMES = Array.from({ length: COLOURS }, (_, at) => `expert-${at}`);

function draw(canvas: HTMLCanvasElement, experts: Experts, count: number, width: number, height: number, density: number): void {
  const pen = blank(canvas, width, height, density);
  if (!pen || !canvas.parentElement) return;
  const colours = coloursIn(canvas.parentElement, NAMES);
  // One column per screen pixel.
  pen.setTransform(1, 0, 0, 1, 0, 0);
  const line = canvas.height / experts.layers.length;
  for (let x = 0; x < canvas.width; x++) {
    const token = Math.min(count - 1, Math.floor(((x + 0.5) * count) / canvas.width));
    experts.layers.forEach((layer, at) => {
      pen.fillStyle = colours[(layer.choices[token]?.[0] ?? 0) % COLOURS] ?? "gray";
      pen.fillRect(x, Math.round(at * line), 1, Math.round(line) - density);
    });
  }
}
