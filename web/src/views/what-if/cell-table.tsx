// A table of coloured cells, one of which is a tab stop: rows are layers, the last one above, columns are positions. As
// many columns as fit are shown; buttons go to the others.
import { useEffect, useRef, useState } from "preact/hooks";
import { useWidth } from "../../measuring";
import { letterOn } from "../attention/colours";
import { arrowOf } from "../attention/selection";

interface Cell {
  text: string;
  about: string;
  ground: string;
  /** Whether it has a frame. */
  own: boolean;
  target?: boolean;
}

interface Foot {
  name: string;
  words: string[];
  own?: (column: number) => boolean;
  differs?: (column: number) => boolean;
}

interface CellTableProps {
  label: string;
  /** The names of the rows. */
  rows: string[];
  columns: number;
  cell: (row: number, column: number) => Cell;
  /** Rows of words below the columns. */
  feet: Foot[];
  /** The cell that is in sight at first, and again whenever it changes: its row and its position. */
  sight: [row: number, position: number];
  /** The position of the first column, and the number of all positions, where the table holds some of them. */
  first?: number;
  total?: number;
  /** Ask for the columns at a position that the table does not hold. */
  beyond?: (position: number) => void;
  choose: (row: number, column: number) => void;
}

/** Pixels: of the rows' names, of a letter, of a column's margins, and of the narrowest and the widest column. */
const [NAMES, LETTER, MARGINS, NARROWEST, WIDEST] = [92, 7.2, 6, 30, 72];

export function CellTable({ label, rows, columns, cell, feet, sight, first = 0, total = columns, beyond, choose }: CellTableProps) {
  const [at, setAt] = useState(sight);
  useEffect(() => setAt(sight), [...sight]);
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const atRow = within(at[0], rows.length);
  const atColumn = within(at[1] - first, columns);
  const longest = Math.max(...feet.flatMap(({ words }) => words.map(lengthOf)), ...rows.map((_, row) => longestOf(cell, row, columns)));
  const column = Math.min(WIDEST, Math.max(NARROWEST, MARGINS + LETTER * longest));
  const fit = Math.max(1, Math.min(columns, Math.floor((width - NAMES) / column)));
  // Pages of columns, the last of which ends with the last column.
  const start = Math.min(fit * Math.floor(atColumn / fit), columns - fit);
  const shown = Array.from({ length: fit }, (_, number) => start + number);
  const turn = (position: number) => {
    setAt([atRow, position]);
    if (position < first || position >= first + columns) beyond?.(position);
  };
  const move = (event: KeyboardEvent) => {
    const by = arrowOf(event);
    if (!by) return;
    event.preventDefault();
    setAt([within(atRow - by[0], rows.length), first + within(atColumn + by[1], columns)]);
    requestAnimationFrame(() => frame.current?.querySelector<HTMLElement>('td [tabindex="0"]')?.focus());
  };
  return (
    <div class="cell-table" ref={frame} onKeyDown={move}>
      {fit < total && width > 0 && (
        <div class="pages" role="group" aria-label="Part of the text">
          <button type="button" disabled={first + start === 0} onClick={() => turn(first + start - 1)}>
            Earlier
          </button>
          <span class="number quiet">
            Tokens {first + start} to {first + start + fit - 1} of 0 to {total - 1}
          </span>
          <button type="button" disabled={first + start + fit >= total} onClick={() => turn(first + start + fit)}>
            Later
          </button>
        </div>
      )}
      {width > 0 && (
        <table aria-label={label} style={{ width: `${NAMES + fit * column}px` }}>
          <tbody>
            {rows.map((name, row) => (
              <tr>
                <th scope="row">{name}</th>
                {shown.map((column) => {
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
                        onFocus={() => setAt([row, first + column])}
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
          <tfoot>
            {feet.map(({ name, words, own, differs }) => (
              <tr>
                <th scope="row">{name}</th>
                {shown.map((column) => (
                  <th scope="col" class="word" data-own={own?.(column)} data-differs={differs?.(column)}>
                    {words[column]}
                  </th>
                ))}
              </tr>
            ))}
          </tfoot>
        </table>
      )}
    </div>
  );
}

const within = (value: number, count: number): number => Math.max(0, Math.min(count - 1, value));

const lengthOf = (text: string): number => Array.from(text).length;

const longestOf = (cell: CellTableProps["cell"], row: number, columns: number): number =>
  Math.max(0, ...Array.from({ length: columns }, (_, column) => lengthOf(cell(row, column).text)));
