// A zoomable heat map: its canvas, an overlay for the hovered cell, and its keyboard commands.
import { useEffect, useId, useMemo, useRef } from "preact/hooks";
import type { Signal } from "@preact/signals";
import { blank, drawing, screenDensity } from "../../measuring";
import { paintAxes, paintMarks, type Margins } from "./axes";
import type { Kind, Paint } from "./colours";
import { useGestures } from "./gestures";
import { Pictures, paintMatrix } from "./paint";
import type { Words } from "./stack";
import type { Cells } from "./tiles";
import { clamped, isWhole, whole, type Box, type Cell, type View } from "./viewport";

export interface Shared {
  /** The visible part; null: all of it. */
  view: Signal<View | null>;
  hover: Signal<Cell | null>;
}

interface MapProps {
  cells: Cells;
  words: Words;
  kind: Kind;
  largest: number;
  root: boolean;
  paint: Paint;
  shared: Shared;
  pin: number | null;
  /** Cells with a cross. */
  crossed?: Cell[];
  press: (cell: Cell) => void;
  release: () => boolean;
  /** What the Enter key does with a cell, in words. */
  does: string;
  box: Box;
  margins: Margins;
  /** What is visible, in words. */
  name: string;
}

export function CellMap(props: MapProps) {
  const { cells, words, kind, largest, root, paint, shared, pin, crossed, press, release, does, box, margins, name } = props;
  const help = useId();
  const frame = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null);
  const pictures = useMemo(() => new Pictures(), [cells]);
  const width = box.width + margins.left + 2;
  const height = box.height + margins.top + 2;
  const density = screenDensity();

  const ready = (canvas: HTMLCanvasElement | null): CanvasRenderingContext2D | null => {
    const context = blank(canvas, width, height, density);
    context?.translate(margins.left, margins.top);
    return context;
  };

  useEffect(() => {
    const owner = {};
    const draw = () => {
      const context = ready(base.current);
      if (!context) return;
      const view = clamped(shared.view.peek() ?? whole(box), box);
      const needed = paintMatrix(context, cells, pictures, view, box, { kind, largest, root, paint }, density);
      paintAxes(context, words, view, box, margins, paint);
      cells.want(owner, needed);
    };
    const stop = drawing(() => void [shared.view.value, cells.version.value], draw);
    return () => {
      stop();
      cells.want(owner, []);
    };
  }, [cells, pictures, words, box, margins, kind, largest, root, paint, density, shared]);

  useEffect(() => {
    const draw = () => {
      const context = ready(over.current);
      if (!context) return;
      const view = clamped(shared.view.peek() ?? whole(box), box);
      paintMarks(context, words, view, box, margins.letters, { hover: shared.hover.peek(), pin, crossed: crossed ?? [] }, paint);
    };
    const follow = () => {
      void shared.hover.value;
      const view = shared.view.value;
      // One finger scrolls the page unless the map can be panned.
      if (frame.current) frame.current.style.touchAction = view && !isWhole(view, box) ? "none" : "pan-y";
    };
    return drawing(follow, draw);
  }, [words, box, margins, pin, crossed, paint, density, shared]);

  const keys = useGestures(frame, {
    box,
    left: margins.left,
    top: margins.top,
    view: shared.view,
    hover: shared.hover,
    press,
    release,
  });
  const size = { width: `${width}px`, height: `${height}px` };
  return (
    <div
      ref={frame}
      class="cell-map"
      role="application"
      aria-roledescription="heat map"
      tabIndex={0}
      aria-label={name}
      aria-describedby={help}
      onKeyDown={keys}
      style={size}
      data-left={margins.left}
      data-top={margins.top}
    >
      <canvas ref={base} style={size} aria-hidden="true" />
      <canvas ref={over} style={size} aria-hidden="true" />
      <span id={help} class="hidden">
        Arrow keys go from cell to cell, with Shift they move the part that is seen. Plus and minus zoom, Home shows all,
        Enter {does}, Escape lets go.
      </span>
    </div>
  );
}
