// The forward pass of a decoder, as in glassformer/models/decoder.py.
import { attend, type Attended } from "./attention";
import { layerWindow, type DecoderConfig } from "./config";
import { capped, feedForward, mixture, norm, rmsNorm, rotate, type Routed } from "./layers";
import { linear, sum } from "./products";
import type { Weights } from "./weights";

/** A text that was read: from its keys and values another one that begins with it is read on. */
export interface Reading {
  tokens: number[];
  layers: Attended[];
  routed: Routed[];
  /** Of the token after the last one. */
  logits: Float32Array;
}

export class Decoder {
  constructor(
    private readonly config: DecoderConfig,
    private readonly weights: Weights,
  ) {}

  /** Reads the tokens that follow those of `before`. */
  async read(tokens: number[], before: Reading | null, pause: () => Promise<void>): Promise<Reading> {
    const { config, weights } = this;
    const start = before ? before.tokens.length : 0;
    const reading: Reading = { tokens: [...(before?.tokens ?? []), ...tokens], layers: [], routed: [], logits: new Float32Array(0) };
    let x = this.embedded(tokens, start);
    for (let layer = 0; layer < config.num_layers; layer++) {
      const name = `layers.${layer}`;
      const normed = this.before(x, `${name}.attention_norm`);
      const attended = this.attended(normed, layer, start, before?.layers[layer] ?? null);
      reading.layers.push(attended);
      const of = await attend(attended, pause);
      const width = config.num_heads * config.head_dim;
      const added = linear(of, weights.of(`${name}.attention.output.weight`), weights.maybe(`${name}.attention.output.bias`), width);
      const both = sum(x, this.after(added, `${name}.attention_post_norm`));
      x = config.ff_dim === 0 ? both : sum(both, this.after(this.fed(config.parallel ? x : both, layer, reading), `${name}.ffn_post_norm`));
      await pause();
    }
    const last = norm(x.subarray(x.length - config.hidden_dim), weights, "final_norm", config);
    const output = weights.maybe("output.weight") ?? weights.of("embedding.weight");
    reading.logits = linear(last, output, null, config.hidden_dim).map((logit) => capped(logit, config.logit_cap));
    return reading;
  }

  private embedded(tokens: number[], start: number): Float32Array {
    const { config, weights } = this;
    const width = config.hidden_dim;
    const [table, scale] = [weights.of("embedding.weight"), Math.fround(config.embedding_scale)];
    const x = new Float32Array(tokens.length * width);
    tokens.forEach((token, at) => x.set(table.subarray(token * width, (token + 1) * width).map((value) => value * scale), at * width));
    const positions = config.learned_positions ? weights.of("positions.weight").subarray(start * width) : null;
    const placed = positions ? sum(x, positions) : x;
    return config.embedding_norm ? norm(placed, weights, "embedding_norm", config) : placed;
  }

  private before(x: Float32Array, name: string): Float32Array {
    return this.config.norm_place === "after" ? x : norm(x, this.weights, name, this.config);
  }

  private after(x: Float32Array, name: string): Float32Array {
    return this.config.norm_place === "before" ? x : norm(x, this.weights, name, this.config);
  }

  /** Queries, keys and values of a layer, with the keys and values of the positions before. */
  private attended(x: Float32Array, layer: number, start: number, before: Attended | null): Attended {
    const { config, weights } = this;
    const name = `layers.${layer}.attention`;
    const { num_heads: heads, head_dim: headDim, hidden_dim: width } = config;
    const kvHeads = config.num_kv_heads ?? heads;
    const window = layerWindow(config, layer);
    const turns = !config.learned_positions && !config.unrotated_layers.includes(layer);
    const base = window !== null && config.local_rope_base !== null ? config.local_rope_base : config.rope_base;
    const of = (part: "query" | "key" | "value"): Float32Array => {
      const rows = linear(x, weights.of(`${name}.${part}.weight`), weights.maybe(`${name}.${part}.bias`), width);
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
      window,
      keyWeights: weights.maybe(`${name}.key_weights`),
      sinks: weights.maybe(`${name}.sinks`),
    };
  }

  private fed(x: Float32Array, layer: number, reading: Reading): Float32Array {
    const { config, weights } = this;
    const normed = this.before(x, `layers.${layer}.ffn_norm`);
    if (config.num_experts === null) return feedForward(normed, weights, `layers.${layer}.ffn`, config);
    const [output, routed] = mixture(normed, weights, `layers.${layer}.ffn`, layer, config);
    reading.routed.push(routed);
    return output;
  }
}

function joined(one: Float32Array, other: Float32Array): Float32Array {
  const both = new Float32Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}
