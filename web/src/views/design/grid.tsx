// A matrix that can be edited as in a spreadsheet.
import { useEffect, useRef, useState } from "preact/hooks";
import { address, block, brief, parse, whole, type Matrix, type Name } from "./weights";
import { shade } from "./table";

export interface GridProps {
  name: Name;
  rows: string[];
  columns: string[];
  matrix: Matrix;
  /** The design's numbers. */
  base: Matrix;
  /** The typed text of each cell. */
  cells: Record<string, string>;
  changed: Set<string>;
  faults: Map<string, string>;
  /** The rows of the followed position's inputs. */
  used: Set<number>;
  readOnly: boolean;
  /** `typing`: the cell whose characters are undone as one step. */
  type(changes: [key: string, text: string][], typing?: string): void;
  settle(): void;
}

interface At {
  row: number;
  column: number;
}

/**
 * Arrow keys, Home, End, Page Up and Page Down move from cell to cell; typing replaces; F2 or a double click edits;
 * Enter moves down, Tab after typing to the right, otherwise out of the table; Escape reverts what was typed.
 */
export function Grid(props: GridProps) {
  const { name, rows, columns, matrix, base, cells, changed, faults, used, readOnly } = props;
  const table = useRef<HTMLTableElement>(null);
  const [at, setAt] = useState<At>({ row: 0, column: 0 });
  const [focused, setFocused] = useState(false);
  const [draft, setDraft] = useState<string | null>(null);
  // The cell's text when it was entered, and whether arrows move within it.
  const entered = useRef("");
  const within = useRef(false);
  const touched = useRef(false);
  const last: At = { row: matrix.length - 1, column: columns.length - 1 };
  const here: At = { row: Math.min(at.row, last.row), column: Math.min(at.column, last.column) };
  const most = Math.max(...matrix.flat().map(Math.abs), 0);

  const textOf = ({ row, column }: At): string => cells[address(name, row, column)] ?? String(matrix[row]?.[column] ?? 0);
  const inputAt = (place: At): HTMLInputElement | null | undefined =>
    table.current?.querySelector<HTMLInputElement>(`[data-at="${place.row}.${place.column}"]`);
  const go = (place: At) => {
    const next = {
      row: Math.min(Math.max(place.row, 0), last.row),
      column: Math.min(Math.max(place.column, 0), last.column),
    };
    leave();
    setAt(next);
    entered.current = textOf(next);
    const input = inputAt(next);
    input?.focus();
    input?.select();
  };
  const leave = () => {
    setDraft(null);
    within.current = false;
    touched.current = false;
    props.settle();
  };
  const enter = (place: At) => {
    setAt(place);
    setFocused(true);
    leave();
    entered.current = textOf(place);
  };
  const edit = (text: string) => {
    touched.current = true;
    setDraft(text);
    const key = address(name, here.row, here.column);
    props.type([[key, text]], key);
  };
  const open = (input: HTMLInputElement) => {
    if (readOnly) return;
    within.current = true;
    const text = textOf(here);
    setDraft(text);
    // Immediately, not after rendering: the next key may move within it.
    input.value = text;
    input.setSelectionRange(text.length, text.length);
  };

  const press = (event: KeyboardEvent) => {
    if (event.altKey || event.isComposing) return;
    const { row, column } = here;
    const far = event.ctrlKey || event.metaKey;
    const moves: Record<string, At> = {
      ArrowUp: { row: far ? 0 : row - 1, column },
      ArrowDown: { row: far ? last.row : row + 1, column },
      PageUp: { row: 0, column },
      PageDown: { row: last.row, column },
      Enter: { row: row + (event.shiftKey ? -1 : 1), column },
    };
    if (!within.current) {
      moves.ArrowLeft = { row, column: far ? 0 : column - 1 };
      moves.ArrowRight = { row, column: far ? last.column : column + 1 };
      moves.Home = { row: far ? 0 : row, column: 0 };
      moves.End = { row: far ? last.row : row, column: last.column };
    }
    const move = moves[event.key];
    if (move) {
      event.preventDefault();
      go(move);
      return;
    }
    if (event.key === "F2") {
      event.preventDefault();
      open(event.target as HTMLInputElement);
    } else if (event.key === "Escape" && touched.current) {
      event.preventDefault();
      const key = address(name, row, column);
      props.type([[key, entered.current]], key);
      leave();
    } else if (event.key === "Tab" && touched.current) {
      const next = row * columns.length + column + (event.shiftKey ? -1 : 1);
      if (next < 0 || next >= matrix.length * columns.length) return;
      event.preventDefault();
      go({ row: Math.floor(next / columns.length), column: next % columns.length });
    }
  };

  const paste = (event: ClipboardEvent) => {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    event.preventDefault();
    if (readOnly) return;
    const changes = block(text).flatMap((line, i) =>
      line.map((cell, j): [number, number, string] => [here.row + i, here.column + j, cell]),
    );
    const fitting = changes.filter(([row, column]) => row <= last.row && column <= last.column);
    props.type(fitting.map(([row, column, cell]) => [address(name, row, column), cell]));
    leave();
  };

  // A focused cell follows undo, redo and loading.
  const now = textOf(here);
  useEffect(() => {
    if (draft !== null && draft.trim() !== now && parse(draft).value !== parse(now).value) setDraft(null);
  }, [now]);

  const chosen = address(name, here.row, here.column);
  const fault = faults.get(chosen);
  const value = matrix[here.row]?.[here.column] ?? 0;
  const before = base[here.row]?.[here.column] ?? 0;
  return (
    <div class="sheet" data-matrix={name}>
      <div class="sheet-scroll">
        <table role="grid" aria-label={name} aria-readonly={readOnly} ref={table} onKeyDown={press} onPaste={paste}>
          <thead>
            <tr>
              <td />
              {columns.map((each) => (
                <th scope="col">{each}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {matrix.map((line, row) => (
              <tr data-used={used.has(row)}>
                <th scope="row">{rows[row]}</th>
                {line.map((number, column) => {
                  const key = address(name, row, column);
                  const wrong = faults.get(key);
                  const mine = focused && row === here.row && column === here.column;
                  const shown = wrong !== undefined ? (cells[key] ?? "") : brief(number);
                  return (
                    <td role="gridcell" data-edited={changed.has(key)} style={shade(number, most)}>
                      <input
                        type="text"
                        inputMode="text"
                        autocomplete="off"
                        spellcheck={false}
                        data-at={`${row}.${column}`}
                        tabIndex={row === here.row && column === here.column ? 0 : -1}
                        aria-label={`${name}, row ${rows[row]}, column ${columns[column]}${changed.has(key) ? ", edited" : ""}`}
                        aria-invalid={wrong !== undefined}
                        title={wrong ?? whole(number)}
                        readOnly={readOnly}
                        value={mine && draft !== null ? draft : shown}
                        data-open={mine && draft !== null}
                        style={{ width: mine && draft !== null ? `max(100%, ${draft.length + 2}ch)` : `max(1.625rem, ${wrong === undefined ? shown.length : 0}ch)` }}
                        onFocus={(event) => {
                          enter({ row, column });
                          event.currentTarget.select();
                        }}
                        onClick={(event) => {
                          if (!within.current && !touched.current) event.currentTarget.select();
                        }}
                        onDblClick={(event) => open(event.currentTarget)}
                        onBlur={() => {
                          setFocused(false);
                          leave();
                        }}
                        onInput={(event) => edit(event.currentTarget.value)}
                      />
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="cell-line" aria-live="polite">
        {focused && (
          <>
            <code>
              {name}[{rows[here.row]}, {columns[here.column]}] = {fault ? cells[chosen] : whole(value)}
            </code>{" "}
            {fault ? <span class="wrong">{fault}</span> : changed.has(chosen) && <span>was {whole(before)}</span>}
          </>
        )}
        {!focused && <span class="wrong">{[...faults].find(([key]) => key.startsWith(`${name}.`))?.[1]}</span>}
      </p>
    </div>
  );
}
