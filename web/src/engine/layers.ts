// The layers between attentions, as in glassformer/layers: norms, activations, feed-forward networks, experts, rotation.
import type { ModelConfig } from "./config";
import { linear, rowsOf, softmax } from "./products";
import { refusing } from "./refusing";
import type { Weights } from "./weights";

/** `x / sqrt(mean(x ** 2) + eps) * weight` of each group of as many numbers as `weight` has. */
export function rmsNorm(x: Float32Array, weight: Float32Array, eps: number): Float32Array {
  const [y, width] = [new Float32Array(x.length), weight.length];
  for (let first = 0; first < x.length; first += width) {
    let squares = 0;
    for (let at = 0; at < width; at++) squares += x[first + at]! ** 2;
    const factor = 1 / Math.sqrt(squares / width + eps);
    for (let at = 0; at < width; at++) y[first + at] = x[first + at]! * factor * weight[at]!;
  }
  return y;
}

/** `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` of each group, whose variance is the mean square around the mean. */
function layerNorm(x: Float32Array, weight: Float32Array, bias: Float32Array, eps: number): Float32Array {
  const width = weight.length;
  const means = rowsOf(x, width).map((row) => row.reduce((a, b) => a + b, 0) / width);
  const centred = x.map((value, at) => value - means[Math.floor(at / width)]!);
  return rmsNorm(centred, weight, eps).map((value, at) => value + bias[at % width]!);
}

/** The norm of this name, of either kind; x where there is none. */
export function norm(x: Float32Array, weights: Weights, name: string, { norm: kind, norm_eps: eps }: ModelConfig): Float32Array {
  const weight = weights.maybe(`${name}.weight`);
  if (!weight) return x;
  return kind === "rms" ? rmsNorm(x, weight, eps) : layerNorm(x, weight, weights.of(`${name}.bias`), eps);
}

/** `cap * tanh(x / cap)`, or x without a cap. */
export const capped = (x: number, cap: number | null): number => (cap === null ? x : cap * Math.tanh(x / cap));

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));

/** The error function: `2 / sqrt(pi) exp(-x ** 2) sum_n 2 ** n x ** (2 n + 1) / (2 n + 1)!!`. */
function erf(x: number): number {
  if (Math.abs(x) > 6) return Math.sign(x);
  let [sum, term] = [0, x];
  for (let n = 0; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    sum += term;
    term *= (2 * x * x) / (2 * n + 3);
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

const ACTIVATIONS: Record<ModelConfig["activation"], (x: number) => number> = {
  silu: (x) => x * sigmoid(x),
  gelu: (x) => (x * (1 + erf(x / Math.SQRT2))) / 2,
  gelu_tanh: (x) => (x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))) / 2,
  relu: (x) => Math.max(x, 0),
  relu2: (x) => Math.max(x, 0) ** 2,
};

/** `activation(gate) * up`; with a clamp gpt-oss's `gate sigmoid(alpha gate) (up + 1)` of clamped numbers. */
function gated(gate: Float32Array, up: Float32Array, { activation, clamp }: ModelConfig): Float32Array {
  const activate = ACTIVATIONS[activation];
  if (clamp === null) return gate.map((value, at) => activate(value) * up[at]!);
  const { alpha, limit } = clamp;
  return gate.map((value, at) => {
    const [g, u] = [Math.min(value, limit), Math.max(-limit, Math.min(up[at]!, limit))];
    return g * sigmoid(alpha * g) * (u + 1);
  });
}

/** The choices of one layer's router: `top_k` experts of each token, the best first, and the weights of their sum. */
export interface Routed {
  layer: number;
  /** [token][expert]: the softmax over all experts. */
  probabilities: Float64Array[];
  choices: number[][];
  shares: Float64Array[];
}

/**
 * `output = down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` where it is not gated; `seen` is given the input
 * of `down`, the neurons.
 */
export function feedForward(
  x: Float32Array, weights: Weights, name: string, config: ModelConfig, seen: (neurons: Float32Array) => void,
): Float32Array {
  const of = (part: string, input: Float32Array, width: number) =>
    linear(input, weights.of(`${name}.${part}.weight`), weights.maybe(`${name}.${part}.bias`), width);
  const { hidden_dim: width, ff_dim: inside } = config;
  const up = of("up", x, width);
  const neurons = config.gated ? gated(of("gate", x, width), up, config) : up.map(ACTIVATIONS[config.activation]);
  seen(neurons);
  return of("down", neurons, inside);
}

/** Sees, and may change, the probabilities of all experts for a token, and what an expert adds to it. */
type MixtureHook = (site: "router" | "expert", values: Float32Array | Float64Array, token: number, expert: number) => void;

/** `output = sum over chosen experts e of share_e * down_e(silu(gate_e(x)) * up_e(x))` for each token x. */
export function mixture(
  x: Float32Array, weights: Weights, name: string, layer: number, config: ModelConfig, hook: MixtureHook,
): [Float32Array, Routed] {
  const { hidden_dim: width, ff_dim: inside, num_experts, top_k } = config;
  const experts = num_experts as number;
  const scores = linear(x, weights.of(`${name}.router.score.weight`), weights.maybe(`${name}.router.score.bias`), width);
  const routed: Routed = { layer, probabilities: [], choices: [], shares: [] };
  const y = new Float32Array(x.length);
  const part = (which: string, expert: number, input: Float32Array, from: number, to: number) => {
    const bias = weights.maybe(`${name}.${which}_bias`);
    const weight = weights.of(`${name}.${which}`).subarray(expert * from * to, (expert + 1) * from * to);
    return linear(input, weight, bias && bias.subarray(expert * to, (expert + 1) * to), from);
  };
  for (let token = 0; token * width < x.length; token++) {
    const probabilities = softmax(scores.subarray(token * experts, (token + 1) * experts));
    hook("router", probabilities, token, 0);
    const chosen = [...probabilities.keys()].sort((a, b) => probabilities[b]! - probabilities[a]!).slice(0, top_k);
    const total = chosen.reduce((all, expert) => all + probabilities[expert]!, 0);
    if (total === 0) {
      const got = `an edit of the router at ${name} that leaves no expert, or a negative probability`;
      refusing(got, "probabilities of at least 0, one of them above 0", "Leave an expert to choose.");
    }
    const input = x.subarray(token * width, (token + 1) * width);
    const shares = Float64Array.from(chosen, (expert) => probabilities[expert]! / total);
    chosen.forEach((expert, at) => {
      const [gate, up] = [part("gate", expert, input, width, inside), part("up", expert, input, width, inside)];
      const output = part("down", expert, gated(gate, up, config), inside, width).map((value) => shares[at]! * value);
      hook("expert", output, token, expert);
      for (let place = 0; place < width; place++) y[token * width + place]! += output[place]!;
    });
    routed.probabilities.push(probabilities);
    routed.choices.push(chosen);
    routed.shares.push(shares);
  }
  return [y, routed];
}

/**
 * Turns pair i of the first `turned` coordinates of each head by `position * base ** (-2 i / turned)`:
 * `a' = a cos - b sin` and `b' = b cos + a sin`. Angles are rounded to float32 where Python's are: at late positions the
 * last bit of a frequency is many of an angle.
 */
export function rotate(x: Float32Array, start: number, width: number, base: number, config: ModelConfig): void {
  const { head_dim: size, rotary_dim, rope_layout } = config;
  const turned = rotary_dim ?? size;
  const interleaved = rope_layout === "interleaved";
  const frequencies = Array.from({ length: turned / 2 }, (_, pair) =>
    Math.fround(1 / Math.fround(base ** Math.fround((2 * pair) / turned))),
  );
  for (let row = 0; row * width < x.length; row++) {
    frequencies.forEach((frequency, pair) => {
      const angle = Math.fround((start + row) * frequency);
      const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
      for (let head = row * width; head < (row + 1) * width; head += size) {
        const first = head + (interleaved ? 2 * pair : pair);
        const second = interleaved ? first + 1 : first + turned / 2;
        const [a, b] = [x[first]!, x[second]!];
        x[first] = a * cos - b * sin;
        x[second] = b * cos + a * sin;
      }
    });
  }
}
