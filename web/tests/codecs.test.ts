import assert from "node:assert/strict";
import { test } from "node:test";
import { codecOf } from "../src/engine/codecs";

test("a character of several bytes is named with its part in each, as glassformer/data/released_tokenizer.py does", () => {
  const codec = codecOf({ kind: "bytes", longest: 100 });
  assert.deepEqual(codec.labels(codec.encode("a é\n")), ["a", "\u2423", "\u00E9 1/2", "\u00E9 2/2", "\u23CE"]);
  assert.deepEqual(codec.labels(codec.encode("\u{1F389}")), [1, 2, 3, 4].map((part) => `\u{1F389} ${part}/4`));
  assert.equal(codec.word(0xc3), "\\xc3");
});

test("tokens that are whole characters keep their names", () => {
  const codec = codecOf({ kind: "numbers", vocab_size: 20, longest: 9, recurrence: null });
  assert.deepEqual(codec.labels(codec.encode("3 17")), ["3", "17"]);
});
