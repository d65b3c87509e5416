// A head's matrices as the design has them, with the edits that stand in the address laid over them.
import type { Head, Refusal } from "../../source";

export const NAMES = ["Km", "Qm", "Vm", "pos"] as const;
export type Name = (typeof NAMES)[number];
export type Matrix = number[][];
export type Weights = { Km: Matrix; Qm: Matrix; Vm: Matrix; pos: Matrix | null };
/** "Km.2.3" to the number as typed; besides "size.qk", "size.pos", "size.len" where they are not the design's. */
export type Cells = Record<string, string>;

/** The most numbers of one matrix: MOST_CELLS of messages/base.py. */
export const MOST_CELLS = 4096;
/** The largest file that is read, in bytes; a head of this many numbers is far smaller. */
export const MOST_BYTES = 2 ** 20;
const LARGEST = 1e300;
const LONGEST = 40;
const MOST_COLUMNS = 999;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/** Columns of keys and queries, columns of pos (0: no positions), rows of pos. */
export interface Sizes {
  qk: number;
  pos: number;
  len: number;
}

export const address = (name: Name, row: number, column: number): string => `${name}.${row}.${column}`;

/** The number that `text` is, or why it is none. */
export function parse(text: string): { value: number; fault: null } | { value: null; fault: string } {
  const plain = text.trim().replace(/^\u2212/, "-").replace(/e\u2212/i, "e-");
  const no = (fault: string) => ({ value: null, fault });
  if (plain === "") return no("Type a number: 0 for none.");
  if (/^[+-]?\d*,\d+$/.test(plain)) return no("Write a point before decimals, as in 0.5.");
  if (plain.length > LONGEST || !NUMBER.test(plain)) return no("Not a number. Write it as in 2, -0.5 or 1e3.");
  const value = Number(plain);
  if (!Number.isFinite(value) || Math.abs(value) > LARGEST) return no(`Too large: at most ${LARGEST}.`);
  return { value, fault: null };
}

export function sizesOf(weights: Weights): Sizes {
  return { qk: weights.Km[0]?.length ?? 0, pos: weights.pos?.[0]?.length ?? 0, len: weights.pos?.length ?? 0 };
}

/** The design's own matrices. */
export function designed(head: Head): Weights {
  const { Km, Qm, Vm, pos } = head.weights;
  return { Km, Qm, Vm, pos: pos ?? null };
}

const tokensOf = (design: Weights): number => design.Km.length - (design.pos?.[0]?.length ?? 0);

function wanted(design: Weights, cells: Cells): Sizes {
  const own = sizesOf(design);
  const read = (key: keyof Sizes, least: number): number => {
    const text = cells[`size.${key}`];
    return text !== undefined && /^\d{1,3}$/.test(text) && Number(text) >= least ? Number(text) : own[key];
  };
  const sizes = { qk: read("qk", 1), pos: read("pos", 0), len: Math.max(1, read("len", 1)) };
  // An address may have been mistyped.
  if ((tokensOf(design) + sizes.pos) * sizes.qk > MOST_CELLS || sizes.pos * sizes.len > MOST_CELLS) return own;
  return sizes.pos === 0 ? { ...sizes, len: 0 } : sizes;
}

export interface Edited {
  /** Of the edits' sizes; a cell that holds no number has the last one that it had, or the design's. */
  weights: Weights;
  /** The same without the edits: what each cell is compared with. Zero where the design has no such cell. */
  base: Weights;
  /** Cells that differ from the design. */
  changed: Set<string>;
  /** Cells that hold no number, with the reason. */
  faults: Map<string, string>;
  /** Whether the matrices have other sizes than the design's. */
  resized: boolean;
}

/**
 * @param design The matrices to begin with.
 * @param cells The edits.
 * @param last What cells held when they last held a number, by address.
 */
export function edited(design: Weights, cells: Cells, last?: ReadonlyMap<string, number>): Edited {
  const sizes = wanted(design, cells);
  const rows = tokensOf(design) + sizes.pos;
  const base: Weights = {
    Km: fitted(design.Km, rows, sizes.qk),
    Qm: fitted(design.Qm, rows, sizes.qk),
    Vm: fitted(design.Vm, rows, design.Vm[0]?.length ?? 1),
    pos: sizes.pos === 0 ? null : fitted(design.pos ?? [], sizes.len, sizes.pos),
  };
  const weights: Weights = {
    Km: base.Km.map((row) => [...row]),
    Qm: base.Qm.map((row) => [...row]),
    Vm: base.Vm.map((row) => [...row]),
    pos: base.pos?.map((row) => [...row]) ?? null,
  };
  const changed = new Set<string>();
  const faults = new Map<string, string>();
  for (const [key, text] of Object.entries(cells)) {
    const [name, row, column] = key.split(".");
    const line = NAMES.includes(name as Name) ? weights[name as Name]?.[Number(row)] : undefined;
    const before = line?.[Number(column)];
    if (line === undefined || before === undefined) continue;
    const { value, fault } = parse(text);
    if (fault !== null) {
      faults.set(key, fault);
      line[Number(column)] = last?.get(key) ?? before;
    } else if (value !== before) line[Number(column)] = value;
    else continue;
    changed.add(key);
  }
  const own = sizesOf(design);
  const resized = sizes.qk !== own.qk || sizes.pos !== own.pos || sizes.len !== own.len;
  return { weights, base, changed, faults, resized };
}

/** Whether it is another head than the design. */
export const isEdited = (edits: Edited): boolean => edits.changed.size > 0 || edits.resized;

/** The numbers in some cells. */
export function numbersIn(weights: Weights, cells: Iterable<string>): [string, number][] {
  return [...cells].map((key) => {
    const [name, row, column] = key.split(".");
    return [key, weights[name as Name]?.[Number(row)]?.[Number(column)] ?? 0];
  });
}

const fitted = (matrix: Matrix, rows: number, columns: number): Matrix =>
  Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_, column) => matrix[row]?.[column] ?? 0));

/** The edits that make `weights` of the design. */
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

/** `cells` with some of them typed anew; those that say what the design says are left out. */
export function typed(base: Weights, cells: Cells, changes: [key: string, text: string][]): Cells {
  const next = { ...cells };
  for (const [key, text] of changes) {
    const [name, row, column] = key.split(".");
    const { value } = parse(text);
    if (value !== null && value === base[name as Name]?.[Number(row)]?.[Number(column)]) delete next[key];
    else next[key] = text.trim().slice(0, LONGEST);
  }
  return next;
}

/** A block as spreadsheets copy it: lines, with tabs, semicolons, commas or spaces between the numbers. */
export function block(text: string): string[][] {
  const lines = text.replace(/\r/g, "").replace(/\n+$/, "").split("\n").slice(0, MOST_CELLS);
  const between = [/\t/, /\s*;\s*/, /\s*,\s*/, /\s+/].find((each) => lines.some((line) => each.test(line.trim())));
  return lines.map((line) => (between ? line.trim().split(between) : [line.trim()]).slice(0, MOST_CELLS));
}

/** The text of a file that `glassformer verify` reads. */
export function asFile(weights: Weights): string {
  const tables = NAMES.flatMap((name) => {
    const matrix = weights[name];
    return matrix ? [`  "${name}": [\n    ${matrix.map((row) => JSON.stringify(row)).join(",\n    ")}\n  ]`] : [];
  });
  return `{\n${tables.join(",\n")}\n}\n`;
}

/** The weights in such a file, or why it is none. Nothing of it leaves the browser. */
export function fromFile(text: string, design: Weights): Weights | Refusal {
  const no = (got: string, expected: string, fix: string): Refusal => ({ got, expected, fix });
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return no("A file that is no JSON", 'an object {"Km": [[...]], ...}', "Choose a head.json.");
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return no("A file without names", 'an object {"Km": [[...]], ...}', "Choose a head.json.");
  }
  const given = value as Record<string, unknown>;
  const unknown = Object.keys(given).find((name) => !NAMES.includes(name as Name));
  if (unknown !== undefined) return no(`A matrix called ${unknown.slice(0, 40)}`, "Km, Qm, Vm and pos", "Remove it.");
  for (const name of NAMES) {
    if (given[name] === undefined && name === "pos") continue;
    const fault = noMatrix(given[name]);
    if (fault) return no(`${name} ${fault}`, "a list of rows of numbers, all equally long", "Mend the file.");
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
  if (keys !== queries) return no(`Km of ${keys} and Qm of ${queries} columns`, "the same number", "Mend the file.");
  const outputs = design.Vm[0]?.length;
  if (values !== outputs) return no(`Vm of ${values} columns`, `${outputs}, as the task's outputs`, "Choose others.");
  return weights;
}

function noMatrix(value: unknown): string | null {
  if (value === undefined) return "is missing";
  if (!Array.isArray(value) || value.length === 0) return "is no matrix";
  let width = -1;
  for (const row of value as unknown[]) {
    if (!Array.isArray(row) || row.length === 0) return "is no matrix";
    if (width >= 0 && row.length !== width) return "has rows of different lengths";
    width = row.length;
    if (Math.max(width, value.length) > MOST_COLUMNS) return `has more than ${MOST_COLUMNS} rows or columns`;
    if (width * value.length > MOST_CELLS) return `has more than ${MOST_CELLS} numbers`;
    const odd = row.find((cell) => typeof cell !== "number" || !(Math.abs(cell) <= LARGEST));
    if (odd !== undefined) return `holds ${String(JSON.stringify(odd)).slice(0, 30)}`;
  }
  return null;
}

/** A cell in at most five characters where that can be: "~0" is a little more or less than nothing. */
export function brief(value: number): string {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size < 0.005) return "~0";
  const text =
    size >= 99_999.5
      ? value.toExponential(0).replace("e+", "e")
      : String(Number(size >= 999.5 ? value.toFixed(0) : value.toPrecision(size < 1 ? 2 : 3)));
  return text.replace("-", "\u2212");
}

/** All of a number's digits, with a true minus sign. */
export const whole = (value: number): string => String(value).replace("-", "\u2212");
