import assert from "node:assert/strict";
import { test } from "node:test";
import type { Attention, HeadSweep } from "../src/source";
import { START, type State } from "../src/state";
import {
  chanceOf,
  changesOf,
  edgesOf,
  isRemoved,
  setSwap,
  shownOutcomes,
  strongest,
  swapOf,
  toggleEdge,
  toggleHead,
  type Edits,
} from "../src/views/what-if/edits";
import { inHundredths } from "../src/views/what-if/contributions";
import { effectsOf } from "../src/views/what-if/effects";

const none: Edits = START;
const first = { part: "self" as const, layer: 1, head: 2 };
const made = (change: Partial<State>): Edits => ({ ...none, ...change });

test("a head is removed and brought back, and no other one", () => {
  const without = made(toggleHead(none, first));
  assert.ok(isRemoved(without, first));
  for (const other of [{ ...first, layer: 2 }, { ...first, head: 1 }, { ...first, part: "cross" as const }]) assert.ok(!isRemoved(without, other));
  const both = made(toggleHead(without, { ...first, head: 0 }));
  assert.deepEqual(toggleHead(both, first), { removed: [{ ...first, head: 0 }] });
});

test("an edge is forbidden in one head, in its layer, or in the stack", () => {
  const cell = { query: 5, key: 3 };
  const reached = (scope: "head" | "layer" | "stack") => {
    const edits = made(toggleEdge(none, first, cell, scope));
    return [first, { ...first, head: 0 }, { ...first, layer: 0 }, { ...first, part: "cross" as const }].map((head) => edgesOf(edits, head).length);
  };
  assert.deepEqual(reached("head"), [1, 0, 0, 0]);
  assert.deepEqual(reached("layer"), [1, 1, 0, 0]);
  assert.deepEqual(reached("stack"), [1, 1, 1, 0]);
});

test("a second click on a cell takes back everything that forbids it there", () => {
  const cell = { query: 5, key: 3 };
  const own = made(toggleEdge(none, first, cell, "head"));
  const elsewhere = made(toggleEdge(own, { ...first, head: 0 }, cell, "head"));
  const all = { ...elsewhere, forbidden: [...elsewhere.forbidden, { part: "self" as const, layer: null, head: null, ...cell }] };
  assert.deepEqual(toggleEdge(all, first, cell, "head").forbidden, [{ ...first, head: 0, ...cell }]);
  assert.equal(toggleEdge(all, first, { query: 5, key: 4 }, "head").forbidden?.length, 4);
});

test("an expert is forbidden, replaced, and as it was", () => {
  const forbidden = made(setSwap(none, 1, 2, null));
  assert.equal(swapOf(forbidden, 1, 2)?.instead, null);
  assert.equal(swapOf(forbidden, 1, 3), undefined);
  const replaced = made(setSwap(forbidden, 1, 2, 0));
  assert.deepEqual(replaced.swaps, [{ layer: 1, expert: 2, instead: 0 }]);
  assert.deepEqual(setSwap(replaced, 1, 2, undefined).swaps, []);
});

test("every change is named and can be taken back alone", () => {
  const edits: Edits = {
    removed: [first],
    forbidden: [
      { ...first, query: 1, key: 0 },
      { part: "self", layer: 1, head: null, query: 1, key: 0 },
      { part: "self", layer: null, head: null, query: 2, key: 0 },
    ],
    steer: { layer: 0, toward: 7, away: 3, strength: -0.5 },
    swaps: [{ layer: 2, expert: 0, instead: null }, { layer: 2, expert: 1, instead: 3 }],
  };
  const changes = changesOf(edits, [{ part: "self", label: "self-attention" }], (edge, side) => `${side[0]}${edge[side]}`, (id) => `t${id}`);
  assert.deepEqual(changes.map(({ text }) => text), [
    "without layer 1, head 2",
    "edge from q1 to k0 forbidden in layer 1, head 2",
    "edge from q1 to k0 forbidden in every head of layer 1",
    "edge from q2 to k0 forbidden in every head",
    "after layer 0: \u22120.5 times the stream's length towards t7, away from t3",
    "layer 2: no expert A",
    "layer 2: expert D for B",
  ]);
  changes.forEach(({ without }, at) => {
    const left = changesOf({ ...edits, ...without }, [], (edge, side) => `${side[0]}${edge[side]}`, (id) => `t${id}`);
    assert.deepEqual(left.map(({ text }) => text), changes.filter((_, other) => other !== at).map(({ text }) => text));
  });
});

test("with several stacks a change names its own", () => {
  const stacks = [{ part: "encoder" as const, label: "encoder's self-attention" }, { part: "cross" as const, label: "cross-attention" }];
  const changes = changesOf(made(toggleHead(none, { ...first, part: "cross" })), stacks, () => "", () => "");
  assert.deepEqual(changes.map(({ text }) => text), ["without layer 1, head 2 of cross-attention"]);
});

test("outcomes keep the order that they had before the change", () => {
  const outcome = (id: number, before: number, after: number) => ({ id, name: `${id}`, before, after });
  const outcomes = [outcome(0, 0.1, 0.8), outcome(1, 0.7, 0.1), outcome(2, 0.15, 0.05), outcome(3, 0.05, 0.05)];
  const answer = { kind: "token" as const, place: 0, target: 3, outcomes, rest: 0, rest_before: 0, rest_after: 0, changes: [], distance: 0.7, offers: [] };
  assert.deepEqual(shownOutcomes(answer, 2).map(({ id }) => id), [1, 0, 3]);
  assert.deepEqual(shownOutcomes({ ...answer, target: 1 }, 2).map(({ id }) => id), [1, 0]);
});

test("log-odds are probabilities", () => {
  assert.equal(chanceOf(0), 0.5);
  assert.ok(Math.abs(chanceOf(Math.log(0.9 / 0.1)) - 0.9) < 1e-12);
  assert.deepEqual([chanceOf(-1000), chanceOf(1000)], [0, 1]);
});

test("the heads with the largest effects are listed first; what is not known counts as none", () => {
  const after = [[1, 4, null], [-2, 1.5, 1]];
  assert.deepEqual(strongest(after, 1).slice(0, 3), [{ layer: 0, head: 1 }, { layer: 1, head: 0 }, { layer: 1, head: 1 }]);
  assert.equal(strongest([Array(20).fill(0)], 1).length, 10);
});

test("an estimated effect has no probability, which would look final", () => {
  const stack = { part: "self", after: [[0, 1]], exact: [[true, false]] };
  const sweep = { target: 0, name: "a", other: null, other_name: null, before: 2, stacks: [stack], done: 1, total: 2 } as HeadSweep;
  const effects = effectsOf(sweep, { part: "self" } as Attention);
  assert.equal(effects.inWords({ layer: 0, head: 0 }), "\u22122, 88.1 % to 50.0 %");
  assert.equal(effects.inWords({ layer: 0, head: 1 }), "\u22121, estimated");
});

test("a sum has two decimals, however large it is", () => {
  assert.deepEqual([11.04, -0.5, 2].map(inHundredths), ["+11.04", "\u22120.50", "+2.00"]);
});
