// A matrix of numbers that were computed.
import type { ComponentChildren, CSSProperties } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { brief, whole, type Matrix } from "./weights";

/** How strongly a cell is tinted: the root makes small numbers show beside large ones. */
export function shade(value: number, most: number): CSSProperties {
  const share = most > 0 && Number.isFinite(value) ? Math.min(1, Math.abs(value) / most) : 0;
  return { "--tint-by": `${(46 * Math.sqrt(share)).toFixed(1)}%`, "--tint-of": value < 0 ? "var(--second)" : "var(--accent)" };
}

export interface TableProps {
  label: string;
  rows: string[];
  columns: string[];
  matrix: Matrix;
  /** The largest size of a number there can be; that of the matrix when left out. */
  most?: number;
  /** The row of the followed position. */
  row: number | null;
  /** Called with the row that was chosen, or pointed at. */
  choose: (row: number) => void;
  hover: (row: number | null) => void;
  /** More cells behind a row. */
  behind?: { head: string; cell: (row: number) => ComponentChildren }[];
}

export function NumberTable(props: TableProps) {
  const { label, rows, columns, matrix, choose, hover, behind = [] } = props;
  const most = props.most ?? Math.max(...matrix.flat().map(Math.abs), 0);
  const scroll = useOverflow();
  return (
    <div
      class="sheet-scroll"
      ref={scroll.ref}
      {...(scroll.over ? { tabIndex: 0, role: "region", "aria-label": `${label}, scrolls sideways` } : {})}
    >
      <table aria-label={label} onMouseLeave={() => hover(null)}>
        <thead>
          <tr>
            <td />
            {columns.map((each) => (
              <th scope="col">{each}</th>
            ))}
            {behind.map(({ head }) => (
              <th scope="col" class="behind">
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {matrix.map((line, row) => (
            <tr
              data-on={row === props.row}
              onMouseEnter={() => hover(row)}
              onClick={() => choose(row)}
            >
              <th scope="row">{rows[row]}</th>
              {line.map((value) => (
                <td class="number" style={shade(value, most)} title={whole(value)}>
                  {brief(value)}
                </td>
              ))}
              {behind.map(({ cell }) => (
                <td class="behind">{cell(row)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A part that scrolls sideways can be reached by keyboard; one that does not is no stop on the way. */
function useOverflow() {
  const ref = useRef<HTMLDivElement>(null);
  const [over, setOver] = useState(false);
  useEffect(() => {
    const box = ref.current;
    if (!box || typeof ResizeObserver === "undefined") return;
    const look = new ResizeObserver(() => setOver(box.scrollWidth > box.clientWidth + 1));
    look.observe(box);
    if (box.firstElementChild) look.observe(box.firstElementChild);
    return () => look.disconnect();
  }, []);
  return { ref, over };
}
