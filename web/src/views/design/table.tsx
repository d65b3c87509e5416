// A table of computed numbers.
import type { ComponentChildren, CSSProperties } from "preact";
import { Scroll } from "../../parts";
import { brief, whole, type Matrix } from "./weights";

/** A cell's tint. The square root makes small numbers visible beside large ones. */
export function shade(value: number, most: number): CSSProperties {
  const share = most > 0 && Number.isFinite(value) ? Math.min(1, Math.abs(value) / most) : 0;
  return { "--tint-by": `${(46 * Math.sqrt(share)).toFixed(1)}%`, "--tint-of": value < 0 ? "var(--second)" : "var(--accent)" };
}

export interface TableProps {
  label: string;
  rows: string[];
  columns: string[];
  matrix: Matrix;
  /** The largest possible magnitude; by default that of the matrix. */
  most?: number;
  /** The row of the followed position. */
  row: number | null;
  /** Called with the row that was chosen, or hovered. */
  choose: (row: number) => void;
  hover: (row: number | null) => void;
  /** Further cells after a row's numbers. */
  extra?: { head: string; cell: (row: number) => ComponentChildren }[];
}

export function NumberTable(props: TableProps) {
  const { label, rows, columns, matrix, choose, hover, extra = [] } = props;
  const most = props.most ?? Math.max(...matrix.flat().map(Math.abs), 0);
  return (
    <Scroll class="sheet-scroll" label={label}>
      <table aria-label={label} onMouseLeave={() => hover(null)}>
        <thead>
          <tr>
            <td />
            {columns.map((each) => (
              <th scope="col">{each}</th>
            ))}
            {extra.map(({ head }) => (
              <th scope="col" class="extra">
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
              {extra.map(({ cell }) => (
                <td class="extra">{cell(row)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
