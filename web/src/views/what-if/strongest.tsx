// The heads whose removal does most to the chosen token or class, the first in a sentence once the sweep has ended; what
// is only estimated stands apart. A click opens a head.
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
  const computed = effects.strongest.filter(effects.exact);
  const estimated = effects.strongest.filter((place) => !effects.exact(place));
  const [first] = computed;
  const ended = sweep.done >= sweep.total;
  const open = (place: Place) => store.set({ view: "attention", part: stack.part, ...place, pin: null }, true);
  const item = (place: Place, told: string) => (
    <li>
      <button type="button" aria-label={`${named(place)}, ${signed(effects.of(place) ?? 0)}`} title={namedEffect(effects, place)} onClick={() => open(place)}>
        {place.layer}.{place.head}{": "}
        <span class="number">{told}</span>
      </button>
    </li>
  );
  return (
    <>
      {first && ended && <Most {...{ sweep, effects, first }} />}
      {first && !ended && <p>Computed so far:</p>}
      {first && (
        <ol class="strongest" aria-label="The heads with the largest effects">
          {computed.map((place) => item(place, left(effects, place)))}
        </ol>
      )}
      {estimated.length > 0 && (
        <>
          <p>{ended ? "Estimates, in log-odds:" : "Estimates, exact values follow (in log-odds):"}</p>
          <ol class="strongest" aria-label="Estimates">
            {estimated.map((place) => item(place, `about ${signed(effects.of(place) ?? 0)}`))}
          </ol>
        </>
      )}
    </>
  );
}

function Most({ sweep, effects, first }: Pick<StrongestProps, "sweep" | "effects"> & { first: Place }) {
  const chances = effects.chances(first);
  return (
    <p>
      {capital(named(first))} does most: without it, <Versus name={sweep.name} other={sweep.other_name} />{" "}
      {chances ? `goes from ${chances.before} to ${chances.after}` : `changes by ${signed(effects.of(first) ?? 0)} in log-odds`}.
    </p>
  );
}
