// Facts about an attention stack that need no weights: its words and its mask.
import type { Attention, Run } from "../../source";
import type { Place, State } from "../../state";

export interface Words {
  queries: string[];
  keys: string[];
}

/** The stack that the state names; without a name cross-attention, through which an encoder-decoder answers, or the only one. */
export function chosenStack(run: Run, state: Pick<State, "part">): Attention | null {
  return run.attentions.find((each) => each.part === (state.part ?? "cross")) ?? run.attentions[0] ?? null;
}

/** The closest layer and head that exist. */
export function within(place: Place, stack: Attention): Place {
  return { layer: Math.min(place.layer, stack.layers - 1), head: Math.min(place.head, stack.heads - 1) };
}

export const samePlace = (one: Place | null, other: Place | null): boolean =>
  one?.layer === other?.layer && one?.head === other?.head;

export const named = ({ layer, head }: Place): string => `layer ${layer}, head ${head}`;

export function wordsOf(run: Run, stack: Attention): Words {
  const of = (whose: "tokens" | "source", count: number): string[] => {
    const words = (whose === "tokens" ? run.tokens : run.source) ?? [];
    return Array.from({ length: count }, (_, place) => words[place] ?? String(place));
  };
  return { queries: of(stack.queries_are, stack.queries), keys: of(stack.keys_are, stack.keys) };
}

/** Whether queries and keys are the same words, so that a position means the same on both sides. */
export const alike = (stack: Attention): boolean =>
  stack.queries_are === stack.keys_are && stack.queries === stack.keys;

/** The keys that a query may attend to: from `first` to before `end`. */
export function seen(stack: Attention, layer: number, query: number): { first: number; end: number } {
  if (!stack.causal) return { first: 0, end: stack.keys };
  const own = stack.keys - stack.queries + query;
  const window = stack.windows[layer] ?? null;
  return { first: window === null ? 0 : Math.max(0, own - window + 1), end: Math.min(stack.keys, own + 1) };
}

/** Whether a query may attend to a key. */
export function sees(stack: Attention, layer: number, query: number, key: number): boolean {
  const { first, end } = seen(stack, layer, query);
  return key >= first && key < end;
}

/** What a label would not show: control characters, spaces but the plain one, and a token of joiners alone. */
const HIDDEN = /[\p{Cc}\p{Zl}\p{Zp}]|(?! )\p{Zs}|^\p{Cf}+$/gu;
const MARKS: Record<string, string> = { "\n": "\u21B5", "\r": "\u240D", "\t": "\u21E5", "\u00A0": "\u237D" };
const escaped = (letter: string) => `\\u${letter.codePointAt(0)?.toString(16).padStart(4, "0")}`;

/** A token with visible characters for invisible ones. */
export function revealed(word: string): string {
  return word.replace(HIDDEN, (found) => Array.from(found, (letter) => MARKS[letter] ?? escaped(letter)).join(""));
}

/** A token as a label: invisible characters are made visible, surrounding spaces removed, long tokens cut. */
export function shown(word: string, most = 16): string {
  const bare = word.trim() === "" ? word : word.replace(/^ +| +$/g, "");
  const text = bare === "" ? "\u2205" : revealed(bare);
  const visible = text.trim() === "" ? text.replace(/ /g, "\u2423") : text;
  const letters = Array.from(visible);
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}\u2026` : visible;
}

export interface Share {
  key: number;
  weight: number;
}

/** Smaller weights would be shown as 0.0 %. */
const FAINT = 5e-4;

/** The keys with the largest weights of a row, the largest first. */
export function most(row: Float32Array, count: number): Share[] {
  const best: Share[] = [];
  for (let key = 0; key < row.length; key += 1) {
    const weight = row[key] ?? 0;
    if (weight < FAINT || (best.length === count && weight <= (best[count - 1]?.weight ?? 0))) continue;
    let at = best.length;
    while (at > 0 && (best[at - 1]?.weight ?? 0) < weight) at -= 1;
    best.splice(at, 0, { key, weight });
    if (best.length > count) best.pop();
  }
  return best;
}

/** The share of a row's weight that goes to its sink. */
export function sinkShare(row: Float32Array): number {
  let sum = 0;
  for (const weight of row) sum += weight;
  return Math.min(1, Math.max(0, 1 - sum));
}
