// Verdicts on heads whose outputs are near what decides, as tests/handcraft/test_near_zero.py has them.
import { test } from "node:test";
import assert from "node:assert/strict";
import { certify } from "../src/engine/certifying";
import { tablesOf, type HeadWeights, type Task } from "../src/engine/places";

const ONCE: Task = {
  ...{ letters: ["A"], has_cls: true, max_len: 1, v_dim: 1, readout: "sign", tolerance: null, decisive_error: 1 },
  ...{ targets: [[1]], tiers: null },
};
const head = (values: number[]): HeadWeights => ({ Km: [[1], [0]], Qm: [[0.8], [0]], Vm: values.map((value) => [value]), pos: null });
const judged = (weights: HeadWeights, task: Task) => certify(tablesOf(weights, task), task, async () => {});

test("outputs that cancel are undecided", async () => {
  const certificate = await judged(head([-7, 7 * Math.exp(0.8)]), ONCE);
  assert.equal(certificate.verdict, "undecided");
  assert.equal(certificate.num_undecided, 1);
  assert.equal(certificate.undecided?.sequence, "A");
  assert.equal(certificate.covers, "1 letter of A, after CLS");
  assert.ok(Math.abs(certificate.undecided!.output[0]!) < certificate.rounding! && certificate.rounding! < 1e-12);
});

test("small outputs that do not cancel are decided", async () => {
  for (const scale of [1e-200, 1, 1e200]) {
    assert.equal((await judged(head([scale, scale]), ONCE)).verdict, "holds");
    assert.equal((await judged(head([-scale, -scale]), ONCE)).verdict, "fails");
  }
});

test("an error at the tolerance is undecided unless nothing is rounded", async () => {
  const verdicts = async (value: number, tolerances: number[]) =>
    Promise.all(tolerances.map(async (tolerance) => (await judged(head([value, value]), { ...ONCE, tolerance })).verdict));
  assert.deepEqual(await verdicts(0.75, [0.25 + 1e-12, 0.25, 0.25 - 1e-12]), ["holds", "undecided", "fails"]);
  assert.deepEqual(await verdicts(0, [1, 1 - 1e-12]), ["holds", "fails"]);
});
