// What removing each head alone does to an outcome, in slices, as glassformer/explorer/answers/sweeping.py; here without the
// estimates.
import type { AskPatches, AskSweep, HeadSweep, Patches } from "../source";
import type { Pause } from "./attention";
import { after, chosen, outcomesOf, type Outcomes } from "./outcomes";
import { require } from "./refusing";
import type { Runs } from "./runs";
import { atPlace, otherText, streamsOf, withoutHead } from "./what-if";

/** Milliseconds after which a call returns what there is. */
const SLICE = 1000;

export class Sweeping {
  /** What was asked for last, which each call takes further. */
  private latest: { name: string; answer: HeadSweep } | null = null;

  constructor(private readonly runs: Runs) {}

  async sweep(ask: AskSweep, pause: Pause): Promise<HeadSweep> {
    const { runs } = this;
    const begun = performance.now();
    const outcomes = await outcomesOf(runs, ask, pause);
    const { target, other } = pair(outcomes, ask);
    const name = JSON.stringify([outcomes.run.message.run, outcomes.place, target, other]);
    const answer = this.latest?.name === name ? this.latest.answer : empty(runs, outcomes, target, other);
    this.latest = { name, answer };
    for (const { part, after: values, exact } of answer.stacks) {
      for (let layer = values.length - 1; layer >= 0; layer--) {
        for (const [head, sure] of exact[layer]!.entries()) {
          const more = ask.done === null || answer.done > ask.done;
          if (sure || (more && performance.now() > begun + SLICE)) continue;
          const logits = await after(runs, outcomes, { pause, hook: withoutHead(runs, { part, layer, head }) });
          values[layer]![head] = preference(logits, target, other);
          exact[layer]![head] = true;
          answer.done++;
        }
      }
    }
    return structuredClone(answer);
  }
}

/** The same over the places of a second text, each as in the first. */
export class Patching {
  private latest: { name: string; answer: Patches } | null = null;

  constructor(private readonly runs: Runs) {}

  async patches(ask: AskPatches, pause: Pause): Promise<Patches> {
    const { runs } = this;
    const begun = performance.now();
    const outcomes = await outcomesOf(runs, ask, pause);
    const { target, other } = pair(outcomes, ask);
    const second = await otherText(runs, outcomes, ask.second, pause);
    const changed = await outcomesOf(runs, { ...ask, ask: second.message.ask }, pause);
    const streams = await streamsOf(runs, outcomes.run, pause);
    const name = JSON.stringify([outcomes.run.message.run, ask.second, outcomes.place, target, other]);
    const [layers, positions] = [streams.layers.length, streams.tokens.length];
    const answer: Patches = this.latest?.name === name ? this.latest.answer : {
      ...{ target, name: runs.name(target), other, other_name: other === null ? null : runs.name(other) },
      ...{ tokens: streams.tokens, second_tokens: changed.run.message.tokens, done: 0, total: layers * positions },
      ...{ first: preference(outcomes.before, target, other), second: preference(changed.before, target, other) },
      patched: Array.from({ length: layers }, () => new Array<number | null>(positions).fill(null)),
    };
    this.latest = { name, answer };
    for (const [layer, row] of answer.patched.entries()) {
      for (const position of row.keys()) {
        const more = ask.done === null || answer.done > ask.done;
        if (row[position] !== null || (more && performance.now() > begun + SLICE)) continue;
        row[position] = preference(await after(runs, changed, { pause, hook: atPlace(runs, streams, layer, position) }), target, other);
        answer.done++;
      }
    }
    return structuredClone(answer);
  }
}

/** The outcome that is asked for, and the one that it is compared with. */
function pair(outcomes: Outcomes, ask: AskSweep | AskPatches): { target: number; other: number | null } {
  const target = chosen(outcomes, ask.target);
  const other = ask.other === null ? null : chosen(outcomes, ask.other, "other");
  require(target !== other, `target = other = ${target}`, "two outcomes", "Change one.");
  return { target, other };
}

function empty(runs: Runs, { run, before }: Outcomes, target: number, other: number | null): HeadSweep {
  const { attentions } = run.message;
  const all = <T>(layers: number, heads: number, value: T) => Array.from({ length: layers }, () => new Array<T>(heads).fill(value));
  return {
    target,
    name: runs.name(target),
    other,
    other_name: other === null ? null : runs.name(other),
    before: preference(before, target, other),
    stacks: attentions.map(({ part, label, layers, heads }) => ({
      part,
      label,
      after: all<number | null>(layers, heads, null),
      exact: all(layers, heads, false),
    })),
    done: 0,
    total: attentions.reduce((sum, { layers, heads }) => sum + layers * heads, 0),
  };
}

/** `log(p / (1 - p))` of the target, or `log(p / q)` with q of the other outcome. */
function preference(logits: Float32Array, target: number, other: number | null): number {
  if (other !== null) return logits[target]! - logits[other]!;
  const others = logits.filter((_, outcome) => outcome !== target);
  const most = others.reduce((a, b) => Math.max(a, b), -Infinity);
  return logits[target]! - most - Math.log(others.reduce((sum, logit) => sum + Math.exp(logit - most), 0));
}
