import assert from "node:assert/strict";
import { test } from "node:test";
import type { Contribution } from "../src/source";
import { added, inWords, isLabelled, layoutOf, nameOf, piecesOf, ribbon, spaced } from "../src/views/flow/layout";

const part = (kind: Contribution["kind"], layer: number | null, value: number, number: number | null = null): Contribution => ({
  ...{ name: "", kind, part: null, layer, number, value },
});
const PARTS = [
  part("embedding", null, -0.2),
  ...[0.1, -0.3, 2.25].map((value, head) => part("head", 0, value, head)),
  part("ffn", 0, 5.93),
  ...[-0.05, 0.02, -1.5].map((value, head) => part("head", 1, value, head)),
  part("bias", 1, 0.01),
  part("ffn", 1, -0.4),
  part("bias", null, 0.3),
];
const sum = (values: { value: number }[]) => values.reduce((all, { value }) => all + value, 0);
const close = (one: number, other: number) => assert.ok(Math.abs(one - other) < 1e-9, `${one} is not ${other}`);

test("pieces have the sum of the parts, however many heads are shown alone", () => {
  for (const most of [0, 1, 3, 10]) close(sum(piecesOf(PARTS, most)), sum(PARTS));
  const pieces = piecesOf(PARTS, 2);
  assert.deepEqual(pieces.map(nameOf), [
    "the embedding",
    "2 other heads of layer 0",
    "head 2 of layer 0",
    "the MLP of layer 0",
    "2 other heads of layer 1",
    "head 2 of layer 1",
    "the MLP of layer 1",
    "biases",
  ]);
});

test("experts of a layer are one network, and a model may have none", () => {
  const experts = [part("embedding", null, 1), part("head", 0, 1, 0), part("expert", 0, 2, 0), part("expert", 0, 3, 1)];
  const pieces = piecesOf(experts, 5);
  assert.deepEqual(pieces.map(nameOf), ["the embedding", "head 0 of layer 0", "the experts of layer 0"]);
  assert.equal(pieces.at(-1)!.value, 5);
  assert.ok(!inWords("a", 2, piecesOf(experts.slice(0, 2), 5)).includes("MLP"));
});

test("the strongest parts are named in words", () => {
  assert.equal(
    inWords("\u2423John", sum(PARTS), piecesOf(PARTS, 2)),
    "\u201C\u2423John\u201D gets 5.9 of its logit of 6.2 from the MLP of layer 0, 2.3 from head 2 of layer 0, 0.3 from biases; " +
      "head 2 of layer 1 takes 1.5 from it. In sum: all heads 0.5, all MLPs 5.5, the embedding \u22120.2, biases 0.3.",
  );
  assert.equal(inWords("a", -1, [{ ...piecesOf(PARTS, 2)[0]!, value: -1 }]), "\u201Ca\u201D has a logit of \u22121.0; the embedding takes 1.0 from it. In sum: the embedding \u22121.0.");
});

test("ribbons are as wide as what they add, fit beside the stream, and parts do not overlap", () => {
  const { bands, height } = layoutOf(piecesOf(PARTS, 3), 100);
  const scale = bands.map(({ size, piece }) => size / Math.abs(piece.value));
  for (const each of scale) close(each, scale[0]!);
  for (const left of [true, false]) {
    const side = bands.filter((band) => band.left === left);
    for (const [at, band] of side.entries()) {
      assert.ok(band.inner + band.size <= 101 + 1e-9 && band.y - band.size / 2 >= 0 && band.y + band.size / 2 <= height);
      const next = side[at + 1];
      // Upwards, and outwards from the stream.
      if (next) assert.ok(next.y + next.size / 2 <= band.y - band.size / 2 && next.inner >= band.inner + band.size - 1e-9);
    }
  }
  assert.ok(bands.filter(({ piece }) => piece.kind === "network").every(({ left }) => !left));
});

test("for a finger, labels are large and only the strongest parts have one", () => {
  const parts = [part("embedding", null, 0), ...Array.from({ length: 30 }, (_, layer) => part("ffn", layer, layer))];
  const pieces = piecesOf(parts, 5);
  const { bands, height } = layoutOf(pieces, 40, true);
  const labelled = bands.filter(({ piece }) => isLabelled(piece, true) && piece.kind === "network");
  assert.deepEqual(labelled.map(({ piece }) => piece.layer), [25, 26, 27, 28, 29]);
  for (const [at, { y }] of labelled.slice(1).entries()) assert.ok(labelled[at]!.y - y >= 40);
  assert.ok(height < 30 * 40 && bands.filter(({ piece }) => isLabelled(piece, false)).length === 31);
});

test("a ribbon begins at its part and ends at the top", () => {
  const band = { ...layoutOf(piecesOf(PARTS, 3), 100).bands[0]!, left: true, y: 50, size: 4, inner: 10 };
  assert.equal(ribbon(band, 0, 100, 8, 5), "M0 52H81A9 9 0 0 0 90 43V8H86V43A5 5 0 0 1 81 48H0Z");
  assert.equal(ribbon({ ...band, left: false }, 200, 100, 8, 5), "M200 52H119A9 9 0 0 1 110 43V8H114V43A5 5 0 0 0 119 48H200Z");
});

test("numbers are short and signed", () => {
  assert.deepEqual([5.93, -1.04, 0.412, -0.02, 0.001, 12.34].map(added), ["+5.9", "\u22121.0", "+0.41", "\u22120.02", "0", "+12.3"]);
});

test("labels keep their distance, the first ones first", () => {
  assert.deepEqual(spaced([{ at: 5, x: 50 }, { at: 4, x: 45 }, { at: 1, x: 10 }], 10), [5, 1]);
});
