import assert from "node:assert/strict";
import { test } from "node:test";
import { shown } from "../src/views/attention/stack";

test("a label shows what is invisible", () => {
  const labels = { "\n": "\u21B5", " ": "\u2423", "": "\u2205", "\u0000": "\\u0000", "a\u001Bb": "a\\u001bb", "\u00A0": "\u237D", "\u2003": "\\u2003", "\u200B\u200B": "\\u200b\\u200b" };
  for (const [token, label] of Object.entries(labels)) assert.equal(shown(token), label);
  for (const token of ["word", "a b", "\u{1F469}\u200D\u{1F467}", "\u05E9"]) assert.equal(shown(token), token);
});
