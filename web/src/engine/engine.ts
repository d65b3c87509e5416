// The answers of a saved page's own model, in the messages of the server: see glassformer/explorer/answers.
import { Unknown, type Ask, type AskFind, type AskNext, type AskSteps, type CallName, type Calls } from "../source";
import type { Experts, Found, Next, Run, Steps } from "../source";
import { codecOf, type Codec, type CodecData } from "./codecs";
import { layerWindow, type DecoderConfig } from "./config";
import { Decoder, type Reading } from "./decoder";
import { Matrices } from "./matrices";
import { softmax } from "./products";
import { grouped, quoted, refusing, require } from "./refusing";
import { choose, distribution, ranked } from "./sampling";
import { sha256, Weights } from "./weights";

/** A model in a saved file, as glassformer/explorer/saving/saved_model.py writes it. */
export interface SavedModel {
  config: DecoderConfig;
  codec: CodecData;
  /** Safetensors in base64, and the SHA-256 of their bytes. */
  weights: string;
  sha256: string;
}

/** The calls that are answered. */
export const COMPUTED = ["run", "weights", "rows", "measures", "experts", "next", "steps", "find"] as const satisfies CallName[];
export type Computed = (typeof COMPUTED)[number];
export const isComputed = (call: CallName): call is Computed => (COMPUTED as readonly CallName[]).includes(call);

/** Called between the parts of a computation: others have their turn; throws where the answer is not wanted any more. */
export type Pause = () => Promise<void>;

interface KeptRun {
  message: Run;
  reading: Reading;
  matrices: Matrices;
}

const MOST_BYTES = 256 * 2 ** 20;
const [SHOWN_CLASSES, MOST_CANDIDATES, MOST_CHARACTERS, MOST_READ, MOST_TOKENS] = [8, 64, 65_536, 65_536, 4096];
const [MOST_EXPERT_NUMBERS, SIX_DIGITS] = [2 ** 20, 1e6];

type Answers = { [N in Computed]: (asked: Calls[N]["asked"], pause: Pause) => Promise<Calls[N]["answered"]> | Calls[N]["answered"] };

export class Engine {
  private readonly config: DecoderConfig;
  private readonly codec: Codec;
  private readonly decoder: Decoder;
  private readonly runs = new Map<string, KeptRun>();
  /** What was read last, from which a text that goes on is read on. */
  private latest: Reading | null = null;
  private readonly answers: Answers = {
    run: (asked, pause) => this.run(asked, pause),
    weights: (asked, pause) => this.kept(asked.run).matrices.tile(asked, pause),
    rows: (asked) => this.kept(asked.run).matrices.rows(asked),
    measures: (asked, pause) => this.kept(asked.run).matrices.measures(pause),
    experts: (asked) => this.experts(this.kept(asked.run)),
    next: (asked, pause) => this.next(asked, pause),
    steps: (asked, pause) => this.steps(asked, pause),
    find: (asked) => this.find(asked),
  };

  /** @throws Refused if the weights are not those that were saved, or not finite. */
  constructor(model: SavedModel) {
    this.config = model.config;
    this.codec = codecOf(model.codec);
    this.decoder = new Decoder(model.config, Weights.open(model.weights, model.sha256));
  }

  async answer<N extends Computed>(call: N, asked: Calls[N]["asked"], pause: Pause): Promise<Calls[N]["answered"]> {
    return (this.answers[call] as (asked: Calls[N]["asked"], pause: Pause) => Calls[N]["answered"])(asked, pause);
  }

  private async run(ask: Ask, pause: Pause): Promise<Run> {
    const name = runName(ask);
    const known = this.runs.get(name);
    if (known) return known.message;
    const tokens = this.codec.encode(ask.text);
    require(tokens.length <= MOST_TOKENS, `a text of ${grouped(tokens.length)} tokens`, `at most ${grouped(MOST_TOKENS)}`, "Shorten the text.");
    const reading = await this.decoder.read(tokens, null, pause);
    this.latest = reading;
    const { num_layers, num_heads } = this.config;
    const message: Run = {
      run: name,
      ask,
      tokens: tokens.map(this.codec.word),
      source: null,
      attentions: [
        {
          part: "self",
          label: "self-attention",
          layers: num_layers,
          heads: num_heads,
          queries: tokens.length,
          keys: tokens.length,
          queries_are: "tokens",
          keys_are: "tokens",
          causal: true,
          windows: reading.layers.map((_, layer) => layerWindow(this.config, layer)),
          sinks: reading.layers.some(({ sinks }) => sinks !== null),
        },
      ],
      said: this.said(reading.logits),
    };
    this.runs.set(name, { message, reading, matrices: new Matrices(reading.layers) });
    let size = 0;
    for (const [each, { matrices }] of [...this.runs].reverse()) {
      size += matrices.size;
      if (size > MOST_BYTES && each !== name) this.runs.delete(each);
    }
    return message;
  }

  private kept(name: string): KeptRun {
    const found = this.runs.get(name);
    if (!found) throw new Unknown({ got: `the run ${quoted(name)}`, expected: "the name of an earlier run", fix: "Make the call 'run' again." });
    return found;
  }

  private said(logits: Float32Array): Run["said"] {
    const shares = softmax(logits);
    if (!shares.every(Number.isFinite)) return { headline: "logits that are not finite", classes: [], words: [] };
    const classes = ranked(logits).slice(0, SHOWN_CLASSES).map((token): [string, number] => [this.codec.word(token), shares[token]!]);
    const [best, share] = classes[0]!;
    const text = (100 * share).toFixed(1);
    const percent = text === "0.0" || text === "100.0" ? text.slice(0, -2) : text;
    return { headline: `next: ${/[\p{L}\p{N}]/u.test(best) ? best : `\u201c${best}\u201d`}, ${percent} %`, classes, words: [] };
  }

  private experts({ message, reading: { routed } }: KeptRun): Experts {
    const { num_experts, top_k } = this.config;
    const count = message.tokens.length;
    const got = `a run of ${quoted(message.ask.model)}, which has no experts`;
    require(routed.length > 0, got, "a run of a mixture of experts", "Choose a model whose card names the view 'experts'.");
    const chosen = 2 * count * routed.length * top_k;
    const whole = chosen + routed.length * count * num_experts! <= MOST_EXPERT_NUMBERS;
    const rounded = (rows: Float64Array[]) => rows.map((row) => Array.from(row, (share) => Math.round(share * SIX_DIGITS) / SIX_DIGITS));
    const layers = routed.map(({ layer, probabilities, choices, shares }) => {
      const load = new Array<number>(num_experts!).fill(0);
      for (const expert of choices.flat()) load[expert]! += 1 / (count * top_k);
      return { layer, choices, shares: rounded(shares), probabilities: whole ? rounded(probabilities) : [], load };
    });
    return { num_experts: num_experts!, top_k, layers };
  }

  private async next(ask: AskNext, pause: Pause): Promise<Next> {
    const tokens = this.codec.encode(ask.text);
    const logits = await this.logitsAfter(tokens, pause);
    const plain = softmax(logits);
    const tempered = distribution(logits, { temperature: ask.temperature, top_k: null, top_p: 1 });
    const final = distribution(logits, ask);
    const likeliest = ranked(logits).slice(0, MOST_CANDIDATES);
    const listed = likeliest.reduce((sum, token) => sum + plain[token]!, 0);
    return {
      tokens: tokens.map(this.codec.word),
      candidates: likeliest.map((token) => ({
        id: token,
        token: this.codec.word(token),
        logit: logits[token]!,
        plain: plain[token]!,
        tempered: tempered[token]!,
        final: final[token]!,
        kept: final[token]! > 0,
        obeys: this.codec.obeys(tokens, token),
      })),
      rest: logits.length - likeliest.length,
      rest_plain: likeliest.length < logits.length ? Math.max(0, 1 - listed) : 0,
      kept: final.filter((share) => share > 0).length,
      entropy: final.reduce((bits, share) => (share > 0 ? bits - share * Math.log2(share) : bits), 0),
      rule: this.codec.rule(tokens),
    };
  }

  private find({ text }: AskFind): Found {
    const { encode, join, word } = this.codec;
    const tokens = encode(text);
    const typed = text.trimStart();
    // Tokens that begin every text are no part of it.
    const first = tokens.findIndex((token) => join([token]).trim() !== "" && typed.startsWith(join([token]).trim()));
    const begin = Math.max(0, first);
    return { id: tokens[begin]!, name: word(tokens[begin]!), whole: tokens.length === begin + 1 };
  }

  private async steps(ask: AskSteps, pause: Pause): Promise<Steps> {
    const { encode, join, word, obeys, longest } = this.codec;
    const tokens = encode(ask.text);
    const begun = join(tokens);
    const most = `at most ${grouped(longest - 1)}, so that one more can be read`;
    require(tokens.length < longest, `a text of ${grouped(tokens.length)} tokens`, most, "Shorten the text.");
    const made: Steps = { text: ask.text, steps: [], ended: "asked" };
    const ending = (ended: Steps["ended"]): Steps => ({ ...made, ended });
    for (let read = 0; made.steps.length < ask.steps; ) {
      if (tokens.length >= longest) return ending("model");
      if (read > 0 && read + tokens.length > MOST_READ) return ending("read");
      read += tokens.length;
      const logits = await this.logitsAfter(tokens, pause);
      const first = made.steps.length === 0 ? ask.first : null;
      if (first !== null && first >= logits.length) {
        refusing(`first = ${first}`, `a token below ${logits.length}`, "Choose one of the candidates of the call 'next'.");
      }
      const token = first ?? choose(logits, ask, ask.seed, tokens.length);
      const after = join([...tokens, token]);
      const longer = after.startsWith(begun) ? ask.text + after.slice(begun.length) : after;
      if ([...longer].length > MOST_CHARACTERS) return ending("text");
      if (longer === made.text && join([token]) === "") return ending("wordless");
      made.steps.push({ token: word(token), probability: distribution(logits, ask)[token]!, obeys: obeys(tokens, token) });
      tokens.push(token);
      made.text = longer;
    }
    return made;
  }

  /** The logits after some tokens; only those after the text that was read last are read, if it goes on. */
  private async logitsAfter(tokens: number[], pause: Pause): Promise<Float32Array> {
    const before = this.latest?.tokens.every((token, at) => token === tokens[at]) ? this.latest : null;
    const known = before?.tokens.length ?? 0;
    const reading = before && known === tokens.length ? before : await this.decoder.read(tokens.slice(known), before, pause);
    this.latest = reading;
    if (!reading.logits.every(Number.isFinite)) {
      refusing("logits that are not finite", "finite ones", "Look for the first NaN in the forward pass.");
    }
    return reading.logits;
  }
}

/** The name that the server gives to a run of this request. */
export function runName({ model, text, source, order, weights }: Ask): string {
  const field = (value: unknown) => JSON.stringify(value ?? null).replace(/[\x7f-\uffff]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
  const told = `{"model": ${field(model)}, "order": ${field(order)}, "source": ${field(source)}, "text": ${field(text)}, "weights": ${field(weights)}}`;
  return `r${sha256(new TextEncoder().encode(told)).slice(0, 20)}`;
}
