// The forward pass of a decoder, an encoder or an encoder-decoder, as in glassformer/models.
import type { Part } from "../source";
import { attend, type Attended, type Forbids, type Pause } from "./attention";
import { layerWindow, type ModelConfig, type Stack } from "./config";
import { capped, feedForward, mixture, norm, rmsNorm, rotate, type Routed } from "./layers";
import { linear, rowsOf, sum } from "./products";
import type { Weights } from "./weights";

/**
 * Sees what a forward pass computes, and may change it in place:
 *
 *     residual   the stream after each block, and after the embedding (layer -1)
 *     heads      the outputs of a layer's heads, [position, head * head_dim]
 *     neurons    of a feed-forward network, the input of its last matrix
 *     ffn        what a feed-forward network adds
 *     router     the probabilities of all experts for one token
 *     expert     what one expert adds to one token
 */
export type Site = "residual" | "heads" | "neurons" | "ffn" | "router" | "expert";
export type Hook = (
  site: Site, part: Part, layer: number, values: Float32Array | Float64Array, token: number, expert: number,
) => void;

/** What a part of a block adds to the stream, of its normed input. */
type Added = (input: Float32Array) => Promise<Float32Array> | Float32Array;

/** One pass through a model, with its edits. */
export interface Pass {
  pause: Pause;
  hook?: Hook;
  forbids?: (part: Part, layer: number) => Forbids | null;
}

/** Tokens that a stack has read: from its keys and values a text that goes on is read on. */
export interface Reading {
  /** Of each position its rows of the table of embeddings, which are added up. */
  tokens: number[][];
  attended: Attended[];
  crossed: Attended[];
  routed: Routed[];
  /** After the last block, of the positions that were read last. */
  stream: Float32Array;
}

export class Model {
  constructor(
    readonly config: ModelConfig,
    readonly weights: Weights,
  ) {}

  /** The stack that is read out. */
  get last(): Stack {
    return this.config.stacks.at(-1)!;
  }

  /** Reads the inputs of all stacks. */
  async readAll(inputs: number[][][], pass: Pass): Promise<Reading[]> {
    const readings: Reading[] = [];
    for (const [at, tokens] of inputs.entries()) {
      readings.push(await this.read(this.config.stacks[at]!, tokens, pass, null, readings[0]));
    }
    return readings;
  }

  /** Reads the tokens that follow those of `before`. */
  async read(stack: Stack, tokens: number[][], pass: Pass, before: Reading | null, memory?: Reading): Promise<Reading> {
    const { config, weights } = this;
    const { part, prefix } = stack;
    const start = before?.tokens.length ?? 0;
    const all = [...(before?.tokens ?? []), ...tokens];
    const source = memory && norm(memory.stream, weights, `${config.stacks[0]!.prefix}final_norm`, config);
    const read: Reading = { tokens: all, attended: [], crossed: [], routed: [], stream: new Float32Array(0) };
    let x = this.embedded(tokens, start, prefix);
    pass.hook?.("residual", part, -1, x, 0, 0);
    for (let layer = 0; layer < stack.layers; layer++) {
      const name = `${prefix}layers.${layer}`;
      const input = x;
      x = await this.adding(x, x, `${name}.attention`, (normed) => {
        const call = this.attended(normed, normed, `${name}.attention`, layer, start, before?.attended[layer]);
        read.attended.push({ ...call, causal: stack.causal, forbids: this.forbids(pass, part, layer, all) });
        return this.mixed(read.attended[layer]!, part, layer, name, pass);
      });
      if (memory) {
        x = await this.adding(x, x, `${name}.cross_attention`, (normed) => {
          const call = this.attended(normed, source!, `${name}.cross_attention`, layer, start);
          read.crossed.push({ ...call, forbids: this.forbids(pass, "cross", layer, memory.tokens) });
          return this.mixed(read.crossed[layer]!, "cross", layer, name, pass);
        });
      }
      if (config.ff_dim > 0) {
        const from = config.parallel ? input : x;
        x = await this.adding(x, from, `${name}.ffn`, (normed) => this.fed(normed, part, name, layer, read, pass));
      }
      pass.hook?.("residual", part, layer, x, 0, 0);
      await pass.pause();
    }
    return { ...read, stream: x };
  }

  /** The logits of one position, or of the text, that was read last. */
  logits({ stream, tokens }: Reading, place: number | null): Float32Array {
    const width = this.config.hidden_dim;
    return this.readOut(place === null ? stream : stream.subarray(place * width, (place + 1) * width), tokens);
  }

  /** The logits of each of some rows of the stream, or of the text that all of them are. */
  readOut(rows: Float32Array, tokens: number[][]): Float32Array {
    const { hidden_dim: width, pooling, logit_cap } = this.config;
    const normed = norm(rows, this.weights, `${this.last.prefix}final_norm`, this.config);
    const pooled = pooling === null ? normed : this.pooled(rowsOf(normed, width), this.shares(tokens));
    return this.linear(pooled, "output").map((logit) => capped(logit, logit_cap));
  }

  private pooled(rows: Float32Array[], shares: number[]): Float32Array {
    const real = rows.filter((_, at) => shares[at]! > 0);
    if (this.config.pooling === "max" && real.length > 0) {
      return real.reduce((all, row) => all.map((value, at) => Math.max(value, row[at]!)));
    }
    return rows.map((row, at) => row.map((value) => value * shares[at]!)).reduce(sum);
  }

  /** The weight of each position in the pooled text. */
  shares(tokens: number[][]): number[] {
    if (this.config.pooling === "cls") return tokens.map((_, at) => Number(at === 0));
    const padded = this.padded(tokens);
    const count = padded ? padded.filter((each) => !each).length : tokens.length;
    return tokens.map((_, at) => (padded?.[at] ? 0 : 1 / count));
  }

  /** The rows of the output matrix. */
  get output(): Float32Array {
    return this.weights.maybe("output.weight") ?? this.weights.of(`${this.last.prefix}embedding.weight`);
  }

  private linear(x: Float32Array, name: string): Float32Array {
    const weight = name === "output" ? this.output : this.weights.of(`${name}.weight`);
    const { hidden_dim: width, num_heads, head_dim } = this.config;
    return linear(x, weight, this.weights.maybe(`${name}.bias`), name.endsWith("attention.output") ? num_heads * head_dim : width);
  }

  /** `x` and what a part makes of `input`, with the norms of its name. */
  private async adding(x: Float32Array, input: Float32Array, name: string, part: Added): Promise<Float32Array> {
    const normed = (values: Float32Array, which: string) => norm(values, this.weights, `${name}_${which}`, this.config);
    const sums = this.config.norm_place === "sum";
    const both = sum(x, normed(await part(sums ? input : normed(input, "norm")), "post_norm"));
    return sums ? normed(both, "norm") : both;
  }

  /** What a layer's attention adds. */
  private async mixed(call: Attended, part: Part, layer: number, block: string, pass: Pass): Promise<Float32Array> {
    const heads = await attend(call, pass.pause);
    pass.hook?.("heads", part, layer, heads, 0, 0);
    return this.linear(heads, `${block}.${part === "cross" ? "cross_attention" : "attention"}.output`);
  }

  private forbids(pass: Pass, part: Part, layer: number, keys: number[][]): Forbids | null {
    const [edges, padded] = [pass.forbids?.(part, layer), this.padded(keys)];
    if (!edges && !padded) return null;
    return (head, query, key) => padded?.[key] || edges?.(head, query, key) || false;
  }

  /** Where a position is padding; null if none is. */
  private padded(tokens: number[][]): boolean[] | null {
    const found = tokens.map((rows) => rows.length === 1 && rows[0] === this.config.pad_id);
    return found.includes(true) ? found : null;
  }

  private embedded(tokens: number[][], start: number, prefix: string): Float32Array {
    const { config, weights } = this;
    const width = config.hidden_dim;
    const [table, scale] = [weights.of(`${prefix}embedding.weight`), Math.fround(config.embedding_scale)];
    const x = new Float32Array(tokens.length * width);
    tokens.forEach((rows, at) => {
      const own = rows.map((row) => table.subarray(row * width, (row + 1) * width)).reduce(sum);
      x.set(own.map((value) => value * scale), at * width);
    });
    const positions = weights.maybe(`${prefix}positions.weight`);
    const placed = positions ? sum(x, positions.subarray(start * width)) : x;
    return norm(placed, weights, `${prefix}embedding_norm`, config);
  }

  /** Queries of x, and keys and values of `from`, after those of the positions before. */
  private attended(
    x: Float32Array, from: Float32Array, name: string, layer: number, start: number, before?: Attended,
  ): Attended {
    const { config, weights } = this;
    const { num_heads: heads, head_dim: headDim } = config;
    const kvHeads = config.num_kv_heads ?? heads;
    const window = layerWindow(config, layer);
    const turns = !config.learned_positions && !config.unrotated_layers.includes(layer);
    const base = window !== null && config.local_rope_base !== null ? config.local_rope_base : config.rope_base;
    const of = (part: "query" | "key" | "value"): Float32Array => {
      const rows = this.linear(part === "query" ? x : from, `${name}.${part}`);
      const normed = part === "value" ? null : weights.maybe(`${name}.${part}_norm.weight`);
      return normed ? rmsNorm(rows, normed, config.norm_eps) : rows;
    };
    const [q, k, v] = [of("query"), of("key"), of("value")];
    if (turns) {
      rotate(q, start, heads * headDim, base, config);
      rotate(k, start, kvHeads * headDim, base, config);
    }
    return {
      q,
      k: before ? joined(before.k, k) : k,
      v: before ? joined(before.v, v) : v,
      heads,
      headDim,
      group: heads / kvHeads,
      scale: config.attention_scale ?? headDim ** -0.5,
      cap: config.attention_cap,
      causal: false,
      window,
      keyWeights: weights.maybe(`${name}.key_weights`),
      sinks: weights.maybe(`${name}.sinks`),
      forbids: null,
    };
  }

  private fed(x: Float32Array, part: Part, block: string, layer: number, read: Reading, pass: Pass): Float32Array {
    const { config, weights } = this;
    const name = `${block}.ffn`;
    if (config.num_experts === null) {
      const output = feedForward(x, weights, name, config, (neurons) => pass.hook?.("neurons", part, layer, neurons, 0, 0));
      pass.hook?.("ffn", part, layer, output, 0, 0);
      return output;
    }
    const hook = (site: Site, values: Float32Array | Float64Array, token: number, expert: number) =>
      pass.hook?.(site, part, layer, values, token, expert);
    const [output, routed] = mixture(x, weights, name, layer, config, hook);
    read.routed.push(routed);
    return output;
  }
}

function joined(one: Float32Array, other: Float32Array): Float32Array {
  const both = new Float32Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}
