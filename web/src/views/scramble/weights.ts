// The answer's cross-attention weight on each unit of the source, independent of the order.
import { useAsk } from "../../asking";
import type { Run, Source } from "../../source";

export interface Reading {
  heads: number;
  /** [head][unit]: cross-attention weights, units in their given order. */
  byHead: number[][];
  /** [unit]: the mean over the heads. */
  mean: number[];
}

export const layersOf = (run: Run | null): number => run?.attentions.find((each) => each.part === "cross")?.layers ?? 0;

export function useReading(
  source: Source,
  run: Run | null,
  order: number[],
  layer: number,
): { reading: Reading | null; busy: boolean } {
  const stack = run?.attentions.find((each) => each.part === "cross");
  const fits = run !== null && stack !== undefined && stack.keys === order.length;
  const query = run?.place ?? 0;
  const asked = fits ? { run: run.run, part: "cross" as const, query, layer: null, head: null, passed: false } : null;
  const { answer, refusal, busy } = useAsk(source, "rows", asked);
  const known = answer !== null && refusal === null && answer.every(Number.isFinite);
  if (!known || !fits || answer.length !== stack.layers * stack.heads * stack.keys) return { reading: null, busy };
  const start = Math.min(layer, stack.layers - 1) * stack.heads * stack.keys;
  const byHead = Array.from({ length: stack.heads }, (_, head) => {
    const row = new Array<number>(stack.keys).fill(0);
    order.forEach((unit, place) => (row[unit] = answer[start + head * stack.keys + place] ?? 0));
    return row;
  });
  const mean = order.map((_, unit) => byHead.reduce((sum, row) => sum + (row[unit] ?? 0), 0) / stack.heads);
  return { reading: { heads: stack.heads, byHead, mean }, busy };
}

/** The largest absolute difference of a weight between two readings. */
export function largestChange(one: Reading, other: Reading): number {
  return Math.max(0, ...one.byHead.flatMap((row, head) => row.map((each, unit) => Math.abs(each - (other.byHead[head]?.[unit] ?? 0)))));
}
