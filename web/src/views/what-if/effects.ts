// What removing each head of a stack alone does to the log-odds of what the view is about.
import { share as chance } from "../../parts";
import type { Attention, HeadSweep } from "../../source";
import type { Place } from "../../state";
import { signed } from "../attention/reading";
import { named } from "../attention/stack";
import { chanceOf, strongest } from "./edits";

export interface Effects {
  /** Null: not computed. */
  of: (place: Place) => number | null;
  /** Whether it is computed, and not estimated. */
  exact: (place: Place) => boolean;
  /** The largest size in all stacks. */
  largest: number;
  /** The heads of the stack with the largest effects, estimated ones among them: at most ten. */
  strongest: Place[];
  inWords: (place: Place) => string;
  /** The probability without a head; null for an estimate, and where the log-odds are over another token or class. */
  chances: (place: Place) => { before: string; after: string } | null;
}

export function effectsOf(sweep: HeadSweep, stack: Attention): Effects {
  const { before, other, stacks } = sweep;
  const { after, exact } = stacks.find(({ part }) => part === stack.part) ?? { after: [], exact: [] };
  const sizes = stacks.flatMap((each) => each.after.flat().map((value) => (value === null ? 0 : Math.abs(value - before))));
  const of = ({ layer, head }: Place) => {
    const value = after[layer]?.[head] ?? null;
    return value === null ? null : value - before;
  };
  const isExact = ({ layer, head }: Place) => exact[layer]?.[head] === true;
  const chances = (place: Place) =>
    // Log-odds over another one are no probability, and of an estimate it would look final.
    other === null && isExact(place) ? { before: chance(chanceOf(before)), after: chance(chanceOf(before + (of(place) ?? 0))) } : null;
  const inWords = (place: Place) => {
    const effect = of(place);
    if (effect === null) return "not computed";
    const known = chances(place);
    return `${signed(effect)}${isExact(place) ? "" : ", estimated"}${known ? `, ${known.before} to ${known.after}` : ""}`;
  };
  return { of, exact: isExact, largest: Math.max(1e-9, ...sizes), strongest: strongest(after, before), inWords, chances };
}

/** An effect beside its head's name, in words: "layer 1, head 5: −1.84, 92.3 % to 65.7 %". */
export const namedEffect = (effects: Effects, place: Place): string => `${named(place)}: ${effects.inWords(place)}`;
