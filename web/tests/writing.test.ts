import assert from "node:assert/strict";
import { test } from "node:test";
import type { AskSteps, Next, Source } from "../src/source";
import { candidateOf, wholeStep } from "../src/views/sampling/writing";

test("a written piece is the token of its blanks, not one without them", () => {
  const id = (piece: string, tokens: string[], names: string[]) => {
    const candidates = names.map((token, id) => ({ id, token, logit: 0, plain: 0, tempered: 0, final: 0, kept: true, obeys: null }));
    const next: Next = { tokens, candidates, rest: 0, rest_plain: 0, kept: 0, entropy: 0, rule: null };
    return candidateOf(piece, next)?.id ?? null;
  };
  assert.equal(id(" Mary", ["The"], ["Mary", "\u2423Mary"]), 1);
  assert.equal(id("Mary", ["The"], ["\u2423Mary", "Mary"]), 1);
  assert.equal(id(" Mary", ["The", "\u2423cat"], ["Mary"]), null);
  assert.equal(id("\n", [], ["\u2423", "\u23CE"]), 1);
  assert.equal(id(" 3", ["1", "2"], ["2", "3"]), 1); // numbers between blanks
});

test("a character of several tokens is written whole, and what never becomes one ends", async () => {
  const written = async (texts: string[]) => {
    const asked: number[] = [];
    const ask = async (_: string, { steps }: AskSteps) => {
      asked.push(steps);
      return { text: texts[steps - 1] ?? texts.at(-1), steps: texts.slice(0, steps).map(() => ({ token: "", probability: 0.5, obeys: null })), ended: "asked" };
    };
    const start: AskSteps = { model: "", text: "a", temperature: 1, top_k: null, top_p: 1, seed: 0, steps: 1, first: null };
    const { text, steps } = await wholeStep({ ask } as unknown as Source, start, new AbortController().signal);
    return [text, steps.length, asked.at(-1)];
  };
  assert.deepEqual(await written(["ab", "abc"]), ["ab", 1, 1]);
  assert.deepEqual(await written(["a\ufffd", "a\ufffd", "a\u{1f389}", "a\u{1f389}b"]), ["a\u{1f389}", 3, 3]);
  assert.deepEqual(await written(["a", "a\u05d0"]), ["a\u05d0", 2, 2]);
  assert.deepEqual(await written(["a\ufffd", "a\ufffd", "a\ufffd", "a\ufffd", "a\ufffd"]), ["a\ufffd", 4, 4]);
  assert.deepEqual(await written(["a\ufffd"]), ["a\ufffd", 1, 2]); // the model reads no more
});
