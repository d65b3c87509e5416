// A table of coloured cells, one of which is a tab stop: rows are layers, the last one above, columns are positions.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { scrollAcross } from "../../measuring";
import { letterOn } from "../attention/colours";
import { arrowOf } from "../attention/selection";

interface CellTableProps {
  label: string;
  /** The names of the rows. */
  rows: string[];
  columns: number;
  /** Row and column of the cell that is the first tab stop. */
  first: [row: number, column: number];
  /** `own`: whether it is scrolled into sight, when one of `seen` changes. */
  cell: (row: number, column: number) => { text: string; about: string; ground: string; own: boolean; target?: boolean };
  seen: unknown[];
  choose: (row: number, column: number) => void;
  /** The rows of the foot. */
  children: ComponentChildren;
}

/** The width of the names of the rows, which stay at the left. */
const NAMES = 100;

export function CellTable({ label, rows, columns, first, cell, seen, choose, children }: CellTableProps) {
  const [at, setAt] = useState(first);
  const frame = useRef<HTMLDivElement>(null);
  const held = (value: number, count: number) => Math.min(count - 1, Math.max(0, value));
  const [atRow, atColumn] = [held(at[0], rows.length), held(at[1], columns)];
  const move = (event: KeyboardEvent) => {
    const by = arrowOf(event);
    if (!by) return;
    event.preventDefault();
    setAt([held(atRow - by[0], rows.length), held(atColumn + by[1], columns)]);
    requestAnimationFrame(() => frame.current?.querySelector<HTMLElement>('td [tabindex="0"]')?.focus());
  };
  useEffect(() => scrollAcross(frame.current, frame.current?.querySelector<HTMLElement>("td[data-own=true]") ?? null, NAMES), seen);
  return (
    <div class="lens-scroll" ref={frame} onKeyDown={move}>
      <table aria-label={label}>
        <tbody>
          {rows.map((name, row) => (
            <tr>
              <th scope="row">{name}</th>
              {Array.from({ length: columns }, (_, column) => {
                const { text, about, ground, own, target } = cell(row, column);
                return (
                  <td data-own={own}>
                    <button
                      type="button"
                      aria-label={about}
                      title={about}
                      tabIndex={row === atRow && column === atColumn ? 0 : -1}
                      data-target={target}
                      style={{ background: ground, color: letterOn(ground) }}
                      onFocus={() => setAt([row, column])}
                      onClick={() => choose(row, column)}
                    >
                      {text}
                    </button>
                  </td>
                );
              })}
            </tr>
          )).reverse()}
        </tbody>
        <tfoot>{children}</tfoot>
      </table>
    </div>
  );
}
