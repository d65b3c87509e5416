// The heads whose removal does most to the chosen token or class, the first in a sentence. A click opens a head.
import { capital, Versus } from "../../parts";
import type { Attention, HeadSweep } from "../../source";
import type { Place, Store } from "../../state";
import { signed } from "../attention/reading";
import { named } from "../attention/stack";
import { namedEffect, type Effects } from "./effects";

interface StrongestProps {
  store: Store;
  stack: Attention;
  sweep: HeadSweep;
  effects: Effects;
}

/** What is left without a head: the probability, or where this does not show it, the change of the log-odds. */
function left(effects: Effects, place: Place): string {
  const chances = effects.chances(place);
  if (chances && chances.after !== chances.before) return chances.after;
  return `log-odds ${signed(effects.of(place) ?? 0)}`;
}

export function Strongest({ store, stack, sweep, effects }: StrongestProps) {
  const [first] = effects.strongest;
  if (!first) return null;
  const open = (place: Place) => store.set({ view: "attention", part: stack.part, ...place, pin: null }, true);
  const effect = effects.of(first) ?? 0;
  const chances = effects.chances(first);
  return (
    <>
      <p>
        {capital(named(first))} does most: without it, <Versus name={sweep.name} other={sweep.other_name} />{" "}
        {chances ? `goes from ${chances.before} to ${chances.after}` : `changes by ${signed(effect)} in log-odds`}
        {effects.exact(first) ? "." : ", by the estimate."}
      </p>
      <ol class="strongest" aria-label="The heads with the largest effects">
        {effects.strongest.map((place) => (
          <li>
            <button type="button" aria-label={`${named(place)}, ${signed(effects.of(place) ?? 0)}`} title={namedEffect(effects, place)} onClick={() => open(place)}>
              {place.layer}.{place.head}{": "}
              <span class="number">
                {left(effects, place)}
                {effects.exact(place) ? "" : " ?"}
              </span>
            </button>
          </li>
        ))}
      </ol>
    </>
  );
}
