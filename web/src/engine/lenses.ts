// What the residual stream predicts after each layer, and what each part of a model adds to a logit, as
// glassformer/explorer/answers/lenses.py and glassformer/observe/lens.py.
import type { AskContributions, AskFfn, AskLens, Contribution, Contributions, Ffn, Lens } from "../source";
import type { Pause } from "./attention";
import type { Hook, Model } from "./model";
import { dot, linear, rowsOf, softmax, type Numbers } from "./products";
import { require, requireFinite } from "./refusing";
import type { Runs } from "./runs";
import { ranked } from "./sampling";
import { chosen, outcomesOf, pairOf, requireRead } from "./outcomes";
import { towards } from "./what-if";

const [MOST_POSITIONS, MOST_ADDED] = [64, 8];

export async function lens(runs: Runs, ask: AskLens, pause: Pause): Promise<Lens> {
  const outcomes = await outcomesOf(runs, ask, pause);
  requireRead(runs, outcomes, "a lens");
  const target = chosen(outcomes, ask.target);
  const { message, inputs } = outcomes.run;
  const words = outcomes.place === null ? [""] : message.tokens;
  require(ask.first < words.length, `first = ${ask.first}`, `0 to ${words.length - 1}`, "Name a position of the text.");
  const positions = words.slice(ask.first, ask.first + MOST_POSITIONS);
  const { model } = runs;
  const width = model.config.hidden_dim;
  const found: Lens = {
    target,
    name: runs.name(target),
    first: ask.first,
    stages: [],
    positions,
    names: [],
    probabilities: [],
    targets: [],
  };
  const hook: Hook = (site, part, layer, values) => {
    if (site !== "residual" || part !== model.last.part) return;
    const stream = values as Float32Array;
    const rows = outcomes.place === null ? stream : stream.subarray(ask.first * width, (ask.first + positions.length) * width);
    const logits = model.readOut(rows, inputs.at(-1)!);
    const count = logits.length / positions.length;
    const shares = rowsOf(logits, count).map((row) => softmax(row));
    shares.forEach((each) => requireFinite(each));
    const best = shares.map((each) => ranked(each)[0]!);
    found.stages.push(layer < 0 ? "embedding" : `layer ${layer}`);
    found.names.push(best.map((each) => runs.name(each)));
    found.probabilities.push(best.map((each, at) => shares[at]![each]!));
    found.targets.push(shares.map((each) => each[target]!));
  };
  await model.readAll(inputs, { pause, hook });
  return found;
}

/**
 * The logit as a sum over the parts of the model: each adds the product of what it adds to the stream and the gradient there,
 * through the output matrix and the final norm with the scale that it has for the whole stream.
 */
export async function contributions(runs: Runs, ask: AskContributions, pause: Pause): Promise<Contributions> {
  const outcomes = await outcomesOf(runs, ask, pause);
  const pair = pairOf(runs, outcomes, ask);
  const { target, other } = pair;
  requireRead(runs, outcomes, "contributions");
  const { model } = runs;
  const { config, weights, last } = model;
  requireSum(model);
  const { inputs, reading } = outcomes.run;
  const width = config.hidden_dim;
  const alone = inputs.at(-1)!.map((_, at) => Number(at === outcomes.place));
  const shares = outcomes.place === null ? model.shares(inputs[0]!) : alone;
  const direction = towards(model, target, other);
  const gradients = rowsOf(reading.stream, width).map((row, at) => shares[at]! && gradient(model, row, direction, shares[at]!));
  const sum = (of: (gradient: Float64Array, at: number) => number) =>
    gradients.reduce<number>((all, each, at) => (each ? all + of(each, at) : all), 0);
  const along = (values: Numbers) => sum((each, at) => dot(each, 0, values, at * width, width));
  const difference = (values: Float32Array) => values[target]! - (other === null ? 0 : values[other]!);

  const part = (
    name: string, kind: Contribution["kind"], layer: number | null, value: number, more: Partial<Contribution> = {},
  ): Contribution => ({ name, kind, part: null, layer, number: null, value, ...more });
  const attention = (of: "self" | "decoder" | "cross", layer: number, heads: Numbers): Contribution[] => {
    const [name, module] = of === "cross" ? [`layer ${layer} cross-attention`, "cross_attention"] : [`layer ${layer}`, "attention"];
    const output = weights.of(`${last.prefix}layers.${layer}.${module}.output.weight`);
    const bias = weights.maybe(`${last.prefix}layers.${layer}.${module}.output.bias`);
    const [size, inside] = [config.head_dim, output.length / width];
    const found = Array.from({ length: config.num_heads }, (_, head) => {
      const alone = Float32Array.from(heads, (value, at) => (Math.floor((at % inside) / size) === head ? value : 0));
      const value = along(linear(alone, output, null, inside));
      return part(`${name} head ${head}`, "head", layer, value, { part: of, number: head });
    });
    if (!bias?.some((value) => value !== 0)) return found;
    const added = sum((each) => dot(each, 0, bias, 0, width));
    return [...found, part(of === "cross" ? `${name} bias` : `${name} attention bias`, "bias", layer, added)];
  };

  const parts: Contribution[] = [];
  let [attended, fed]: Contribution[][] = [[], []];
  const hook: Hook = (site, of, layer, values, token, expert) => {
    if (of === "encoder") return;
    if (site === "heads") attended!.push(...attention(of, layer, values));
    if (site === "ffn") fed!.push(part(`layer ${layer} ffn`, "ffn", layer, along(values)));
    if (site === "router" && token === 0) {
      fed = Array.from(values, (_, number) => part(`layer ${layer} expert ${number}`, "expert", layer, 0, { number }));
    }
    if (site === "expert" && gradients[token]) fed![expert]!.value += dot(gradients[token], 0, values, 0, width);
    if (site !== "residual") return;
    if (layer < 0) parts.push(part("embedding", "embedding", null, along(values)));
    parts.push(...fed!, ...attended!);
    [attended, fed] = [[], []];
  };
  await model.readAll(inputs, { pause, hook });

  const [normBias, outputBias] = [weights.maybe(`${last.prefix}final_norm.bias`), weights.maybe("output.bias")];
  const value = normBias ? difference(linear(normBias, model.output, null, width)) : 0;
  if (value !== 0) parts.push(part("norm bias", "bias", null, value));
  if (outputBias) parts.push(part("output bias", "bias", null, difference(outputBias)));
  return { ...pair, total: difference(outcomes.before), parts };
}

/** What the feed-forward network of a layer adds to all logits, and each of its neurons to that of the target. */
export async function ffn(runs: Runs, ask: AskFfn, pause: Pause): Promise<Ffn> {
  const outcomes = await outcomesOf(runs, ask, pause);
  const target = chosen(outcomes, ask.target);
  requireRead(runs, outcomes, "a feed-forward network");
  const { model } = runs;
  const { config, weights, last } = model;
  require(outcomes.place !== null, "a classifier", "a model that predicts tokens", "Use direct_logits().");
  requireSum(model);
  const [layers, place, width] = [config.ff_dim > 0 ? last.layers : 0, outcomes.place!, config.hidden_dim];
  const known = layers ? `one of layers [${Array.from({ length: layers }, (_, layer) => layer).join(", ")}]` : "a model with feed-forward networks";
  require(ask.layer < layers, `the feed-forward network of layer ${ask.layer}`, known, "Choose another layer.");
  const added = new Float32Array(width);
  let activations: Float32Array | null = null;
  const row = (values: Numbers, size: number) => values.slice(place * size, (place + 1) * size) as Float32Array;
  const hook: Hook = (site, of, layer, values, token) => {
    if (of !== last.part || layer !== ask.layer) return;
    if (site === "neurons") activations = row(values, config.ff_dim);
    if (site === "ffn") added.set(row(values, width));
    if (site === "expert" && token === place) values.forEach((value, at) => (added[at]! += value));
  };
  const { inputs, reading } = outcomes.run;
  await model.readAll(inputs, { pause, hook });
  const along = (direction: Float64Array) => gradient(model, reading.stream.subarray(place * width, (place + 1) * width), direction, 1);
  // What a vector adds to all logits: the gradient is the same map in the other direction.
  const normed = along(Float64Array.from(added));
  const weight = weights.maybe(`${last.prefix}final_norm.weight`);
  const logits = linear(Float32Array.from(normed, (value, at) => value * (weight ? weight[at]! : 1)), model.output, null, width);
  const best = ranked(logits);
  const named = (ids: number[]) => ids.map((id) => ({ id, name: runs.name(id), value: logits[id]! }));
  const down = weights.maybe(`${last.prefix}layers.${ask.layer}.ffn.down.weight`);
  return {
    layer: ask.layer,
    target,
    name: runs.name(target),
    value: logits[target]!,
    raised: named(best.slice(0, MOST_ADDED)),
    lowered: named(ranked(logits.map((value) => -value)).slice(0, MOST_ADDED)),
    neurons: activations && neuronsOf(activations, down!, along(towards(model, target, null))),
  };
}

/** The neurons that add most to what a direction of the stream stands for, or take most from it. */
function neuronsOf(activations: Float32Array, down: Float32Array, direction: Float64Array): Ffn["neurons"] {
  const count = activations.length;
  const values = new Float64Array(count);
  direction.forEach((value, at) => values.forEach((sum, neuron) => (values[neuron] = sum + value * down[at * count + neuron]!)));
  values.forEach((value, neuron) => (values[neuron] = value * activations[neuron]!));
  const order = [...values.keys()].sort((a, b) => Math.abs(values[b]!) - Math.abs(values[a]!)).slice(0, MOST_ADDED);
  return order.map((number) => ({ number, activation: activations[number]!, value: values[number]! }));
}

/** Refuses a model whose logits are not a sum over its parts. */
function requireSum({ config }: Model): void {
  const kind = { decoder: "Decoder", encoder: "Encoder", encoder_decoder: "EncoderDecoder" }[config.kind];
  const fits = config.norm_place === "before" && config.logit_cap === null;
  const got = `${kind} with norms after its parts, or with capped logits`;
  require(fits, got, "logits that are a sum over the parts", "Use logit_lens() (on the command line: --what lens).");
}

/** Of a logit that counts this much, in the stream x before the final norm, whose scale stays. */
function gradient({ config, weights, last }: Model, x: Float32Array, direction: Float64Array, share: number): Float64Array {
  if (!weights.maybe(`${last.prefix}final_norm.weight`)) return direction.map((value) => value * share);
  const centred = (values: Float64Array) => {
    const mean = config.norm === "layer" ? values.reduce((a, b) => a + b, 0) / values.length : 0;
    return values.map((value) => value - mean);
  };
  const squares = centred(Float64Array.from(x)).reduce((sum, value) => sum + value ** 2, 0);
  const factor = share / Math.sqrt(squares / x.length + config.norm_eps);
  return centred(direction).map((value) => value * factor);
}
