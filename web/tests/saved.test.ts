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
