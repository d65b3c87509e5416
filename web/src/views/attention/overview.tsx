// The whole matrix as a thumbnail, with a frame around the visible part.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { drawing, screenDensity } from "../../measuring";
import type { Paint } from "./colours";
import type { Shared } from "./map";
import { Pictures, paintMatrix } from "./paint";
import type { HeadTiles } from "./tiles";
import { boxFor, cellOf, clamped, isWhole, whole, type Box } from "./viewport";

interface OverviewProps {
  tiles: HeadTiles;
  /** The box of the main map. */
  box: Box;
  largest: number;
  root: boolean;
  paint: Paint;
  shared: Shared;
}

const SIDE = 132;

export function Overview({ tiles, box, largest, root, paint, shared }: OverviewProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const pictures = useMemo(() => new Pictures(), [tiles]);
  const { queries, keys } = tiles.stack;
  const small = useMemo(() => boxFor(queries, keys, { width: SIDE, height: SIDE }), [queries, keys]);
  const density = screenDensity();
  useEffect(() => {
    const owner = {};
    const draw = () => {
      const context = canvas.current?.getContext("2d");
      if (!context || !canvas.current) return;
      context.setTransform(density, 0, 0, density, 0, 0);
      context.clearRect(0, 0, small.width, small.height);
      const look = { kind: "weights" as const, largest, root, paint };
      tiles.want(owner, paintMatrix(context, tiles, pictures, whole(small), small, look, density));
      const view = clamped(shared.view.peek() ?? whole(box), box);
      if (isWhole(view, box)) return;
      const cell = cellOf(view, box);
      const across = small.width / keys;
      const down = small.height / queries;
      const wide = Math.max(6, (box.width / cell.width) * across);
      const high = Math.max(6, (box.height / cell.height) * down);
      const x = Math.min(small.width - wide, view.key * across);
      const y = Math.min(small.height - high, view.query * down);
      context.lineWidth = 3;
      context.strokeStyle = paint.panel;
      context.strokeRect(x, y, wide, high);
      context.lineWidth = 1.5;
      context.strokeStyle = paint.second;
      context.strokeRect(x, y, wide, high);
    };
    const stop = drawing(() => void [shared.view.value, tiles.version.value], draw);
    return () => {
      stop();
      tiles.want(owner, []);
    };
  }, [tiles, pictures, box, small, largest, root, paint, shared, density]);

  const go = (event: PointerEvent) => {
    if (event.type === "pointermove" && event.buttons === 0) return;
    const place = canvas.current;
    if (!place) return;
    if (event.type === "pointerdown") place.setPointerCapture(event.pointerId);
    const frame = place.getBoundingClientRect();
    const view = shared.view.value ?? whole(box);
    const cell = cellOf(view, box);
    const key = ((event.clientX - frame.left) / small.width) * keys - box.width / cell.width / 2;
    const query = ((event.clientY - frame.top) / small.height) * queries - box.height / cell.height / 2;
    shared.view.value = clamped({ ...view, key, query }, box);
  };
  return (
    <canvas
      ref={canvas}
      class="overview"
      role="img"
      aria-label="The whole matrix; a frame shows the visible part. Drag it, or use the map's keys."
      width={Math.round(small.width * density)}
      height={Math.round(small.height * density)}
      style={{ width: `${small.width}px`, height: `${small.height}px` }}
      onPointerDown={go}
      onPointerMove={go}
    />
  );
}
