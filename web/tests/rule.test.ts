import assert from "node:assert/strict";
import { test } from "node:test";
import type { Next } from "../src/source";
import { distributionUnder } from "../src/views/sampling/rule";

const LOGITS = [2, 1, 0, -1];
const shares = (scores: number[]): number[] => {
  const powers = scores.map(Math.exp);
  const total = powers.reduce((sum, each) => sum + each, 0);
  return powers.map((each) => each / total);
};
const plain = shares(LOGITS);
const next: Next = {
  tokens: [],
  candidates: LOGITS.map((logit, id) => ({ id, token: String(id), logit, plain: plain[id]!, tempered: plain[id]!, final: plain[id]!, kept: true, obeys: null })),
  rest: 0,
  rest_plain: 0,
  kept: 4,
  entropy: 0,
  rule: null,
};
const close = (one: number[], other: number[]) => {
  assert.equal(one.length, other.length);
  one.forEach((each, at) => assert.ok(Math.abs(each - other[at]!) < 1e-12, `${one} is not ${other}`));
};
const finals = (temperature: number, topK: number | null, topP: number) =>
  distributionUnder({ temperature, topK, topP }, next).candidates.map(({ final }) => final);

test("without a rule the distribution is the softmax", () => {
  close(finals(1, null, 1), plain);
  const { kept, entropy, entropyBefore } = distributionUnder({ temperature: 1, topK: null, topP: 1 }, next);
  assert.equal(kept, 4);
  close([entropy, entropyBefore!], Array(2).fill(-plain.reduce((sum, each) => sum + each * Math.log2(each), 0)));
});

test("temperature divides the logits", () => {
  close(finals(2, null, 1), shares(LOGITS.map((logit) => logit / 2)));
  close(finals(0, null, 1), [1, 0, 0, 0]);
});

test("top-k, then top-p, each rescaled to 1", () => {
  const two = shares(LOGITS.slice(0, 2));
  close(finals(1, 2, 1), [...two, 0, 0]);
  close(finals(1, null, 0), [1, 0, 0, 0]);
  close(finals(1, 1, 1), [1, 0, 0, 0]);
  // Of the two that top-k leaves, the first has 73 %: top-p of 70 % keeps it alone.
  close(finals(1, 2, 0.7), [1, 0, 0, 0]);
  close(finals(1, null, 0.7), [...two, 0, 0]);
});

test("a set that reaches top-p but for rounding is enough", () => {
  const sum = plain[0]! + plain[1]!;
  assert.equal(finals(1, null, sum + 1e-13).filter((each) => each > 0).length, 2);
  assert.equal(finals(1, null, sum + 1e-9).filter((each) => each > 0).length, 3);
});

test("every candidate that is cut names what cut it", () => {
  const cuts = (temperature: number, topK: number | null, topP: number) =>
    distributionUnder({ temperature, topK, topP }, next).candidates.map(({ cut }) => cut);
  assert.deepEqual(cuts(0, null, 1), [null, "temperature", "temperature", "temperature"]);
  assert.deepEqual(cuts(1, 2, 0.7), [null, "top-p", "top-k", "top-k"]);
});

test("where candidates are missing, the server's numbers stand", () => {
  const partial: Next = { ...next, candidates: next.candidates.slice(0, 2), rest: 2, kept: 3, entropy: 1.25 };
  const { candidates, kept, entropy, entropyBefore } = distributionUnder({ temperature: 2, topK: null, topP: 0.9 }, partial);
  assert.deepEqual([kept, entropy, entropyBefore], [3, 1.25, null]);
  close(candidates.map(({ final }) => final), plain.slice(0, 2));
  // Probabilities up to here, of all candidates; of those that top-k leaves, where they are all listed.
  close(candidates.map(({ reached }) => reached), [plain[0]!, plain[0]! + plain[1]!]);
  close(distributionUnder({ temperature: 1, topK: 2, topP: 1 }, partial).candidates.map(({ reached }) => reached), [shares([2, 1])[0]!, 1]);
});
