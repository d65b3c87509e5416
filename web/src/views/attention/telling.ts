// The head that stands out for a text: of those that read an earlier token, the one that adds most to the answer's logit.
import { useEffect, useState } from "preact/hooks";
import type { Attention, Contributions, ModelCard, Run, Source } from "../../source";
import { isOpen, type Address, type Place, type State, type Store } from "../../state";

/** The least weight on one key, and the least that a head adds to the logit. */
export const LEAST = { weight: 0.3, added: 0.25, induction: 0.4 };
/** How many heads are looked at, those that add most. */
const MOST = 12;

export interface Telling extends Place {
  /** The query that is pinned. */
  pin: number;
  /** The key that it reads, and with which weight. */
  key: number;
  weight: number;
  /** What the head adds to the logit of the answer; null where that is not known: it is an induction head. */
  added: number | null;
}

/** What was found for a run. */
export interface Told {
  run: string;
  /** Null: no head stands out. */
  head: Telling | null;
  /** The answer; null where what heads add to its logit is not known. */
  answer: string | null;
}

type Candidate = Place & { added: number | null };

/** The head that stands out in a decoder's run. Rejects as `source.ask` does. */
export async function tellingHead(source: Source, run: Run, signal?: AbortSignal): Promise<Told> {
  const stack = run.attentions[0];
  const query = run.place;
  if (!stack || query === null) return { run: run.run, head: null, answer: null };
  const contributions = await contributionsOf(source, run, signal);
  const heads = contributions ? adding(contributions, stack) : await inducing(source, run, signal);
  const asked = { run: run.run, part: stack.part, query, passed: false };
  const rows = await Promise.all(heads.slice(0, MOST).map(({ layer, head }) => source.ask("rows", { ...asked, layer, head }, signal)));
  const found = rows.flatMap((row, at) => {
    const key = row.reduce((best, weight, each) => (weight > row[best]! ? each : best), 0);
    const read = { ...heads[at]!, pin: query, key, weight: row[key]! };
    // Heads rest on the first token; what a token says of itself needs no head.
    return key > 0 && key !== query && read.weight >= LEAST.weight ? [read] : [];
  });
  return { run: run.run, head: found[0] ?? null, answer: contributions?.name ?? null };
}

/** Null where a logit is no sum over the parts of the model. */
async function contributionsOf(source: Source, run: Run, signal?: AbortSignal): Promise<Contributions | null> {
  try {
    return await source.ask("contributions", { ask: run.ask, place: null, target: null, other: null }, signal);
  } catch (error) {
    if (signal?.aborted) throw error;
    return null;
  }
}

const adding = ({ parts }: Contributions, stack: Attention): Candidate[] =>
  parts
    .filter(({ kind, part, value }) => kind === "head" && part === stack.part && value >= LEAST.added)
    .sort((one, other) => other.value - one.value)
    .map(({ layer, number, value }) => ({ layer: layer!, head: number!, added: value }));

/** The induction heads, the strongest first. */
async function inducing(source: Source, run: Run, signal?: AbortSignal): Promise<Candidate[]> {
  const { induction } = await source.ask("detect", { model: run.ask.model }, signal);
  return induction
    .flatMap((row, layer) => row.map((score, head) => ({ layer, head, added: null, score })))
    .filter(({ score }) => score >= LEAST.induction)
    .sort((one, other) => other.score - one.score)
    .map(({ layer, head, added }) => ({ layer, head, added }));
}

/** What stands out in the run of a decoder whose head is left open; null for others. */
export function useTelling(source: Source, card: ModelCard | null, address: Address, view: State["view"], run: Run | null): Told | "looking" | null {
  const [told, setTold] = useState<Told | null>(null);
  const wanted = view === "attention" && card?.kind === "decoder" && isOpen(address) && source.answers("contributions") ? run : null;
  useEffect(() => {
    if (!wanted || told?.run === wanted.run) return;
    const aborted = new AbortController();
    const nothing = { run: wanted.run, head: null, answer: null };
    tellingHead(source, wanted, aborted.signal).then(setTold, () => aborted.signal.aborted || setTold(nothing));
    return () => aborted.abort();
  }, [source, wanted?.run]);
  if (!wanted) return null;
  return told?.run === wanted.run ? told : "looking";
}

/** The fields that say which head is shown, and what is pinned. */
type Shown = Pick<State, "layer" | "head" | "pin">;

const NAMING = ["layer", "head", "pin", "key", "versus", "pinned"] as const;

/**
 * A store for an address that leaves the head open: a change of the head or of what is pinned, and a change of the view
 * when something is pinned, begin with what is shown. Another text or model leaves the head open.
 */
export function beginningWith(store: Store, { layer, head, pin }: Shown): Store {
  return {
    ...store,
    set(change, step) {
      const names = NAMING.some((name) => name in change) || (pin !== null && "view" in change);
      const reads = "text" in change || "model" in change;
      store.set(names && !reads ? { layer, head, pin, ...change } : change, step);
    },
  };
}
