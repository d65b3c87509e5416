import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { fromSaved } from "../src/saved";

/** As glassformer/explorer/saving/recorded_weights.py packs numbers. */
function packed(numbers: number[]): string {
  const bytes = new Uint8Array(Float32Array.from(numbers).buffer);
  const planes = [0, 1, 2, 3].flatMap((plane) => numbers.map((_, at) => bytes[4 * at + plane]!));
  return deflateSync(Uint8Array.from(planes)).toString("base64");
}

test("weights that are no numbers stay so, also in overview", async () => {
  const place = { run: "r", part: "self" as const, layer: 0, head: 0 };
  const matrix = { ...place, level: 0, rows: 2, columns: 4, numbers: packed([1, 0, 0, 0, NaN, 0, 0.25, 0.75]) };
  const file = { version: "", state: {}, answers: [], rows: [], matrices: [matrix], left_out: [], model: null, pages: [] };
  const at = (level: number) => fromSaved(file).ask("weights", { ...place, level, row: 0, column: 0, passed: false });
  assert.deepEqual([...(await at(0))], [1, 0, 0, 0, NaN, 0, 0.25, 0.75]);
  assert.deepEqual([...(await at(1))], [NaN, 0.75]);
});

test("a file holds the rows of its heads, the queries that were shown, and its view", async () => {
  const place = { run: "r", part: "self" as const, layer: 0, head: 0 };
  const matrix = { ...place, level: 0, rows: 2, columns: 2, numbers: packed([1, 0, 0.25, 0.75]) };
  const every = { run: "r", part: "self" as const, query: 1, layer: null, head: null, passed: false };
  const held = { rows: [{ asked: every, numbers: packed([0.5, 0.5]) }], matrices: [matrix] };
  const source = fromSaved({ version: "", state: { view: "attention" }, answers: [], left_out: [], model: null, pages: [], ...held });
  assert.deepEqual([...(await source.ask("rows", every))], [0.5, 0.5]);
  assert.deepEqual([...(await source.ask("rows", { ...every, layer: 0, head: 0 }))], [0.25, 0.75]);
  for (const other of [{ query: 0 }, { layer: 0, head: 1 }, { layer: 0, head: 0, query: 2 }, { layer: 0, head: 0, passed: true }]) {
    await assert.rejects(source.ask("rows", { ...every, ...other }), /not in the saved file|does not hold/);
  }
  assert.deepEqual([source.shows("attention"), source.shows("flow")], [true, false]);
});
