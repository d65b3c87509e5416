// Where the difference between two texts is carried.
import assert from "node:assert/strict";
import { test } from "node:test";
import { carried, largest } from "../src/views/patch/carried";

test("the place of the first layers and that of the last are named", () => {
  const shares = [[0, 1, 0], [0, 0.9, 0], [0, 0.4, 0.45], [0, 0, 1], [0, 0.1, 1]];
  assert.deepEqual(carried(shares), { early: { position: 1, until: 1 }, late: { position: 2, from: 3 } });
});

test("one place may hold it throughout", () => {
  assert.deepEqual(carried([[0, 1], [0, 0.7]]), { early: { position: 1, until: 1 }, late: { position: 1, from: 0 } });
});

test("nothing is said before all is known, or where no place holds half of it", () => {
  assert.equal(carried([[0, 1], [null, 1]]), null);
  assert.equal(carried([[0.3, 0.3], [0, 1]]), null);
  assert.equal(carried([]), null);
});

test("only places that are known bring back most", () => {
  assert.deepEqual(largest([[null, null], [null, null]], 10), []);
  const known = [{ layer: 1, position: 0, share: -0.8 }, { layer: 0, position: 1, share: 0.5 }];
  assert.deepEqual(largest([[null, 0.5], [-0.8, 0.1]], 2), known);
});
