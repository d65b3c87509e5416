// A model's output for a run: the next token at one position, or the class, as glassformer/explorer/answers/outcomes.py.
import type { Ask, Attention, HeadSweep, Part } from "../source";
import type { Pause } from "./attention";
import type { Pass } from "./model";
import { softmax } from "./products";
import { quoted, refusing, require, requireFinite } from "./refusing";
import type { KeptRun, Runs } from "./runs";
import { ranked } from "./sampling";

export interface Outcomes {
  run: KeptRun;
  /** Null for a classifier. */
  place: number | null;
  /** The logits without changes. */
  before: Float32Array;
  /** Their likeliest. */
  likeliest: number;
}

export async function outcomesOf(runs: Runs, { ask, place }: { ask: Ask; place: number | null }, pause: Pause): Promise<Outcomes> {
  require(!ask.changes, "a run with changes", "one without, to which they are compared", "Name the changes in the request itself.");
  const run = await runs.read(ask, pause);
  const last = run.message.tokens.length - 1;
  if (run.message.place === null) require(place === null, `place = ${place} of a classifier`, "none, as it judges the whole text", "Omit it.");
  else require(place === null || place <= last, `place = ${place}`, `0 to ${last}`, "Name a position of the text.");
  const own = place ?? run.message.place;
  const before = finite(runs.model.logits(run.reading, own));
  return { run, place: own, before, likeliest: ranked(before)[0]! };
}

/** The logits with edits. */
export async function after(runs: Runs, { run, place }: Outcomes, pass: Pass): Promise<Float32Array> {
  return finite(runs.model.logits((await runs.model.readAll(run.inputs, pass)).at(-1)!, place));
}

function finite(logits: Float32Array): Float32Array {
  requireFinite(softmax(logits), "Change less, or look for NaN in the weights.");
  return logits;
}

/** The outcome that a request names, or the likeliest before. */
export function chosen({ before, likeliest }: Outcomes, asked: number | null, name = "target"): number {
  const last = before.length - 1;
  require((asked ?? 0) <= last, `${name} = ${asked}`, `0 to ${last}`, "Name one of the outcomes of the call 'whatif'.");
  return asked ?? likeliest;
}

/** The outcome that is asked for, and the one that it is compared with. */
export type Pair = Pick<HeadSweep, "target" | "name" | "other" | "other_name">;

export function pairOf(runs: Runs, outcomes: Outcomes, ask: { target: number | null; other: number | null }): Pair {
  const target = chosen(outcomes, ask.target);
  const other = ask.other === null ? null : chosen(outcomes, ask.other, "other");
  return { target, name: runs.name(target), other, other_name: other === null ? null : runs.name(other) };
}

/** Whether the logits are a linear map of the normed stream. */
export const isRead = ({ model }: Runs): boolean => model.config.pooling !== "max";

export function requireRead(runs: Runs, { run }: Outcomes, what: string): void {
  const expected = "a model whose logits are a linear map of its normed stream";
  require(isRead(runs), `${what} of ${quoted(run.message.ask.model)}`, expected, "Use another view.");
}

/** The attention of a part. */
export function attentionOf({ run }: Outcomes, part: Part): Attention {
  const { attentions } = run.message;
  const parts = attentions.map((each) => each.part).join(", ");
  const found = attentions.find((each) => each.part === part);
  return found ?? refusing(`a change of part = '${part}'`, `one of ${parts}`, "See the attentions of the run.");
}

/** Refuses a layer that is not below `sizes.layers`, and so on for whatever a change names. */
export function requireIn(sizes: object, named: object, what: string): void {
  const [known, counts] = [Object.entries(named), sizes as Record<string, number>];
  for (const [name, index] of known) {
    const count = counts[name === "query" ? "queries" : `${name}s`];
    if (count !== undefined) require(index < count, `${what}: ${name} = ${index}`, `0 to ${count - 1}`, "Count from 0.");
  }
}
