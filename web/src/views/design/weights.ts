// A head's matrices with the edits of the state, as glassformer/explorer/saving/page_state.py computes them. The
// patterns of addresses and numbers, and the bounds, come from Python by way of contract.json.
import contract from "../../contract.json";
import type { Head, Refusal } from "../../source";

export const NAMES = ["Km", "Qm", "Vm", "pos"] as const;
export type Name = (typeof NAMES)[number];
export type Matrix = number[][];
export type Weights = { Km: Matrix; Qm: Matrix; Vm: Matrix; pos: Matrix | null };
/** "Km.2.3" to the number as typed; also "size.qk", "size.pos" and "size.len" where they differ from the design's. */
export type Cells = Record<string, string>;

/** The most numbers of one matrix. */
export const { MOST_CELLS } = contract;
/** The largest file that is read, in bytes. A head of MOST_CELLS numbers is far smaller. */
export const MOST_BYTES = 2 ** 20;
const { LARGEST, MOST_DIGITS } = contract;
const MOST_COLUMNS = 999;
const [CELL, SIZE, NUMBER] = [contract.CELL, contract.SIZE, contract.NUMBER].map((each) => new RegExp(`^(?:${each})$`)) as [RegExp, RegExp, RegExp];

/** Columns of keys and queries, columns of pos (0: no positions), rows of pos. */
export interface Sizes {
  qk: number;
  pos: number;
  len: number;
}

export const address = (name: Name, row: number, column: number): string => `${name}.${row}.${column}`;

function placeOf(address: string): { name: Name; row: number; column: number } | null {
  const cell = CELL.exec(address);
  return cell && { name: cell[1] as Name, row: Number(cell[2]), column: Number(cell[3]) };
}

function at(weights: Weights, address: string): number | undefined {
  const place = placeOf(address);
  return place ? weights[place.name]?.[place.row]?.[place.column] : undefined;
}

/** The number that was typed, or why it is not one. */
export function parse(text: string): { value: number; fault: null } | { value: null; fault: string } {
  const no = (fault: string) => ({ value: null, fault });
  if (text.trim() === "") return no("Type a number, or 0.");
  if (/^[+-]?\d*,\d+$/.test(text)) return no("Use a decimal point, as in 0.5.");
  if (text.length > MOST_DIGITS || !NUMBER.test(text)) return no("Not a number. Type one such as 2, -0.5 or 1e3.");
  const value = Number(text.replaceAll("\u2212", "-"));
  if (Math.abs(value) > LARGEST) return no(`Too large: at most ${LARGEST}.`);
  return { value, fault: null };
}

export function sizesOf(weights: Weights): Sizes {
  return { qk: weights.Km[0]?.length ?? 0, pos: weights.pos?.[0]?.length ?? 0, len: weights.pos?.length ?? 0 };
}

/** The design's matrices, or zeros in their place. */
export function designed(head: Head, exercise = false): Weights {
  const { Km, Qm, Vm, pos } = head.weights;
  const start = (matrix: Matrix) => (exercise ? matrix.map((row) => row.map(() => 0)) : matrix);
  return { Km: start(Km), Qm: start(Qm), Vm: start(Vm), pos: pos && start(pos) };
}

const tokensOf = (design: Weights): number => design.Km.length - (design.pos?.[0]?.length ?? 0);

function wanted(design: Weights, cells: Cells): Sizes {
  const own = sizesOf(design);
  const read = (key: keyof Sizes, least: number): number => {
    const text = cells[`size.${key}`];
    return text !== undefined && SIZE.test(text) && Number(text) >= least ? Number(text) : own[key];
  };
  const sizes = { qk: read("qk", 1), pos: read("pos", 0), len: Math.max(1, read("len", 1)) };
  if ((tokensOf(design) + sizes.pos) * sizes.qk > MOST_CELLS || sizes.pos * sizes.len > MOST_CELLS) return own;
  return sizes.pos === 0 ? { ...sizes, len: 0 } : sizes;
}

export interface Edited {
  /** In the edited sizes. A cell without a valid number keeps the design's. */
  weights: Weights;
  /** The design in the edited sizes, with zeros in new cells. */
  base: Weights;
  /** Cells that were typed in: those that differ from the design, and those without a valid number. */
  changed: Set<string>;
  /** Cells without a valid number, with the reason. */
  faults: Map<string, string>;
  /** Whether the matrices have other sizes than the design's. */
  resized: boolean;
  /** Whether sizes or numbers differ from the design's. */
  differs: boolean;
}

/** The matrices of a design with some edits. */
export function edited(design: Weights, cells: Cells): Edited {
  const sizes = wanted(design, cells);
  const rows = tokensOf(design) + sizes.pos;
  const base: Weights = {
    Km: fitted(design.Km, rows, sizes.qk),
    Qm: fitted(design.Qm, rows, sizes.qk),
    Vm: fitted(design.Vm, rows, design.Vm[0]?.length ?? 1),
    pos: sizes.pos === 0 ? null : fitted(design.pos ?? [], sizes.len, sizes.pos),
  };
  const weights = structuredClone(base);
  const changed = new Set<string>();
  const faults = new Map<string, string>();
  const own = sizesOf(design);
  const resized = sizes.qk !== own.qk || sizes.pos !== own.pos || sizes.len !== own.len;
  let differs = resized;
  for (const [key, text] of Object.entries(cells)) {
    const before = at(weights, key);
    const place = placeOf(key);
    if (place === null || before === undefined) continue;
    const { value, fault } = parse(text);
    if (fault !== null) faults.set(key, fault);
    if (value === before) continue;
    changed.add(key);
    if (value === null) continue;
    (weights[place.name]?.[place.row] as number[])[place.column] = value;
    differs = true;
  }
  return { weights, base, changed, faults, resized, differs };
}

const fitted = (matrix: Matrix, rows: number, columns: number): Matrix =>
  Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_, column) => matrix[row]?.[column] ?? 0));

/** The edits that turn the design into `weights`. */
export function cellsOf(design: Weights, weights: Weights): Cells {
  const cells: Cells = {};
  const own = sizesOf(design);
  const sizes = sizesOf(weights);
  for (const key of ["qk", "pos", "len"] as const) if (sizes[key] !== own[key]) cells[`size.${key}`] = String(sizes[key]);
  const { base } = edited(design, cells);
  for (const name of NAMES) {
    weights[name]?.forEach((row, i) =>
      row.forEach((value, j) => {
        if (value !== base[name]?.[i]?.[j]) cells[address(name, i, j)] = String(value);
      }),
    );
  }
  return cells;
}

/** `cells` after typing in some. Cells that hold the design's number again are left out. */
export function typed(base: Weights, cells: Cells, changes: [key: string, text: string][]): Cells {
  const next = { ...cells };
  for (const [key, text] of changes) {
    const trimmed = text.trim().slice(0, MOST_DIGITS + 1);
    const { value } = parse(trimmed);
    if (value !== null && value === at(base, key)) delete next[key];
    else next[key] = trimmed;
  }
  return next;
}

/** A block as spreadsheets copy it: lines, with tabs, semicolons, commas or spaces between the numbers. */
export function block(text: string): string[][] {
  // Without blanks at the edges of a line; a tab there ends an empty cell.
  const lines = text.replace(/\r/g, "").replace(/\n+$/, "").split("\n", MOST_CELLS).map((line) => line.replace(/^ +| +$/g, ""));
  const between = [/ *\t */, /\s*;\s*/, /\s*,\s*/, /\s+/].find((each) => lines.some((line) => each.test(line)));
  return lines.map((line) => (between ? line.split(between) : [line]).slice(0, MOST_CELLS));
}

/** What a file of an exercise says besides its weights: which one it answers. */
const ANSWERED = ["lab", "exercise", "seed"];

/** The weights as a file for `glassformer verify`; those of an exercise also for `glassformer course grade`. */
export function asFile(weights: Weights, exercise: string | null = null): string {
  const named = exercise === null ? [] : [`  "lab": "page"`, `  "exercise": ${JSON.stringify(exercise)}`];
  const tables = NAMES.flatMap((name) => {
    const matrix = weights[name];
    return matrix ? [`  "${name}": [\n    ${matrix.map((row) => JSON.stringify(row)).join(",\n    ")}\n  ]`] : [];
  });
  return `{\n${[...named, ...tables].join(",\n")}\n}\n`;
}

/** The weights in such a file, or why it is refused. Nothing of it leaves the browser. */
export function fromFile(text: string, design: Weights): Weights | Refusal {
  const no = (got: string, expected: string, fix: string): Refusal => ({ got, expected, fix });
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return no("A file that is not JSON", 'an object {"Km": [[...]], ...}', "Choose a head.json.");
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return no("A file without names", 'an object {"Km": [[...]], ...}', "Choose a head.json.");
  }
  const given = value as Record<string, unknown>;
  const unknown = Object.keys(given).find((name) => ![...NAMES, ...ANSWERED].includes(name));
  if (unknown !== undefined) return no(`A matrix named ${unknown.slice(0, 40)}`, "Km, Qm, Vm and pos", "Remove it.");
  for (const name of NAMES) {
    if (given[name] === undefined && name === "pos") continue;
    const fault = noMatrix(given[name]);
    if (fault) return no(`${name} ${fault}`, "a list of rows of numbers, all equally long", "Change the file.");
  }
  const read = given as unknown as Weights;
  const weights: Weights = { Km: read.Km, Qm: read.Qm, Vm: read.Vm, pos: read.pos ?? null };
  const rows = tokensOf(design) + (weights.pos?.[0]?.length ?? 0);
  for (const name of ["Km", "Qm", "Vm"] as const) {
    if (weights[name].length === rows) continue;
    return no(
      `${name} of ${weights[name].length} rows`,
      `${rows}: one for each token, and one for each column of pos`,
      "Choose weights of this task and alphabet.",
    );
  }
  const [keys, queries, values] = [weights.Km[0]?.length, weights.Qm[0]?.length, weights.Vm[0]?.length];
  if (keys !== queries) return no(`Km of ${keys} and Qm of ${queries} columns`, "the same number", "Change the file.");
  const outputs = design.Vm[0]?.length;
  if (values !== outputs) return no(`Vm of ${values} columns`, `${outputs}, as the task's outputs`, "Choose others.");
  return weights;
}

function noMatrix(value: unknown): string | null {
  if (value === undefined) return "is missing";
  if (!Array.isArray(value) || value.length === 0) return "is not a matrix";
  let width = -1;
  for (const row of value as unknown[]) {
    if (!Array.isArray(row) || row.length === 0) return "is not a matrix";
    if (width >= 0 && row.length !== width) return "has rows of different lengths";
    width = row.length;
    if (Math.max(width, value.length) > MOST_COLUMNS) return `has more than ${MOST_COLUMNS} rows or columns`;
    if (width * value.length > MOST_CELLS) return `has more than ${MOST_CELLS} numbers`;
    const odd = row.find((cell) => typeof cell !== "number" || !(Math.abs(cell) <= LARGEST));
    if (odd !== undefined) return `holds ${String(JSON.stringify(odd)).slice(0, 30)}`;
  }
  return null;
}

/** A number in about five characters; "~0" is close to 0 but not 0. */
export function brief(value: number): string {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size < 0.0005) return "~0";
  const digits = size < 0.01 ? 1 : size < 0.995 ? 2 : 3;
  const text =
    size >= 99_999.5
      ? value.toExponential(0).replace("e+", "e")
      : String(Number(size >= 999.5 ? value.toFixed(0) : value.toPrecision(digits)));
  return text.replace("-", "\u2212");
}

/** All of a number's digits, with a true minus sign. */
export const whole = (value: number): string => String(value).replace("-", "\u2212");
