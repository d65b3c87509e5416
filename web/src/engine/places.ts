// What a single head computes, in float64: its scores and values for every token at every position, and from these its
// outputs for any sequence, as glassformer/handcraft/single_head.py.
import type { AskCheck } from "../source";
import { softmax } from "./products";

export type Rows = number[][];
export type HeadWeights = AskCheck["weights"];

/** A task, as glassformer/explorer/saving/saved_model.py writes it. */
export interface Task {
  letters: string[];
  has_cls: boolean;
  max_len: number;
  /** The length of an output. */
  v_dim: number;
  readout: "argmax" | "sign";
  tolerance: number | null;
  decisive_error: number;
  /** The outputs that are judged, of all sequences in the order of `sequences`. */
  targets: Rows;
  /** [query place][key place]: a query should attend to its keys in the highest tier. Null where no description says so. */
  tiers: Rows | null;
}

/** What a head computes for every token at every position, a place: its outputs depend on nothing else. */
export interface Tables extends Record<"inputs" | "keys" | "queries" | "values" | "scores", Rows> {
  weights: HeadWeights;
}

const times = (x: Rows, matrix: Rows): Rows =>
  x.map((row) => matrix[0]!.map((_, column) => row.reduce((sum, value, at) => sum + value * matrix[at]![column]!, 0)));

/** CLS first, then position by position every letter. */
export function tablesOf(weights: HeadWeights, { letters, has_cls, max_len }: Task): Tables {
  const [count, first] = [letters.length, Number(has_cls)];
  const input = (token: number, position: number) => [
    ...Array.from({ length: count + first }, (_, at) => Number(at === token)),
    ...(weights.pos?.[position] ?? []),
  ];
  const inputs = has_cls ? [input(count, 0)] : [];
  for (let position = first; position < max_len + first; position++) letters.forEach((_, letter) => inputs.push(input(letter, position)));
  const [keys, queries, values] = [times(inputs, weights.Km), times(inputs, weights.Qm), times(inputs, weights.Vm)];
  const root = Math.sqrt(weights.Km[0]!.length);
  const scores = queries.map((query) => keys.map((key) => query.reduce((sum, value, at) => sum + value * key[at]!, 0) / root));
  return { weights, inputs, keys, queries, values, scores };
}

/** The places of some letters, CLS first. */
export const placesOf = (letters: number[], { letters: known, has_cls }: Task): number[] => [
  ...(has_cls ? [0] : []),
  ...letters.map((letter, at) => Number(has_cls) + at * known.length + letter),
];

/** `softmax(scores)` of a query's place over those of its keys. */
export const attention = ({ scores }: Tables, query: number, keys: number[]): Float64Array => softmax(keys.map((key) => scores[query]![key]!));

/** `sum_j weights[j] values[j]`. */
export const output = ({ values, weights: { Vm } }: Tables, shares: Float64Array, keys: number[]): number[] =>
  Vm[0]!.map((_, column) => keys.reduce((sum, key, at) => sum + shares[at]! * values[key]![column]!, 0));

/** Every sequence of letters, the shorter ones first, by alphabet. */
export function* sequences({ letters: { length: count }, max_len }: Task): Generator<number[]> {
  for (let length = 1; length <= max_len; length++) {
    for (let number = 0; number < count ** length; number++) {
      yield Array.from({ length }, (_, at) => Math.floor(number / count ** (length - 1 - at)) % count);
    }
  }
}
