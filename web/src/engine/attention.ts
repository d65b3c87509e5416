// Attention of single queries, and the inputs of a layer's attention, which are kept; a matrix is never held.
import { capped } from "./layers";
import { dot } from "./products";

/** What one layer attended with. Queries are the last positions of the keys; all rows are [position, head * head_dim]. */
export interface Attended {
  q: Float32Array;
  k: Float32Array;
  v: Float32Array;
  heads: number;
  headDim: number;
  /** Query heads for each head of keys and values. */
  group: number;
  scale: number;
  cap: number | null;
  window: number | null;
  keyWeights: Float32Array | null;
  sinks: Float32Array | null;
}

export const queriesOf = ({ q, heads, headDim }: Attended): number => q.length / (heads * headDim);
export const keysOf = ({ k, heads, headDim, group }: Attended): number => (k.length * group) / (heads * headDim);

/**
 * The weights of one query of a head, in `weights` at the places of the keys that it sees; the range of these is returned:
 *
 *     scores[j]  = scale * keyWeights[h] * q[h, i] . k[g, j]      for position - window < j <= position
 *     weights[j] = exp(scores[j]) / (exp(sinks[h]) + sum_j' exp(scores[j']))
 */
export function attendTo(call: Attended, head: number, query: number, weights: Float64Array): [first: number, end: number] {
  const { q, k, heads, headDim, group, scale, cap, window, keyWeights, sinks } = call;
  const position = keysOf(call) - queriesOf(call) + query;
  const first = window === null ? 0 : Math.max(0, position - window + 1);
  const end = position + 1;
  const width = (heads / group) * headDim;
  const place = Math.floor(head / group) * headDim;
  const factor = scale * (keyWeights ? keyWeights[head]! : 1);
  let most = sinks ? sinks[head]! : -Infinity;
  for (let key = first; key < end; key++) {
    const product = factor * dot(q, (query * heads + head) * headDim, k, key * width + place, headDim);
    const score = cap === null ? product : capped(product, cap);
    weights[key] = score;
    if (score > most) most = score;
  }
  let total = sinks ? Math.exp(sinks[head]! - most) : 0;
  for (let key = first; key < end; key++) total += weights[key] = Math.exp(weights[key]! - most);
  for (let key = first; key < end; key++) weights[key]! /= total;
  return [first, end];
}

/** `output[i, h] = sum_j weights[h, i, j] * v[g, j]` for every query and head; `pause` is called after every few queries. */
export async function attend(call: Attended, pause: () => Promise<void>): Promise<Float32Array> {
  const { v, heads, headDim, group } = call;
  const [out, weights, width] = [new Float32Array(call.q.length), new Float64Array(keysOf(call)), (heads / group) * headDim];
  const mixed = new Float64Array(headDim);
  for (let query = 0; query < queriesOf(call); query++) {
    for (let head = 0; head < heads; head++) {
      const [first, end] = attendTo(call, head, query, weights);
      const place = Math.floor(head / group) * headDim;
      mixed.fill(0);
      for (let key = first; key < end; key++) {
        const weight = weights[key]!;
        const from = key * width + place;
        for (let at = 0; at < headDim; at++) mixed[at]! += weight * v[from + at]!;
      }
      out.set(mixed, (query * heads + head) * headDim);
    }
    if (query % 16 === 15) await pause();
  }
  return out;
}
