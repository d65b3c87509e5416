// Attention of single queries, and the inputs of a layer's attention, which are kept.
import { capped } from "./layers";
import { dot, zeros, type Numbers } from "./products";

/** Called between the parts of a computation: others have their turn; throws where the answer is not wanted any more. */
export type Pause = () => Promise<void>;

/** Whether a query of a head may not attend to a key. */
export type Forbids = (head: number, query: number, key: number) => boolean;

/** What one layer attended with. Rows are [position, head * head_dim]; of a causal layer the last query is at the last key. */
export interface Attended<T extends Numbers = Float32Array> {
  q: T;
  k: T;
  v: T;
  heads: number;
  headDim: number;
  /** Query heads for each head of keys and values. */
  group: number;
  scale: number;
  cap: number | null;
  causal: boolean;
  window: number | null;
  keyWeights: T | null;
  sinks: T | null;
  forbids: Forbids | null;
}

export const queriesOf = ({ q, heads, headDim }: Attended<Numbers>): number => q.length / (heads * headDim);
export const keysOf = ({ k, heads, headDim, group }: Attended<Numbers>): number => (k.length * group) / (heads * headDim);

/**
 * The weights of one query of a head, in `weights` at the places of the keys that it sees; the range of these is returned:
 *
 *     scores[j]  = scale * keyWeights[h] * q[h, i] . k[g, j]      for position - window < j <= position; -inf where forbidden
 *     weights[j] = exp(scores[j]) / (exp(sinks[h]) + sum_j' exp(scores[j']))      0 if all are forbidden
 */
export function attendTo(
  call: Attended<Numbers>, head: number, query: number, weights: Float64Array,
): [first: number, end: number] {
  const { q, k, heads, headDim, group, scale, cap, causal, window, keyWeights, sinks, forbids } = call;
  const position = keysOf(call) - queriesOf(call) + query;
  const first = window === null ? 0 : Math.max(0, position - window + 1);
  const end = causal ? position + 1 : keysOf(call);
  const width = (heads / group) * headDim;
  const place = Math.floor(head / group) * headDim;
  const factor = scale * (keyWeights ? keyWeights[head]! : 1);
  let most = sinks ? sinks[head]! : -Infinity;
  for (let key = first; key < end; key++) {
    const product = factor * dot(q, (query * heads + head) * headDim, k, key * width + place, headDim);
    const score = forbids?.(head, query, key) ? -Infinity : capped(product, cap);
    weights[key] = score;
    if (score > most) most = score;
  }
  if (most === -Infinity) {
    weights.fill(0, first, end);
    return [first, end];
  }
  let total = sinks ? Math.exp(sinks[head]! - most) : 0;
  for (let key = first; key < end; key++) total += weights[key] = Math.exp(weights[key]! - most);
  for (let key = first; key < end; key++) weights[key]! /= total;
  return [first, end];
}

/** `output[i, h] = sum_j weights[h, i, j] * v[g, j]` for every query and head; `pause` is called after every few queries. */
export async function attend<T extends Numbers>(call: Attended<T>, pause: Pause): Promise<T> {
  const { v, heads, headDim, group } = call;
  const [out, weights, width] = [zeros(call.q, call.q.length), new Float64Array(keysOf(call)), (heads / group) * headDim];
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
