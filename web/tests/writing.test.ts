import assert from "node:assert/strict";
import { test } from "node:test";
import type { Next } from "../src/source";
import { candidateOf } from "../src/views/sampling/writing";

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
