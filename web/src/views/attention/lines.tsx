// Two columns of words with lines between them. A line's width and darkness show its weight.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { effect, signal } from "@preact/signals";
import { blank, drawing, screenDensity, useWidth } from "../../measuring";
import { TILE } from "../../source";
import { Column, ROW } from "./column";
import { letterOn, share, styleOf, usePaint, type Paint } from "./colours";
import { selectionOf, type ShapeProps } from "./selection";
import { useRow } from "./reading";
import { roomAbove } from "./shared";
import { alike, seen, sees } from "./stack";
import type { HeadTiles, TileId } from "./tiles";

/** Weights below this share of the largest one have no line. */
const FAINTEST = 0.03;

export function Lines({ tiles, words, largest, root, selection, pin, pinnedKey, setPin }: ShapeProps) {
  void tiles.version.value;
  const frame = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null);
  const between = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const across = useWidth(between);
  const { stack } = tiles;
  const longest = Math.max(stack.queries, stack.keys) * ROW;
  const height = Math.min(longest, roomAbove(320, 680));
  const together = alike(stack);
  const queryScroll = useMemo(() => signal(0), [tiles.stack]);
  const keyScroll = useMemo(() => (together ? queryScroll : signal(0)), [tiles.stack, together]);
  const now = selectionOf(selection.value, pin, pinnedKey);
  const row = useRow(tiles, now?.side === "query" ? now.place : null);
  const reading = now?.side === "key" ? tiles.column(now.place) : null;
  // Scroll to a pinned query at first, and when it is pinned from elsewhere.
  useEffect(() => {
    if (pin === null || height === 0) return;
    const y = pin * ROW;
    if (y >= queryScroll.peek() && y + ROW <= queryScroll.peek() + height) return;
    queryScroll.value = Math.max(0, Math.min(stack.queries * ROW - height, y - height / 2));
  }, [pin, queryScroll, height]);
  const density = screenDensity();

  useEffect(() => {
    const owner = {};
    const stop = effect(() => {
      const [rows, columns] = [inSight(queryScroll.value, height, stack.queries), inSight(keyScroll.value, height, stack.keys)];
      tiles.want(owner, covering(rows, columns));
    });
    return () => {
      stop();
      tiles.want(owner, []);
    };
  }, [tiles, queryScroll, keyScroll, height]);

  useEffect(() => {
    const draw = () => {
      const context = blank(base.current, across, height, density);
      if (context && paint) allLines(context, tiles, queryScroll.peek(), keyScroll.peek(), across, height, largest, root, paint);
    };
    return drawing(() => void [queryScroll.value, keyScroll.value, tiles.version.value], draw);
  }, [tiles, queryScroll, keyScroll, across, height, largest, root, paint, density]);

  useEffect(() => {
    const draw = () => {
      const context = blank(over.current, across, height, density);
      if (!context || !paint || !now) return;
      const weights = now.side === "query" ? row : reading;
      if (!weights) return;
      const style = now.side === "query" ? paint.accent : paint.second;
      weights.forEach((weight, place) => {
        const [query, key] = now.side === "query" ? [now.place, place] : [place, now.place];
        const y = [yOf(query, queryScroll.peek()), yOf(key, keyScroll.peek())] as const;
        line(context, y[0], y[1], across, share(weight, largest, root), style, 1);
      });
    };
    return drawing(() => void [queryScroll.value, keyScroll.value], draw);
  }, [row, reading, now?.side, now?.place, queryScroll, keyScroll, across, height, largest, root, paint, density]);

  const coloured = (weights: Float32Array | null) => (place: number) => {
    const weight = weights?.[place] ?? 0;
    if (!paint || weight < FAINTEST * largest * (root ? 0.1 : 1)) return null;
    const background = styleOf("weights", paint.dark, share(weight, largest, root));
    return { background, color: letterOn(background) };
  };
  const shut = (key: number): boolean => now?.side === "query" && !sees(stack, tiles.layer, now.place, key);
  const closed = (query: number): boolean => now?.side === "key" && !sees(stack, tiles.layer, query, now.place);
  return (
    <div class="lines" ref={frame} data-looking={now !== null}>
      <h3 class="column-title">{stack.queries_are === stack.keys_are ? "Reads" : "Decoder reads"}</h3>
      <span />
      <h3 class="column-title">{stack.queries_are === stack.keys_are ? "Is read" : "Encoder is read"}</h3>
      <Column
        words={words.queries}
        label="Queries: tokens that read"
        side="query"
        scroll={queryScroll}
        height={height}
        active={now?.side === "query" ? now.place : null}
        pin={pin}
        ground={coloured(reading)}
        quiet={closed}
        look={(place) => (selection.value = place === null ? null : { side: "query", place })}
        choose={(place) => setPin(place === pin ? null : place)}
      />
      <div class="between" ref={between} style={{ height: `${height}px` }}>
        <canvas ref={base} class="lines-all" aria-hidden="true" style={{ width: `${across}px`, height: `${height}px` }} />
        <canvas ref={over} aria-hidden="true" style={{ width: `${across}px`, height: `${height}px` }} />
      </div>
      <Column
        words={words.keys}
        label="Keys: tokens that are read"
        side="key"
        scroll={keyScroll}
        height={height}
        active={now?.side === "key" ? now.place : null}
        pin={pinnedKey}
        ground={coloured(row)}
        quiet={shut}
        look={(place) => (selection.value = place === null ? null : { side: "key", place })}
        choose={(place) => setPin(place === pinnedKey ? null : place, "key")}
      />
    </div>
  );
}

const yOf = (place: number, scroll: number): number => (place + 0.5) * ROW - scroll;

function inSight(scroll: number, height: number, count: number): [number, number] {
  return [Math.max(0, Math.floor(scroll / ROW)), Math.min(count, Math.ceil((scroll + height) / ROW))];
}

function covering([top, bottom]: [number, number], [left, right]: [number, number]): TileId[] {
  const ids: TileId[] = [];
  for (let row = Math.floor(top / TILE); row * TILE < bottom; row += 1) {
    for (let column = Math.floor(left / TILE); column * TILE < right; column += 1) ids.push({ level: 0, row, column });
  }
  return ids;
}

function allLines(
  context: CanvasRenderingContext2D,
  tiles: HeadTiles,
  queryScroll: number,
  keyScroll: number,
  width: number,
  height: number,
  largest: number,
  root: boolean,
  paint: Paint,
): void {
  const { stack } = tiles;
  const [top, bottom] = inSight(queryScroll, height, stack.queries);
  const [left, right] = inSight(keyScroll, height, stack.keys);
  for (let query = top; query < bottom; query += 1) {
    const { first, end } = seen(stack, tiles.layer, query);
    for (let key = Math.max(first, left); key < Math.min(end, right); key += 1) {
      const weight = tiles.weight(query, key);
      if (weight === null) continue;
      line(context, yOf(query, queryScroll), yOf(key, keyScroll), width, share(weight, largest, root), paint.accent, 0.8);
    }
  }
}

function line(
  context: CanvasRenderingContext2D,
  from: number,
  to: number,
  width: number,
  part: number,
  style: string,
  strength: number,
): void {
  if (part < FAINTEST) return;
  context.globalAlpha = strength * (0.12 + 0.88 * part);
  context.strokeStyle = style;
  context.lineWidth = 0.75 + 5 * part;
  context.beginPath();
  context.moveTo(0, from);
  context.bezierCurveTo(width * 0.4, from, width * 0.6, to, width, to);
  context.stroke();
  context.globalAlpha = 1;
}
