// What a program's definition gives for a sequence, from tables of its parts: see glassformer/programs/language.py. A value is
// its place among those that its variable may have.
import type { ProgramPart } from "../source";
import { require } from "./refusing";
import type { Weights } from "./weights";

/** Numbers of values as whole multiples of 1 / scale; null for those that have no mean. */
interface Multiples {
  scale: number;
  numbers: (number | null)[];
}

/** A part; the tensor `table.N` of part N says what it is for each combination of what it reads. */
type Part = Omit<ProgramPart, "values"> & { words: string[] } & (
    | { computes: "tokens" | "indices" | "function" | "select" | "combined" | "width"; reads: number[] }
    | {
        computes: "aggregate";
        reads: [selector: number, values: number];
        default: number;
        /** Null where there is no mean of different values. */
        means: { of: Multiples; found: Multiples } | null;
      }
  );

export interface Definition {
  /** Each after its sources, the program last. */
  parts: Part[];
  /** Of each code of an output the place of its value, -1 for another variable's; null where the output is the value. */
  codes: number[] | null;
  /** The program's values as numbers, where the output is the value. */
  numbers: (number | null)[] | null;
}

/** Of a variable its value at each position, of a selector its row for each query; null where there is no value. */
type Column = number[] | boolean[][] | null;

const seen = (rows: boolean[][], causal: boolean) => rows.map((row, query) => row.map((chosen, key) => chosen && (!causal || key <= query)));

/** What each part is for a sequence, the program last. */
function columnsOf({ parts }: Definition, weights: Weights, tokens: number[], causal: boolean): Column[] {
  const columns: Column[] = [];
  const places = [...tokens.keys()];
  const count = (part: number) => parts[part]!.words.length;

  const columnOf = (part: Part, table: Float32Array): Column => {
    const read = part.reads.map((source) => columns[source] ?? null);
    if (read.some((column) => column === null)) return null;
    const [variables, selectors] = [read as number[][], read as boolean[][][]];
    switch (part.computes) {
      case "tokens":
        return tokens.map((token) => table[token]!);
      case "indices":
        return places.map((place) => table[place]!);
      case "function":
        return places.map((place) => table[variables.reduce((at, column, source) => at * count(part.reads[source]!) + column[place]!, 0)]!);
      case "select": {
        const [keys, queries] = variables as [number[], number[]];
        return queries.map((query) => keys.map((key) => table[query * count(part.reads[0]!) + key] === 1));
      }
      case "combined":
        return places.map((query) =>
          places.map((key) => table[selectors.reduce((at, rows) => 2 * at + Number(rows[query]![key]), 0)] === 1),
        );
      case "width":
        return seen(selectors[0]!, causal).map((row) => table[row.filter(Boolean).length]!);
      case "aggregate": {
        const found = seen(selectors[0]!, causal).map((row) => {
          const chosen = variables[1]!.filter((_, key) => row[key]);
          if (chosen.length === 0) return part.default;
          return chosen.every((value) => value === chosen[0]) ? table[chosen[0]!]! : mean(chosen, part.means);
        });
        return found.includes(null) ? null : (found as number[]);
      }
    }
  };
  parts.forEach((part, at) => {
    const column = columnOf(part, weights.of(`table.${at}`));
    const listed = !column || column.every((value) => typeof value !== "number" || value >= 0);
    require(listed, `a value of ${part.name} that is not in its table`, "a listed one", "Save the page again.");
    columns.push(column);
  });
  return columns;
}

/** The parts with their values; the program's values, null where it has none; and whether an output is what they say. */
export function defined(definition: Definition, weights: Weights, tokens: number[], causal: boolean) {
  const { parts, codes, numbers } = definition;
  const columns = columnsOf(definition, weights, tokens, causal);
  const words = (column: Column, { words }: Part): string[] => {
    if (column === null) return [];
    if (words.length > 0) return (column as number[]).map((value) => words[value]!);
    return seen(column as boolean[][], causal).map((row) => row.flatMap((chosen, key) => (chosen ? [key] : [])).join(" "));
  };
  const last = columns.at(-1) as number[] | null;
  return {
    parts: parts.map((part, at) => {
      const { name, kind, sources, domain } = part;
      return { name, kind, sources, domain, values: words(columns[at]!, part) };
    }),
    values: last && words(last, parts.at(-1)!),
    /** A code, or a number up to 0.001. */
    agrees: (at: number, number: number, code: number) =>
      codes ? codes[code] === last![at] : Math.abs(number - numbers![last![at]!]!) < 1e-3,
  };
}

/** The place of the mean of some values; null if they have none. */
function mean(chosen: number[], means: { of: Multiples; found: Multiples } | null): number | null {
  const numbers = chosen.map((value) => means?.of.numbers[value] ?? null);
  if (!means || numbers.includes(null)) return null;
  const sum = numbers.reduce<number>((all, number) => all + number!, 0) * means.found.scale;
  const place = means.found.numbers.findIndex((number) => number !== null && number * chosen.length * means.of.scale === sum);
  return place < 0 ? null : place;
}
