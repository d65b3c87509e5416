import assert from "node:assert/strict";
import { test } from "node:test";
import type { Detected, Measures } from "../src/source";
import { inWords } from "../src/views/attention/grid";

test("a score of random tokens says so, after what is measured on the text", () => {
  const measures: Measures = { entropy: [[1.0625]], distance: [[4]], sink: null, most_read: [[0]], on_one: [[0.67]], passed: null, thumbnails: [] };
  const detected: Detected = { first: [[0.52]], previous: [[0]], duplicate: [[0]], induction: [[0]] };
  const own = "entropy 1.06 bits, distance 4 tokens, 67 % on one token";
  assert.equal(inWords(measures, detected, { layer: 0, head: 0 }), `${own}; on random tokens, read twice: first token 52 %`);
  assert.equal(inWords(measures, null, { layer: 0, head: 0 }), own);
});
