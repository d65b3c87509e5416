// Runs of the model on texts, kept within bounds, as glassformer/explorer/answers/runs.py and forward.py.
import { Unknown, type Ask, type Attention, type Part, type Run } from "../source";
import type { Attended, Pause } from "./attention";
import type { Codec } from "./codecs";
import { layerWindow, type ModelConfig } from "./config";
import { percent } from "./formatting";
import { Matrices } from "./matrices";
import type { Model, Pass, Reading } from "./model";
import { dot, softmax } from "./products";
import { quoted, require } from "./refusing";
import { ranked } from "./sampling";

export interface Kept {
  message: Run;
  matrices: Map<Part, Matrices>;
}

export interface KeptRun extends Kept {
  /** The tokens of each stack. */
  inputs: number[][][];
  /** Of the stack that is read out. */
  reading: Reading;
}

const [MOST_BYTES, SHOWN_CLASSES] = [256 * 2 ** 20, 8];
const NOT_FINITE = "logits that are not finite";
const LABELS: Record<Part, string> = {
  self: "self-attention",
  encoder: "encoder's self-attention",
  decoder: "decoder's self-attention",
  cross: "cross-attention",
};

/** The newest runs of a model, which take so many bytes. */
export abstract class KeptRuns<T extends Kept> {
  private readonly kept = new Map<string, T>();

  constructor(private readonly kind: ModelConfig["kind"] | "head" | "program") {}

  abstract read(ask: Ask, pause: Pause): Promise<T>;

  of(name: string): T {
    const found = this.kept.get(name);
    if (!found) throw new Unknown({ got: `the run ${quoted(name)}`, expected: "the name of an earlier run", fix: "Make the call 'run' again." });
    return found;
  }

  protected async once(ask: Ask, read: (name: string) => Promise<T>): Promise<T> {
    this.requireReadable(ask);
    const name = JSON.stringify([ask.model, ask.text, ask.source, ask.order, ask.weights, ask.changes]);
    const known = this.kept.get(name);
    if (known) return known;
    const found = await read(name);
    this.kept.set(name, found);
    let size = 0;
    for (const [each, { matrices }] of [...this.kept].reverse()) {
      for (const stack of matrices.values()) size += stack.size;
      if (size > MOST_BYTES && each !== name) this.kept.delete(each);
    }
    return found;
  }

  /** Refuses a request for what this kind of model does not read. */
  private requireReadable(ask: Ask): void {
    const [name, kind] = [quoted(ask.model), this.kind];
    const got = `weights for ${name}, whose kind is ${kind}`;
    require(ask.weights === null || kind === "head", got, "a text alone", "Omit weights, or choose a hand-designed head.");
    require(!ask.changes || (kind !== "head" && kind !== "program"), `${name}, a ${kind}`, "a model that predicts", "Choose another one.");
    const fits = kind === "encoder_decoder" || (ask.source === null && ask.order === null);
    require(fits, `a source for ${name}`, "a text alone", "Omit source and order, or choose an encoder-decoder.");
  }
}

/** Runs of a transformer. */
export class Runs extends KeptRuns<KeptRun> {
  /** What was read last of a decoder, from which a text that goes on is read on. */
  latest: Reading | null = null;
  /** The newest sweeps, by their kind. */
  readonly sweeps = new Map<string, unknown>();

  /** @param edited The forward pass with the changes of a request. */
  constructor(
    readonly model: Model,
    readonly codec: Codec,
    private readonly edited: (runs: Runs, ask: Ask, pause: Pause) => Promise<Pass>,
  ) {
    super(model.config.kind);
  }

  /** The name of a token that the model predicts, or of a class. */
  name(outcome: number): string {
    return this.model.config.classes[outcome] ?? this.codec.word(outcome);
  }

  read(ask: Ask, pause: Pause): Promise<KeptRun> {
    const read = ask.changes ? this.readChanged : this.codec.source ? this.readBoth : this.readOne;
    return this.once(ask, (name) => read.call(this, name, ask, pause));
  }

  private async readOne(name: string, ask: Ask, pause: Pause): Promise<KeptRun> {
    const tokens = this.codec.encode(ask.text);
    const inputs = [tokens.map((token) => [token])];
    const place = this.model.config.kind === "decoder" ? tokens.length - 1 : null;
    const found = await this.keeping(name, ask, null, inputs, place, { pause });
    this.latest = found.reading;
    return found;
  }

  /** The tokens of the run without changes, read with them. */
  private async readChanged(name: string, ask: Ask, pause: Pause): Promise<KeptRun> {
    const { message, inputs } = await this.read({ ...ask, changes: null }, pause);
    return this.keeping(name, ask, message.source, inputs, message.place ?? null, await this.edited(this, ask, pause));
  }

  /** The tokens are generated first; then all of them are read at once. */
  private async readBoth(name: string, ask: Ask, pause: Pause): Promise<KeptRun> {
    const { codec, model } = this;
    const { given, read, most, end } = codec.source!;
    const units = inOrder(ask.source ?? given, ask.order);
    const source = read(units);
    const target = codec.encode(ask.text).map((token) => [token]);
    const place = target.length - 1;
    const [memory] = await model.readAll([source], { pause });
    const room = Math.min(codec.longest - target.length + 1, most);
    const [written, kept]: [number[], Float32Array[]] = [[], []];
    while (written.length < room && (written.length === 0 || written.at(-1) !== end)) {
      const logits = model.logits(await model.read(model.last, target, { pause }, null, memory), target.length - 1);
      kept.push(logits);
      if (!softmax(logits).every(Number.isFinite)) break;
      written.push(ranked(logits)[0]!);
      target.push([written.at(-1)!]);
    }
    const finite = kept.length === written.length;
    const inputs = [source, finite ? target.slice(0, -1) : target];
    const words = written.map(codec.word);
    const shown = written.flatMap((token, at) => (token === end ? [] : [words[at]!]));
    const { classes } = this.said("", kept[0]!);
    const share = classes[0] && finite ? percent(classes[0][1]) : `then ${NOT_FINITE}`;
    const headline = words.length ? `${shown.join(" ") || words[0]}, ${share}` : NOT_FINITE;
    return this.keeping(name, ask, units, inputs, place, { pause }, { headline, classes, words });
  }

  /** Reads the tokens; what the model says is its logits at `place`, unless it is known. */
  private async keeping(
    run: string, ask: Ask, source: string[] | null, inputs: number[][][], place: number | null, pass: Pass, known?: Run["said"],
  ): Promise<KeptRun> {
    const { config } = this.model;
    const readings = await this.model.readAll(inputs, pass);
    const said = known ?? this.said(place === null ? "" : "next: ", this.model.logits(readings.at(-1)!, place));
    const matrices = new Map<Part, Matrices>();
    const attentions: Attention[] = [];
    const stacks = readings.flatMap(({ attended, crossed }, at) => [
      { part: config.stacks[at]!.part, layers: attended, queries: inputs[at]!, keys: inputs[at]! },
      { part: "cross" as const, layers: crossed, queries: inputs[at]!, keys: inputs[0]! },
    ]);
    for (const { part, layers, queries, keys } of stacks.filter((each) => each.layers.length > 0)) {
      const { prefix } = config.stacks.find((stack) => stack.part === part) ?? this.model.last;
      const name = (layer: number) => `${prefix}layers.${layer}.${part === "cross" ? "cross_attention" : "attention"}.output.weight`;
      const sizes = (layer: number, head: number) => valueSizes(layers[layer]!, head, this.model.weights.of(name(layer)));
      matrices.set(part, new Matrices(layers, part === "cross", sizes));
      attentions.push({
        part,
        label: LABELS[part],
        layers: layers.length,
        heads: config.num_heads,
        queries: queries.length,
        keys: keys.length,
        queries_are: part === "encoder" ? "source" : "tokens",
        keys_are: part === "encoder" || part === "cross" ? "source" : "tokens",
        causal: layers[0]!.causal,
        windows: layers.map((_, layer) => layerWindow(config, layer)),
        sinks: layers.some(({ sinks }) => sinks !== null),
      });
    }
    const tokens = this.codec.labels(inputs.at(-1)!.map(([token]) => token!));
    return { message: { run, ask, tokens, source, attentions, said, place }, inputs, reading: readings.at(-1)!, matrices };
  }

  private said(begin: string, logits: Float32Array): Run["said"] {
    const shares = softmax(logits);
    if (!shares.every(Number.isFinite)) return { headline: NOT_FINITE, classes: [], words: [] };
    const classes = ranked(logits).slice(0, SHOWN_CLASSES).map((each): [string, number] => [this.name(each), shares[each]!]);
    const [best, share] = classes[0]!;
    return { headline: `${begin}${/[\p{L}\p{N}]/u.test(best) ? best : `\u201c${best}\u201d`}, ${percent(share)}`, classes, words: [] };
  }
}

/** The length of each key's value after the output projection, `|W_h v[g, j]|`. */
function valueSizes({ v, heads, headDim, group }: Attended, head: number, output: Float32Array): Float32Array {
  const [inside, width, from] = [heads * headDim, (heads / group) * headDim, Math.floor(head / group) * headDim];
  return Float32Array.from({ length: v.length / width }, (_, key) => {
    let squares = 0;
    for (let row = head * headDim; row < output.length; row += inside) squares += dot(output, row, v, key * width + from, headDim) ** 2;
    return Math.sqrt(squares);
  });
}

/** Units in another order: place i is read from unit order[i]. */
export function inOrder<T>(units: T[], order: number[] | null): T[] {
  require(units.length > 0, "an empty source", "at least one unit", "Add one.");
  if (order === null) return units;
  const got = `order = [${order.slice(0, 20).join(", ")}] of ${units.length} units`;
  const fits = order.length === units.length && units.every((_, place) => order.includes(place));
  require(fits, got, `every number from 0 to ${units.length - 1} once`, "Name every place once: place i is read from unit order[i].");
  return order.map((place) => units[place]!);
}
