// What the answer reads of each thing, whatever the order in which the things were read.
import { useAsk } from "../../asking";
import type { Run, Source } from "../../source";

export interface Reading {
  heads: number;
  /** [head][thing]: cross-attention weights, things counted as they are given. */
  byHead: number[][];
  /** [thing]: the mean over the heads. */
  mean: number[];
}

export const layersOf = (run: Run | null): number => run?.attentions.find((each) => each.part === "cross")?.layers ?? 0;

/** The place of the last token that was given: what it reads makes the first word of the answer. */
const answerAt = (run: Run): number => Math.max(0, run.tokens.length - run.said.words.length);

export function useReading(
  source: Source,
  run: Run | null,
  order: number[],
  layer: number,
): { reading: Reading | null; busy: boolean } {
  const stack = run?.attentions.find((each) => each.part === "cross");
  const fits = run !== null && stack !== undefined && stack.keys === order.length;
  const query = run ? answerAt(run) : 0;
  const asked = fits ? { run: run.run, part: "cross" as const, query, layer: null, head: null } : null;
  const { answer, busy } = useAsk(source, "rows", asked);
  if (!answer || !fits || answer.length !== stack.layers * stack.heads * stack.keys) return { reading: null, busy };
  const start = Math.min(layer, stack.layers - 1) * stack.heads * stack.keys;
  const byHead = Array.from({ length: stack.heads }, (_, head) => {
    const row = new Array<number>(stack.keys).fill(0);
    order.forEach((unit, place) => (row[unit] = answer[start + head * stack.keys + place] ?? 0));
    return row;
  });
  const mean = order.map((_, unit) => byHead.reduce((sum, row) => sum + (row[unit] ?? 0), 0) / stack.heads);
  return { reading: { heads: stack.heads, byHead, mean }, busy };
}

/** The largest difference of any weight between two readings. */
export function largestChange(one: Reading, other: Reading): number {
  return Math.max(0, ...one.byHead.flatMap((row, head) => row.map((each, unit) => Math.abs(each - (other.byHead[head]?.[unit] ?? 0)))));
}
