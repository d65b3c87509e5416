// What comes after a text, as glassformer/explorer/answers/sampling.py.
import type { AskFind, AskNext, AskSteps, Found, Next, Steps } from "../source";
import type { Pause } from "./attention";
import { strip } from "./codecs";
import { softmax } from "./products";
import { grouped } from "./formatting";
import { quoted, refusing, require, requireFinite } from "./refusing";
import type { Runs } from "./runs";
import { choose, distribution, ranked } from "./sampling";

const [MOST_CANDIDATES, MOST_CHARACTERS, MOST_READ] = [64, 65_536, 65_536];

export async function next(runs: Runs, ask: AskNext, pause: Pause): Promise<Next> {
  const { encode, word, labels, rule: ruleOf } = runs.codec;
  const tokens = encode(ask.text);
  const rule = ruleOf(tokens);
  const logits = await logitsAfter(runs, tokens, pause);
  const plain = softmax(logits);
  const tempered = distribution(logits, { temperature: ask.temperature, top_k: null, top_p: 1 });
  const final = distribution(logits, ask);
  const likeliest = ranked(logits).slice(0, MOST_CANDIDATES);
  const listed = likeliest.reduce((sum, token) => sum + plain[token]!, 0);
  return {
    tokens: labels(tokens),
    candidates: likeliest.map((token) => ({
      id: token,
      token: word(token),
      logit: logits[token]!,
      plain: plain[token]!,
      tempered: tempered[token]!,
      final: final[token]!,
      kept: final[token]! > 0,
      obeys: rule && rule.followers.includes(token),
    })),
    rest: logits.length - likeliest.length,
    rest_plain: likeliest.length < logits.length ? Math.max(0, 1 - listed) : 0,
    kept: final.filter((share) => share > 0).length,
    entropy: final.reduce((bits, share) => (share > 0 ? bits - share * Math.log2(share) : bits), 0),
    rule: rule && rule.words,
  };
}

export function find({ model, codec }: Runs, { model: name, text }: AskFind): Found {
  const { kind } = model.config;
  const [got, fix] = [`find of ${quoted(name)}, whose kind is ${kind}`, "Choose another model, or one of the views that its card names."];
  require(kind === "decoder", got, "a decoder, which has a vocabulary", fix);
  const { encode, join, word } = codec;
  const tokens = encode(text);
  const fitting: ((piece: string) => boolean)[] = [
    (piece) => text.startsWith(piece),
    (piece) => strip(piece) !== "" && strip(text).startsWith(strip(piece)),
    (piece) => /^\ufffd+$/.test(piece) || tokens.length === 1,
  ];
  // Tokens that begin every text are no part of it.
  const places = fitting.map((fits) => tokens.findIndex((token) => join([token]) !== "" && fits(join([token]))));
  const begin = places.find((place) => place >= 0) ?? refusing(`the text ${quoted(text)}`, "a text that begins with a token's", "Type another one.");
  return { id: tokens[begin]!, name: word(tokens[begin]!), whole: tokens.length === begin + 1 };
}

export async function steps(runs: Runs, ask: AskSteps, pause: Pause): Promise<Steps> {
  const { encode, join, word, rule, longest } = runs.codec;
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
    const logits = await logitsAfter(runs, tokens, pause);
    const first = made.steps.length === 0 ? ask.first : null;
    if (first !== null && first >= logits.length) {
      refusing(`first = ${first}`, `a token below ${logits.length}`, "Choose one of the candidates of the call 'next'.");
    }
    const token = first ?? choose(logits, ask, ask.seed, tokens.length);
    const after = join([...tokens, token]);
    const longer = after.startsWith(begun) ? ask.text + after.slice(begun.length) : after;
    if ([...longer].length > MOST_CHARACTERS) return ending("text");
    if (longer === made.text && join([token]) === "") return ending("wordless");
    const obeys = rule(tokens)?.followers.includes(token) ?? null;
    made.steps.push({ token: word(token), probability: distribution(logits, ask)[token]!, obeys });
    tokens.push(token);
    made.text = longer;
  }
  return made;
}

/** The logits after some tokens; only those after the text that was read last are read, if it goes on. */
async function logitsAfter(runs: Runs, tokens: number[], pause: Pause): Promise<Float32Array> {
  const { model, latest } = runs;
  const before = latest?.tokens.every(([token], at) => token === tokens[at]) ? latest : null;
  const more = tokens.slice(before?.tokens.length ?? 0).map((token) => [token]);
  const reading = before && more.length === 0 ? before : await model.read(model.last, more, { pause }, before);
  runs.latest = reading;
  const logits = model.logits(reading, reading.stream.length / model.config.hidden_dim - 1);
  requireFinite(logits);
  return logits;
}
