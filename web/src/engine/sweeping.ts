// What removing each head alone does to an outcome, and having each place of a second text as in the first, in slices, as
// glassformer/explorer/answers/sweeping.py; here without the estimates.
import type { AskPatches, AskSweep, HeadSweep, Patches } from "../source";
import type { Pause } from "./attention";
import { after, outcomesOf, pairOf, type Outcomes, type Pair } from "./outcomes";
import { require } from "./refusing";
import type { Runs } from "./runs";
import { atPlace, otherText, streamsOf, withoutHead } from "./what-if";

/** Milliseconds after which a call returns what there is. */
const SLICE = 1000;

/** What is known of a sweep, and what computes the rest of it. */
interface UnderWay<T> {
  answer: T;
  left: Set<(pause: Pause) => Promise<void>>;
}

export function sweep(runs: Runs, ask: AskSweep, pause: Pause): Promise<HeadSweep> {
  return further("heads", runs, ask, pause, async (outcomes, pair) => {
    const all = <T>(layers: number, heads: number, value: T) => Array.from({ length: layers }, () => new Array<T>(heads).fill(value));
    const stacks = outcomes.run.message.attentions.map(({ part, label, layers, heads }) => {
      return { part, label, after: all<number | null>(layers, heads, null), exact: all(layers, heads, false) };
    });
    const left: UnderWay<HeadSweep>["left"] = new Set();
    for (const { part, after: values, exact } of stacks) {
      for (let layer = values.length - 1; layer >= 0; layer--) {
        for (const head of exact[layer]!.keys()) {
          left.add(async (pause) => {
            const hook = withoutHead(runs, { part, layer, head });
            values[layer]![head] = preference(await after(runs, outcomes, { pause, hook }), pair);
            exact[layer]![head] = true;
          });
        }
      }
    }
    return { left, answer: { ...pair, before: preference(outcomes.before, pair), stacks, done: 0, total: left.size } };
  });
}

export function patches(runs: Runs, ask: AskPatches, pause: Pause): Promise<Patches> {
  return further("places", runs, ask, pause, async (outcomes, pair) => {
    const second = await otherText(runs, outcomes, ask.second, pause);
    const changed = await outcomesOf(runs, { ...ask, ask: second.message.ask }, pause);
    const streams = await streamsOf(runs, outcomes.run, pause);
    const patched = streams.layers.map(() => streams.tokens.map((): number | null => null));
    const left: UnderWay<Patches>["left"] = new Set();
    // Where most is brought back: the tokens that differ, and the one that is answered after.
    const others = changed.run.message.tokens;
    const telling = (position: number) => streams.tokens[position] !== others[position] || position === others.length - 1;
    const positions = [...streams.tokens.keys()].sort((one, other) => Number(telling(other)) - Number(telling(one)));
    for (const position of positions) {
      for (const [layer, row] of patched.entries()) {
        left.add(async (pause) => {
          const hook = atPlace(runs, streams, layer, position);
          row[position] = preference(await after(runs, changed, { pause, hook }), pair);
        });
      }
    }
    const texts = { tokens: streams.tokens, second_tokens: changed.run.message.tokens };
    const [first, last] = [preference(outcomes.before, pair), preference(changed.before, pair)];
    return { left, answer: { ...pair, ...texts, first, second: last, patched, done: 0, total: left.size } };
  });
}

/** The newest sweep of its kind is taken further, or another one begun. */
async function further<T extends HeadSweep | Patches>(
  kind: "heads" | "places", runs: Runs, ask: AskSweep | AskPatches, pause: Pause,
  begin: (outcomes: Outcomes, pair: Pair) => Promise<UnderWay<T>>,
): Promise<T> {
  const until = performance.now() + SLICE;
  const name = JSON.stringify({ ...ask, done: null });
  let latest = runs.sweeps.get(kind) as ({ name: string } & UnderWay<T>) | undefined;
  if (latest?.name !== name) {
    const outcomes = await outcomesOf(runs, ask, pause);
    const pair = pairOf(runs, outcomes, ask);
    require(pair.target !== pair.other, `target = other = ${pair.target}`, "two outcomes", "Change one.");
    latest = { name, ...(await begin(outcomes, pair)) };
    runs.sweeps.set(kind, latest);
  }
  const { answer, left } = latest;
  for (const step of left) {
    if (performance.now() > until && (ask.done === null || answer.done > ask.done)) break;
    await step(pause);
    // Another call may have taken the same step.
    if (left.delete(step)) answer.done++;
  }
  return structuredClone(answer);
}

/** `log(p / (1 - p))` of the target, or `log(p / q)` with q of the other outcome. */
function preference(logits: Float32Array, { target, other }: Pair): number {
  if (other !== null) return logits[target]! - logits[other]!;
  const others = logits.filter((_, outcome) => outcome !== target);
  const most = others.reduce((a, b) => Math.max(a, b), -Infinity);
  return logits[target]! - most - Math.log(others.reduce((sum, logit) => sum + Math.exp(logit - most), 0));
}
