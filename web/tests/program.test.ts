// The layout of a program's graph, and names.
import { test } from "node:test";
import assert from "node:assert/strict";
import { HIGH, WIDE, laidOut } from "../src/views/program/layout";
import { bare } from "../src/views/program/part";

const GRAPHS = [
  [[]],
  [[], [0, 0], [1]],
  [[], [], [0, 1], [2, 2], [3], [4, 1], [5, 0]],
  [[], [0], [0], [1, 2], [], [3, 4], [0, 5, 1]],
];

test("parts stand below what they read, and boxes do not overlap", () => {
  for (const sources of GRAPHS) {
    const { places, lines, width, height } = laidOut(sources);
    sources.forEach((from, at) => from.forEach((each) => assert.ok((places[each]?.y ?? 0) + HIGH < (places[at]?.y ?? 0))));
    places.forEach((one, at) =>
      places.slice(at + 1).forEach((other) => assert.ok(one.y !== other.y || Math.abs(one.x - other.x) >= WIDE)),
    );
    for (const { x, y } of places) assert.ok(x >= 0 && x + WIDE <= width && y >= 0 && y + HIGH <= height);
    assert.equal(lines.length, sources.reduce((sum, from) => sum + new Set(from).size, 0));
  }
});

test("selectors are named without the word", () => {
  assert.equal(bare("select(place == indices)"), "place == indices");
  assert.equal(bare("select(indices == (tokens at 0 + 1))"), "indices == (tokens at 0 + 1)");
  assert.equal(bare("(select(a == b) & select(c < d))"), "a == b & c < d");
  assert.equal(bare("(tokens == 'a')"), "(tokens == 'a')");
  assert.equal(bare("first occurrences"), "first occurrences");
});
