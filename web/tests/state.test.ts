import assert from "node:assert/strict";
import { test } from "node:test";
import type { ModelCard } from "../src/source";
import { cardOf, fits, fromHash, fromWords, resolved, START, startOf, startOfStep, toHash, toWords } from "../src/state";

const card: ModelCard = {
  name: "facts",
  title: "Facts",
  kind: "encoder_decoder",
  about: "",
  views: ["scramble", "attention"],
  text: "Who?",
  source: ["a=1"],
  samples: [],
  second: "",
  input_help: "",
  words: null,
  layer: 1,
  head: 2,
  blank: "", code: "",
  origin: "shipped",
};

test("an empty address is the defaults, and the defaults are an empty address", () => {
  assert.deepEqual(fromWords({}), START);
  assert.deepEqual(toWords(START), {});
  assert.equal(START.shape, "matrix");
  assert.equal(START.topP, 1);
  assert.deepEqual(START.cells, {});
});

test("a state comes back from its words", () => {
  const state = {
    ...START,
    model: "facts",
    text: "",
    part: "cross" as const,
    layer: 3,
    versus: { layer: 0, head: 1 },
    window: { query: 1, key: 2, size: 3 },
    cells: { "Km.0.0": "x" },
    topK: 5,
    root: false,
    source: ["a", "b"],
    order: [1, 0],
  };
  assert.deepEqual(fromWords(toWords(state)), state);
  assert.equal(toWords(state).part, "cross");
  assert.deepEqual(fromWords(Object.fromEntries(new URLSearchParams(toHash(state).slice(1)))), state);
});

test("words that do not fit their field are ignored", () => {
  for (const words of [
    { layer: "-1" },
    { layer: "4096" },
    { layer: "1.5" },
    { layer: "one" },
    { view: "cellar" },
    { part: "third" },
    { temperature: "-0.1" },
    { temperature: "null" },
    { topK: "0" },
    { topP: "1.01" },
    { seed: String(2 ** 53) },
    { versus: '{"layer":1}' },
    { versus: '{"layer":1,"head":2,"more":3}' },
    { versus: '{"layer":1,"head":2,"__proto__":3}' },
    { window: '{"query":0,"key":0,"size":0}' },
    { order: "[256]" },
    { source: "[1]" },
    { source: '["\\ud800"]' },
    { cells: '{"Km.0.0":1}' },
    { toString: "1" },
    { unknown: "1" },
  ] as Record<string, string>[]) {
    assert.deepEqual(fromWords(words), START, JSON.stringify(words));
  }
});

test("lengths are counted in characters, not in halves of surrogate pairs", () => {
  assert.ok(fits("\u{1F600}".repeat(80), { type: "string", maxLength: 80 }));
  assert.ok(!fits("x".repeat(81), { type: "string", maxLength: 80 }));
});

test("an address without a model shows the first one, one with an unknown model none", () => {
  const other = { ...card, name: "other" };
  assert.equal(cardOf(START, [card, other]), card);
  assert.equal(cardOf({ ...START, model: "other" }, [card, other]), other);
  assert.equal(cardOf({ ...START, model: "absent" }, [card, other]), null);
  assert.equal(cardOf(START, []), null);
});

test("text and view come from the card where the address has none", () => {
  assert.deepEqual([resolved(START, card).text, resolved(START, card).view], ["Who?", "scramble"]);
  const address = { ...START, text: "", view: "attention" as const };
  assert.deepEqual([resolved(address, card).text, resolved(address, card).view], ["", "attention"]);
  assert.deepEqual([resolved(START, null).text, resolved(START, null).view], ["", "attention"]);
  const decoder = { ...card, views: ["flow" as const, "attention" as const] };
  assert.equal(resolved(START, decoder).view, "attention");
  assert.equal(resolved({ ...START, view: "flow" }, decoder).view, "flow");
});

test("choosing a model resets what belongs to another, and keeps what does not", () => {
  const start = startOf(card);
  assert.deepEqual([start.model, start.view, start.part, start.layer, start.head], ["facts", "scramble", null, null, null]);
  assert.deepEqual([start.cells, start.written, start.pin, start.versus], [{}, [], null, null]);
  assert.ok(!("shape" in start) && !("temperature" in start));
  assert.equal(startOf({ ...card, kind: "decoder" }).part, null);
});

test("the address of a step of a tour holds what differs from its beginning", () => {
  const begin = startOfStep("first", 4);
  assert.ok(begin);
  assert.equal(toHash(begin), "#tour=first&step=4");
  assert.deepEqual(fromHash("#tour=first&step=4"), begin);
  // What the step sets and the reader takes back stays so.
  const steered = startOfStep("smollm2", 10);
  assert.ok(steered?.steer);
  const own = { ...steered, steer: null, layer: 3 };
  assert.deepEqual(fromHash(toHash(own)), own);
  assert.deepEqual(Object.keys(toWords(begin)).includes("tour"), false);
  assert.deepEqual(fromHash("#tour=first&step=99"), START);
  assert.deepEqual(fromHash("#tour=__proto__&step=x&layer=2"), { ...START, layer: 2 });
  assert.equal(fromHash("#tour=first", { model: "identity" }).step, 1);
  const saved = { model: "identity", text: "AB" };
  assert.deepEqual([fromHash("#layer=1", saved).text, fromHash("#model=unique", saved).text], ["AB", null]);
});

test("a head that the address leaves open is the card's; where it names a part of it, the others are 0", () => {
  const place = (words: Record<string, string>) => (({ layer, head }) => [layer, head])(resolved(fromWords(words), card));
  assert.deepEqual([{}, { layer: "3" }, { head: "4" }, { layer: "0", head: "0" }, { pin: "1" }].map(place), [[1, 2], [3, 0], [0, 4], [0, 0], [0, 0]]);
  assert.equal(toHash({ ...START, layer: 0, head: 0 }), "#layer=0&head=0");
});
