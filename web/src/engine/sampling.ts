// From logits to the next token: temperature, top-k and top-p, and the seeded draw, as glassformer/generation/sampling.py.
import { softmax, type Numbers } from "./products";

interface SamplingRule {
  temperature: number;
  top_k: number | null;
  top_p: number;
}

/** A set that misses top_p by less has reached it. */
const ROUNDING = 1e-11;

const isGreedy = ({ temperature, top_k, top_p }: SamplingRule): boolean => temperature === 0 || top_p === 0 || top_k === 1;

/** Tokens, the likeliest first; equally likely ones by their number. */
export const ranked = (logits: Numbers): number[] => [...logits.keys()].sort((a, b) => logits[b]! - logits[a]!);

/**
 *     p = softmax(logits / temperature)
 *     p = 0 outside the top_k most likely tokens, rescaled to sum 1
 *     p = 0 outside the smallest set of most likely tokens with sum p >= top_p (at least one token), rescaled to sum 1
 */
export function distribution(logits: Numbers, rule: SamplingRule): Float64Array {
  const found = new Float64Array(logits.length);
  const tokens = ranked(logits);
  if (isGreedy(rule)) {
    found[tokens[0]!] = 1;
    return found;
  }
  const kept = tokens.slice(0, rule.top_k ?? tokens.length);
  const shares = softmax(kept.map((token) => logits[token]!), rule.temperature);
  let [before, total] = [0, 0];
  const within = shares.map((share, rank) => {
    const inside = rank === 0 || rule.top_p === 1 || before < rule.top_p - ROUNDING;
    before += share;
    total += inside ? share : 0;
    return inside ? share : 0;
  });
  kept.forEach((token, rank) => (found[token] = rule.top_p < 1 ? within[rank]! / total : within[rank]!));
  return found;
}

/** The token that a rule chooses at a position: of a seed always the same. */
export function choose(logits: Float32Array, rule: SamplingRule, seed: number, position: number): number {
  if (isGreedy(rule)) return ranked(logits)[0]!;
  let sum = 0;
  const reached = distribution(logits, rule).map((share) => (sum += share));
  const drawn = uniform(seed, position) * sum;
  return reached.findIndex((share) => share > drawn);
}

/** The number below 1 that numpy's SeedSequence(seed, spawn_key=(position,)) and torch's generator draw. */
export function uniform(seed: number, position: number): number {
  const [low, high] = seedSequence(seed, position);
  const words = mersenneTwister(((low >>> 1) | (high << 31)) >>> 0);
  return ((words.next().value & 0x1fffff) * 2 ** 32 + words.next().value) * 2 ** -53;
}

/** Two words of numpy's SeedSequence (O'Neill 2015, "Developing a seed_seq alternative"). */
function seedSequence(seed: number, position: number): [low: number, high: number] {
  const entropy = [seed >>> 0, Math.floor(seed / 2 ** 32), 0, 0, position];
  const hashing = (start: number, factor: number) => {
    let constant = start;
    return (value: number) => {
      const mixed = value ^ constant;
      constant = Math.imul(constant, factor);
      const product = Math.imul(mixed, constant);
      return product ^ (product >>> 16);
    };
  };
  const mix = (x: number, y: number) => {
    const product = Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y);
    return product ^ (product >>> 16);
  };
  const hash = hashing(0x43b0d7e5, 0x931e8875);
  const pool = entropy.slice(0, 4).map(hash);
  for (let from = 0; from < 4; from++) {
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to]!, hash(pool[from]!));
  }
  for (let to = 0; to < 4; to++) pool[to] = mix(pool[to]!, hash(entropy[4]!));
  const output = hashing(0x8b51f9dd, 0x58f38ded);
  return [output(pool[0]!) >>> 0, output(pool[1]!) >>> 0];
}

/** The words of MT19937 (Matsumoto and Nishimura 1998) after a seed of one word: torch's generator. */
export function* mersenneTwister(seed: number): Generator<number, never> {
  const state = new Uint32Array(624);
  state[0] = seed;
  for (let at = 1; at < state.length; at++) {
    const before = state[at - 1]!;
    state[at] = Math.imul(1812433253, before ^ (before >>> 30)) + at;
  }
  for (let at = 0; ; at = (at + 1) % 624) {
    const joined = (state[at]! & 0x80000000) | (state[(at + 1) % 624]! & 0x7fffffff);
    let y = (state[at] = state[(at + 397) % 624]! ^ (joined >>> 1) ^ (joined & 1 ? 0x9908b0df : 0));
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    yield (y ^ (y >>> 18)) >>> 0;
  }
}
