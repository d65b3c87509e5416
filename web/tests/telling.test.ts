import assert from "node:assert/strict";
import { test } from "node:test";
import type { Contribution, Run, Source } from "../src/source";
import { Refused } from "../src/source";
import { START, isOpen, isViewOpen, type Address, type Store } from "../src/state";
import { beginningWith, tellingHead } from "../src/views/attention/telling";

const TOKENS = ["When", "Mary", "gave", "to"];
const run = {
  run: "one",
  ask: { model: "small", text: "", source: null, order: null, weights: null, changes: null },
  tokens: TOKENS,
  source: null,
  attentions: [{ part: "self", label: "", layers: 2, heads: 2, queries: 4, keys: 4, queries_are: "tokens", keys_are: "tokens", causal: true, windows: [null, null], sinks: false }],
  said: { headline: "", classes: [], words: [] },
  place: 3,
} as Run;

/** A source with what each head adds (null: unknown), how much it inducts, and what it reads: by "layer.head". */
function source(added: Record<string, number> | null, rows: Record<string, number[]>, induction: number[][] = [[0, 0], [0, 0]]): Source {
  const part = (place: string, value: number): Contribution => {
    const [layer, number] = place.split(".").map(Number) as [number, number];
    return { name: "", kind: "head", part: "self", layer, number, value };
  };
  return {
    typing: 0,
    answers: () => true,
    async ask(name: string, asked: unknown) {
      if (name === "contributions" && added === null) throw new Refused({ got: "", expected: "", fix: "" });
      if (name === "contributions") return { name: " Mary", parts: Object.entries(added!).map(([place, value]) => part(place, value)) };
      if (name === "detect") return { induction };
      const { layer, head } = asked as { layer: number; head: number };
      return Float32Array.from(rows[`${layer}.${head}`]!);
    },
  } as unknown as Source;
}

test("of the heads that read an earlier token, the one that adds most to the answer stands out", async () => {
  const rows = { "0.0": [0.9, 0.1, 0, 0], "0.1": [0, 0.2, 0.2, 0.6], "1.0": [0.2, 0.5, 0.2, 0.1], "1.1": [0, 0, 0.9, 0.1] };
  const found = await tellingHead(source({ "0.0": 9, "0.1": 8, "1.0": 2, "1.1": 1 }, rows), run);
  assert.deepEqual(found, { run: "one", answer: " Mary", head: { layer: 1, head: 0, pin: 3, key: 1, weight: 0.5, added: 2 } });
});

test("no head stands out that spreads its weight, adds little, or rests on the first token", async () => {
  const rows = { "0.0": [0.9, 0.1, 0, 0], "0.1": [0.25, 0.25, 0.25, 0.25], "1.0": [0, 1, 0, 0], "1.1": [NaN, NaN, NaN, NaN] };
  const found = await tellingHead(source({ "0.0": 9, "0.1": 8, "1.0": 0.1, "1.1": 3 }, rows), run);
  assert.deepEqual(found, { run: "one", answer: " Mary", head: null });
});

test("where logits are no sum over heads, it is the strongest induction head that reads an earlier token", async () => {
  const rows = { "0.1": [0, 1, 0, 0], "1.0": [1, 0, 0, 0], "1.1": [0, 0, 0.75, 0.25] };
  const found = await tellingHead(source(null, rows, [[0, 0.5], [0.9, 0.8]]), run);
  assert.deepEqual(found, { run: "one", answer: null, head: { layer: 1, head: 1, pin: 3, key: 2, weight: 0.75, added: null } });
});

test("an address that names a head, or anything pinned, is not open", () => {
  assert.ok(isOpen({ ...START, model: "a", text: "b", shape: "lines" }));
  for (const named of [{ layer: 0 }, { head: 0 }, { pin: 0 }, { key: 0 }, { versus: { layer: 0, head: 0 } }, { tour: "first" }]) {
    assert.ok(!isOpen({ ...START, ...named }));
  }
});

test("an address that says how attention is drawn leaves no view open", () => {
  assert.ok(isViewOpen({ ...START, model: "a", text: "b" }));
  const window = { query: 0, key: 0, size: 8 };
  for (const named of [{ view: "attention" as const }, { shape: "lines" as const }, { window }]) {
    assert.ok(!isViewOpen({ ...START, ...named }));
  }
});

test("changes begin with the head that is shown, except for another text or model", () => {
  const changes: Partial<Address>[] = [];
  const store = { set: (change: Partial<Address>) => changes.push(change) } as unknown as Store;
  const shown = { layer: 23, head: 0, pin: 13 };
  const begun = beginningWith(store, shown);
  begun.set({ head: 4 });
  begun.set({ pin: null, key: null });
  begun.set({ view: "whatif" });
  begun.set({ shape: "lines" });
  begun.set({ text: "Another", pin: null });
  beginningWith(store, { ...shown, pin: null }).set({ view: "whatif" });
  assert.deepEqual(changes, [
    { ...shown, head: 4 },
    { ...shown, pin: null, key: null },
    { ...shown, view: "whatif" },
    { shape: "lines" },
    { text: "Another", pin: null },
    { view: "whatif" },
  ]);
});
