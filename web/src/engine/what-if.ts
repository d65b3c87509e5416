// The output of a model with heads removed, edges of attention forbidden, the stream steered, or experts replaced, as
// glassformer/explorer/answers/what_if.py: each change is a hook of the forward pass, or forbids keys.
import type { Ask, AskWhatIf, Changes, Part, RemovedHead, ReplacedExpert, WhatIf } from "../source";
import type { Forbids, Pause } from "./attention";
import type { Hook, Model, Pass } from "./model";
import { rowsOf, softmax } from "./products";
import { require } from "./refusing";
import type { KeptRun, Runs } from "./runs";
import { ranked } from "./sampling";
import { after, attentionOf, chosen, isRead, outcomesOf, requireIn, requireRead, type Outcomes } from "./outcomes";

const [MOST_OUTCOMES, ALSO_AFTER] = [64, 8];

export async function whatif(runs: Runs, ask: AskWhatIf, pause: Pause): Promise<WhatIf> {
  const outcomes = await outcomesOf(runs, ask, pause);
  const before = softmax(outcomes.before);
  const target = chosen(outcomes, ask.target);
  const pass = await passOf(runs, outcomes, ask, pause);
  const changed = pass ? softmax(await after(runs, outcomes, pass)) : before;
  const other = ask.other === null ? target : chosen(outcomes, ask.other, "other");
  const named = [target, other, ...(ask.steer ? [ask.steer.toward, ask.steer.away ?? target] : [])];
  const listed = new Set([...ranked(before).slice(0, MOST_OUTCOMES), ...ranked(changed).slice(0, ALSO_AFTER), ...named]);
  const largest = before.map((share, each) => Math.max(share, changed[each]!));
  const outside = [...before.keys()].filter((each) => !listed.has(each));
  const sum = (shares: Float64Array) => outside.reduce((all, each) => all + shares[each]!, 0);
  return {
    kind: outcomes.place === null ? "class" : "token",
    place: outcomes.place,
    target,
    outcomes: [...listed]
      .sort((a, b) => largest[b]! - largest[a]! || a - b)
      .map((id) => ({ id, name: runs.name(id), before: before[id]!, after: changed[id]! })),
    rest: outside.length,
    rest_before: sum(before),
    rest_after: sum(changed),
    distance: before.reduce((all, share, each) => all + Math.abs(share - changed[each]!), 0) / 2,
    offers: offersOf(runs, outcomes),
  };
}

/** The forward pass with changes; null without any. */
async function passOf(runs: Runs, outcomes: Outcomes, ask: Changes, pause: Pause): Promise<Pass | null> {
  const streams = ask.patch && (await streamsOf(runs, await otherText(runs, outcomes, ask.patch.text, pause), pause));
  for (const head of ask.removed) requireIn(attentionOf(outcomes, head.part), head, "a removed head");
  for (const edge of ask.forbidden) requireIn(attentionOf(outcomes, edge.part), edge, "a forbidden edge");
  const hooks = [
    ...ask.removed.map((head) => withoutHead(runs, head)),
    ...(ask.steer ? [steered(runs, outcomes, ask.steer)] : []),
    ...ask.swaps.map((swap) => replaced(runs, outcomes, swap)),
    ...(ask.patch ? [patched(runs, ask.patch, streams!)] : []),
  ];
  if (hooks.length + ask.forbidden.length === 0) return null;
  const hook: Hook = (...seen) => hooks.forEach((each) => each(...seen));
  return { pause, hook, forbids: (part, layer) => forbids(ask.forbidden, part, layer) };
}

/** The forward pass of a run with changes. */
export async function passOfRun(runs: Runs, ask: Ask, pause: Pause): Promise<Pass> {
  const outcomes = await outcomesOf(runs, { ask: { ...ask, changes: null }, place: null }, pause);
  return (await passOf(runs, outcomes, ask.changes!, pause)) ?? { pause };
}

function offersOf(runs: Runs, { run }: Outcomes): WhatIf["offers"] {
  const { norm_place: place } = runs.model.config;
  const read = isRead(runs);
  const offers: Record<WhatIf["offers"][number], boolean> = {
    heads: true,
    edges: true,
    steer: read,
    experts: run.reading.routed.length > 0,
    sweep: true,
    lens: read,
    contributions: read && place !== "sum",
  };
  return (Object.keys(offers) as WhatIf["offers"]).filter((offer) => offers[offer]);
}

/** Sets the output of a head to 0. */
export function withoutHead({ model }: Runs, head: RemovedHead): Hook {
  const { num_heads: heads, head_dim: width } = model.config;
  return (site, part, layer, values) => {
    if (site !== "heads" || part !== head.part || layer !== head.layer) return;
    for (let first = head.head * width; first < values.length; first += heads * width) values.fill(0, first, first + width);
  };
}

function forbids(edges: Changes["forbidden"], part: Part, layer: number): Forbids | null {
  const own = edges.filter((edge) => edge.part === part && (edge.layer ?? layer) === layer);
  if (own.length === 0) return null;
  return (head, query, key) => own.some((edge) => edge.query === query && edge.key === key && (edge.head ?? head) === head);
}

/** Adds `strength` times the stream's median length in the direction that raises the target most, at every position. */
function steered(runs: Runs, outcomes: Outcomes, asked: NonNullable<AskWhatIf["steer"]>): Hook {
  requireRead(runs, outcomes, "steering");
  const { last, config } = runs.model;
  requireIn({ layers: last.layers }, asked, "the steering");
  const toward = chosen(outcomes, asked.toward, "toward");
  const away = asked.away === null ? null : chosen(outcomes, asked.away, "away");
  require(toward !== away, `the steering: toward = away = ${toward}`, "two outcomes", "Change one.");
  const direction = towards(runs.model, toward, away);
  const length = Math.hypot(...direction) || 1e-30;
  return (site, part, layer, values) => {
    if (site !== "residual" || part !== last.part || layer !== asked.layer) return;
    const width = config.hidden_dim;
    const lengths = rowsOf(values as Float32Array, width).map((row) => Math.hypot(...row)).sort((a, b) => a - b);
    const median = lengths[Math.floor((lengths.length - 1) / 2)]!;
    for (let at = 0; at < values.length; at++) values[at]! += (asked.strength * median * direction[at % width]!) / length;
  };
}

/** The direction of the stream that raises one logit most, or its difference from another, through the final norm's weight. */
export function towards(model: Model, target: number, other: number | null): Float64Array {
  const width = model.config.hidden_dim;
  const rows = rowsOf(model.output, width);
  const weight = model.weights.maybe(`${model.last.prefix}final_norm.weight`);
  const difference = Float64Array.from(rows[target]!, (value, at) => value - (other === null ? 0 : rows[other]![at]!));
  return difference.map((value, at) => value * (weight ? weight[at]! : 1));
}

function replaced(runs: Runs, { run }: Outcomes, { layer: own, expert, instead }: ReplacedExpert): Hook {
  const { num_experts, top_k } = runs.model.config;
  const what = "a replaced expert";
  const layers = run.reading.routed.map(({ layer }) => layer);
  const known = layers.length ? `one of layers [${layers.join(", ")}]` : "a model with experts";
  require(layers.includes(own), `${what}: layer = ${own}`, known, "See the call 'experts'.");
  requireIn({ experts: num_experts!, insteads: num_experts! }, { expert, instead }, what);
  require(instead !== expert, `${what} that stays`, "another expert", "Change instead.");
  return (site, _, layer, values) => {
    if (site !== "router" || layer !== own) return;
    // Only where it was chosen does the other one get its share.
    const least = [...values].sort((a, b) => b - a)[top_k - 1]!;
    if (instead !== null && values[expert]! >= least) values[instead]! += values[expert]!;
    values[expert] = 0;
  };
}

/** The tokens of a text, and its stream after each layer. */
interface Streams {
  tokens: string[];
  layers: Float32Array[];
}

/** The run of a text with as many tokens. */
export async function otherText(runs: Runs, outcomes: Outcomes, text: string, pause: Pause): Promise<KeptRun> {
  require(!runs.codec.source, "two texts of an encoder-decoder", "a decoder or a classifier", "Choose another model.");
  const found = await runs.read({ ...outcomes.run.message.ask, text }, pause);
  const [one, other] = [outcomes.run.message.tokens.length, found.message.tokens.length];
  require(one === other, `texts of ${one} and ${other} tokens`, "as many in both", "Change words one for one.");
  return found;
}

export async function streamsOf(runs: Runs, { message, inputs }: KeptRun, pause: Pause): Promise<Streams> {
  const layers: Float32Array[] = [];
  const hook: Hook = (site, _, layer, values) => {
    if (site === "residual" && layer >= 0) layers.push(Float32Array.from(values));
  };
  await runs.model.readAll(inputs, { pause, hook });
  return { tokens: message.tokens, layers };
}

function patched(runs: Runs, { layer, position }: NonNullable<Changes["patch"]>, streams: Streams): Hook {
  requireIn({ layers: streams.layers.length, positions: streams.tokens.length }, { layer, position }, "a patch");
  return atPlace(runs, streams, layer, position);
}

/** Puts the stream of another text at one place. */
export function atPlace({ model }: Runs, { layers }: Streams, layer: number, position: number): Hook {
  const [first, end] = [position * model.config.hidden_dim, (position + 1) * model.config.hidden_dim];
  return (site, _, at, values) => {
    if (site === "residual" && at === layer) values.set(layers[layer]!.subarray(first, end), first);
  };
}
