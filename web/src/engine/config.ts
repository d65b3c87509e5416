// The configuration of a model as glassformer/explorer/saving/saved_model.py writes it: that of a decoder, and the stacks.
import type { Part } from "../source";

type Sizes = "vocab_size" | "hidden_dim" | "ff_dim" | "num_heads" | "head_dim" | "top_k";
type Numbers = "rope_base" | "norm_eps" | "embedding_scale";
type Choices = "parallel" | "gated" | "learned_positions";
type Optional =
  | "num_kv_heads" | "window" | "num_experts" | "rotary_dim"
  | "local_rope_base" | "attention_scale" | "attention_cap" | "logit_cap" | "pad_id";

/** Blocks one after the other. The second of two stacks reads the first. */
export interface Stack {
  part: Part;
  /** With which the names of its tensors begin. */
  prefix: string;
  layers: number;
  causal: boolean;
}

export interface ModelConfig extends Record<Sizes | Numbers, number>, Record<Choices, boolean>, Record<Optional, number | null> {
  kind: "decoder" | "encoder" | "encoder_decoder";
  stacks: Stack[];
  pooling: "mean" | "cls" | "max" | null;
  /** Of a classifier. */
  classes: string[];
  windowed_layers: "odd" | "even" | "all" | number[];
  unrotated_layers: number[];
  clamp: { alpha: number; limit: number } | null;
  rope_layout: "half-split" | "interleaved";
  norm: "rms" | "layer";
  /** "sum": of the stream after each addition. */
  norm_place: "before" | "after" | "both" | "sum";
  activation: "silu" | "gelu" | "gelu_tanh" | "relu" | "relu2";
}

/** The window of a layer; null for full attention. */
export function layerWindow({ window, windowed_layers: layers }: ModelConfig, layer: number): number | null {
  if (Array.isArray(layers)) return layers.includes(layer) ? window : null;
  return layers === "all" || (layer % 2 === 1) === (layers === "odd") ? window : null;
}
