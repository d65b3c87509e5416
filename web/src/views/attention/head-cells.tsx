// A grid of all heads, layer by layer: pictures on one canvas below one button for each head.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { blank, screenDensity, scrollAcross, useWidth } from "../../measuring";
import type { Place } from "../../state";
import { usePaint, type Paint } from "./colours";
import { arrowOf } from "./selection";
import { samePlace } from "./stack";

/** Where a head is drawn: a square at (0, 0), with texts centred. */
export interface Ground {
  context: CanvasRenderingContext2D;
  side: number;
  paint: Paint;
}

export function drawFrame({ context, side, paint }: Ground): void {
  context.strokeStyle = paint.line;
  context.strokeRect(0.5, 0.5, side - 1, side - 1);
}

interface HeadCellsProps {
  stack: { layers: number; heads: number };
  label: string;
  role: "radiogroup" | "group";
  /** The head that is reached by the Tab key. */
  place: Place;
  /** The largest side of a picture, and the largest on a narrow screen. */
  most: number;
  narrow: number;
  /** The largest height of all layers, as far as pictures of the least side allow it. */
  tallest?: number;
  /** Another function draws all heads again. */
  draw: (ground: Ground, place: Place) => void;
  /** The attributes of a head's button. Its label is also its tooltip. */
  cell: (place: Place) => { "aria-label": string } & JSX.IntrinsicElements["button"] & Record<`data-${string}`, boolean>;
  /** Called by the arrow keys. */
  move: (place: Place) => void;
  choose: (place: Place, event: MouseEvent) => void;
}

/** The least side: with the gap, the least size of a target (WCAG 2.5.8). */
const LEAST = 20;
const GAP = 4;
const LABEL = 22;

/** The width of a panel that holds all heads of a layer in one row, if that is not too wide. */
export const panelWidth = (heads: number): number => Math.min(380, Math.max(268, heads * 44 + LABEL + 42));

export function HeadCells({ stack, label, role, place, most, narrow, tallest = Infinity, draw, cell, move, choose }: HeadCellsProps) {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(frame);
  const paint = usePaint(frame);
  const [across, down] = [(width - LABEL - 2) / stack.heads, tallest / stack.layers];
  const side = Math.max(LEAST, Math.min(width < 400 ? narrow : most, Math.floor(Math.min(across, down)) - GAP));
  const step = side + GAP;
  const size = { width: stack.heads * step, height: stack.layers * step };
  const density = screenDensity();
  useEffect(() => {
    if (!paint || width === 0) return;
    const context = blank(canvas.current, size.width, size.height, density);
    if (!context) return;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let layer = 0; layer < stack.layers; layer += 1) {
      for (let head = 0; head < stack.heads; head += 1) {
        context.save();
        context.translate(head * step + GAP / 2, layer * step + GAP / 2);
        draw({ context, side, paint }, { layer, head });
        context.restore();
      }
    }
  }, [draw, side, paint, stack.layers, stack.heads, width === 0, density]);
  // Where there are more heads than fit beside each other, the chosen one is in sight.
  useEffect(() => {
    const [scroller, chosen] = [frame.current, frame.current?.querySelector<HTMLElement>('[tabindex="0"]')];
    if (!scroller || !chosen) return;
    scrollAcross(scroller, chosen, LABEL);
  }, [place.layer, place.head, step, width === 0]);
  const keys = (event: KeyboardEvent) => {
    const by = arrowOf(event);
    if (!by) return;
    event.preventDefault();
    const held = (at: number, count: number) => Math.min(count - 1, Math.max(0, at));
    move({ layer: held(place.layer + by[0], stack.layers), head: held(place.head + by[1], stack.heads) });
    const list = event.currentTarget as HTMLElement;
    requestAnimationFrame(() => list.querySelector<HTMLElement>('[tabindex="0"]')?.focus());
  };
  return (
    <div class="head-grid" ref={frame}>
      {width > 0 && (
        <div class="heads" role={role} aria-label={label} onKeyDown={keys} style={{ width: `${size.width + LABEL}px` }}>
          <canvas ref={canvas} aria-hidden="true" style={{ width: `${size.width}px`, height: `${size.height}px`, left: `${LABEL}px` }} />
          <div class="columns number quiet" aria-hidden="true">
            {stack.heads > 1 && count(stack.heads).map((head) => <span style={{ width: `${step}px` }}>{head}</span>)}
          </div>
          {count(stack.layers).map((layer) => (
            <div class="layer" style={{ height: `${step}px` }}>
              <span class="number quiet" aria-hidden="true">
                {layer}
              </span>
              {count(stack.heads).map((head) => {
                const here = { layer, head };
                const attributes = cell(here);
                return (
                  <button
                    type="button"
                    title={attributes["aria-label"]}
                    tabIndex={samePlace(place, here) ? 0 : -1}
                    style={{ width: `${step}px`, height: `${step}px` }}
                    onClick={(event) => choose(here, event)}
                    {...attributes}
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
