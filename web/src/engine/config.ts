// The configuration of a decoder as glassformer/models/decoder_config.py writes it to JSON: the fields that are computed.

type Sizes = "vocab_size" | "num_layers" | "hidden_dim" | "ff_dim" | "num_heads" | "head_dim" | "top_k";
type Numbers = "rope_base" | "norm_eps" | "embedding_scale";
type Choices = "parallel" | "gated" | "learned_positions" | "embedding_norm";
type Optional =
  | "num_kv_heads" | "window" | "num_experts" | "rotary_dim"
  | "local_rope_base" | "attention_scale" | "attention_cap" | "logit_cap";

export interface DecoderConfig extends Record<Sizes | Numbers, number>, Record<Choices, boolean>, Record<Optional, number | null> {
  windowed_layers: "odd" | "even" | "all" | number[];
  unrotated_layers: number[];
  clamp: { alpha: number; limit: number } | null;
  rope_layout: "half-split" | "interleaved";
  norm: "rms" | "layer";
  norm_place: "before" | "after" | "both";
  activation: "silu" | "gelu" | "gelu_tanh" | "relu" | "relu2";
}

/** The window of a layer; null for full attention. */
export function layerWindow({ window, windowed_layers: layers }: DecoderConfig, layer: number): number | null {
  if (Array.isArray(layers)) return layers.includes(layer) ? window : null;
  return layers === "all" || (layer % 2 === 1) === (layers === "odd") ? window : null;
}
