// Rows of weights that components request, and how they are described.
import { useEffect, useState } from "preact/hooks";
import type { Signal } from "@preact/signals";
import { Bar, percent, short } from "../../parts";
import type { Place } from "../../state";
import { most, named, sees, shown, sinkShare, type Words } from "./stack";
import type { HeadTiles } from "./tiles";
import type { Cell } from "./viewport";

/** Milliseconds that a query must be hovered before its weights are requested. */
const REST_MS = 60;

/** A query's weights; null until they arrive. */
export function useRow(tiles: HeadTiles | null, query: number | null): Float32Array | null {
  void tiles?.version.value;
  const row = tiles && query !== null ? tiles.row(query, false) : null;
  const missing = tiles !== null && query !== null && row === null && !tiles.refusesRow(query);
  useEffect(() => {
    if (!missing) return;
    const timer = setTimeout(() => tiles.row(query), REST_MS);
    return () => clearTimeout(timer);
  }, [tiles, query, missing]);
  return row;
}

interface CellReadoutProps {
  hover: Signal<Cell | null>;
  pin: number | null;
  one: HeadTiles;
  other: HeadTiles | null;
  /** What the weights of the two are called. */
  said?: [string, string];
  words: Words;
  layers: [number, number];
}

/** The hovered cell's value and words, as a live region for screen readers. */
export function CellReadout({ hover, pin, one, other, said, words, layers }: CellReadoutProps) {
  const cell = hover.value;
  const query = cell?.query ?? null;
  const row = useRow(one, query);
  const beside = useRow(other, query);
  const value = cell ? (row?.[cell.key] ?? one.weight(cell.query, cell.key)) : null;
  const second = cell && other ? (beside?.[cell.key] ?? other.weight(cell.query, cell.key)) : null;
  const hidden = cell && !layers.some((layer) => sees(one.stack, layer, cell.query, cell.key));
  return (
    <output class="readout" aria-live="polite">
      {!cell && (pin === null ? (
          "Point at a cell, or go to it with the arrow keys."
        ) : (
          <span>
            Pinned query: <Word text={words.queries[pin] ?? ""} place={pin} />
          </span>
        ))}
      {cell && (
        <>
          <span>
            <Word text={words.queries[cell.query] ?? ""} place={cell.query} /> <span class="verb">{one.passed ? "gets from" : "reads"}</span>{" "}
            <Word text={words.keys[cell.key] ?? ""} place={cell.key} />
          </span>
          <strong class="number">
            {hidden && "masked"}
            {!hidden && value === null && "\u2026"}
            {!hidden && value !== null && !other && short(value)}
            {!hidden && value !== null && other && second === null && "\u2026"}
            {!hidden && value !== null && second !== null && (
              <>
                {said ? `${short(value)} ${said[0]}, ${short(second)} ${said[1]}` : `${short(value)} and ${short(second)}`}, difference{" "}
                {signed(value - second)}
              </>
            )}
          </strong>
        </>
      )}
    </output>
  );
}

export const signed = (value: number): string => (value > 0 ? `+${short(value)}` : short(value));

export function Word({ text, place }: { text: string; place?: number }) {
  return (
    <span class="token">
      {shown(text, 24)}
      {place !== undefined && <sub>{place}</sub>}
    </span>
  );
}

interface ReadsProps {
  tiles: HeadTiles;
  query: number | null;
  words: Words;
  /** The head, where there are several. */
  place?: Place;
  count?: number;
}

/** The keys that a query reads most, and the sink's share. */
export function Reads({ tiles, query, words, place, count = 6 }: ReadsProps) {
  const row = useRow(tiles, query);
  const [last, setLast] = useState<{ row: Float32Array; query: number } | null>(null);
  useEffect(() => {
    if (row && query !== null) setLast({ row, query });
  }, [row, query]);
  if (query === null) return null;
  // The previous row stays while the next is awaited, so that nothing jumps.
  const shownRow = row ?? (last && last.row.length === tiles.stack.keys ? last.row : null);
  const best = shownRow ? most(shownRow, count) : [];
  const largest = best[0]?.weight ?? 1;
  return (
    <section class="reads" data-busy={row === null && tiles.busy} aria-label={place ? `in ${named(place)}` : "What the query reads most"}>
      <h3>
        <Word text={words.queries[query] ?? ""} place={query} /> {place ? `in ${named(place)}` : tiles.passed ? "gets most from" : "reads most"}
      </h3>
      <ol>
        {best.map(({ key, weight }) => (
          <li>
            <Word text={words.keys[key] ?? ""} place={key} />
            <Bar share={weight / largest} />
            <span class="number">{percent(weight)}</span>
          </li>
        ))}
        {shownRow && best.length === 0 && <li class="quiet">nothing</li>}
      </ol>
      {shownRow && tiles.stack.sinks && !tiles.passed && (
        <p class="sink">
          <span>Goes to the sink</span> <span class="number">{percent(sinkShare(shownRow))}</span>
        </p>
      )}
    </section>
  );
}
