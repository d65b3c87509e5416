import assert from "node:assert/strict";
import { test } from "node:test";
import { marginsFor, paintAxes, paintMarks } from "../src/views/attention/axes";
import type { Paint } from "../src/views/attention/colours";
import { boxFor, whole, type Box, type View } from "../src/views/attention/viewport";

const paint: Paint = {
  dark: false,
  panel: "#ffffff",
  ink: "#000000",
  quiet: "#666666",
  line: "#cccccc",
  accent: "#0000ff",
  accentInk: "#ffffff",
  second: "#ff0000",
  bad: "#aa0000",
  mono: "monospace",
};

/** A canvas that records the texts and frames drawn on it; every other call does nothing. */
function canvas() {
  const texts: string[] = [];
  const frames: number[][] = [];
  const known: Record<string, unknown> = {
    fillText: (text: string) => texts.push(text),
    strokeRect: (...frame: number[]) => frames.push(frame),
    measureText: (text: string) => ({ width: 7 * text.length }),
  };
  const context = new Proxy(known, { get: (target, name: string) => target[name] ?? (() => {}), set: () => true });
  return { context: context as unknown as CanvasRenderingContext2D, texts, frames };
}

function drawn(words: { queries: string[]; keys: string[] }, box: Box, view: View = whole(box)): string[] {
  const { context, texts } = canvas();
  paintAxes(context, words, view, box, marginsFor(words, 800), paint);
  return texts;
}

test("margins have room for the longest word, cut to what there is room for", () => {
  const words = { queries: ["a", "bcd"], keys: ["x".repeat(30), "y"] };
  const [narrow, wide] = [marginsFor(words, 400), marginsFor(words, 800)];
  assert.deepEqual([narrow.letters, wide.letters], [8, 14]);
  assert.deepEqual([narrow.longest, wide.longest], [8, 14]);
  assert.ok(wide.top > narrow.top && wide.top > wide.left);
});

test("margins have room for the largest position", () => {
  const words = { queries: Array<string>(2000).fill("a"), keys: ["a"] };
  assert.equal(marginsFor(words, 800).left, marginsFor({ ...words, queries: ["1999"] }, 800).left);
});

test("every word stands where cells have room for it", () => {
  const words = { queries: ["q0", "q1", "q2"], keys: ["k0", "k1", "k2"] };
  assert.deepEqual(drawn(words, boxFor(3, 3, { width: 300, height: 300 })), ["q0", "q1", "q2", "k0", "k1", "k2"]);
});

test("positions stand where they have none, those in view alone", () => {
  const count = 1000;
  const words = { queries: Array<string>(count).fill("q"), keys: Array<string>(count).fill("k") };
  const box = boxFor(count, count, { width: 500, height: 500 });
  const all = drawn(words, box);
  assert.ok(all.length >= 4 && all.length <= 24);
  assert.ok(all.every((text) => /^\d+$/.test(text) && Number(text) < count));
  const part = drawn(words, box, { query: 400, key: 700, size: 100 });
  assert.ok(part.every((text) => (Number(text) >= 400 && Number(text) < 500) || (Number(text) >= 700 && Number(text) < 800)));
});

test("the hovered and the pinned cell have their words even where others have none", () => {
  const count = 1000;
  const words = { queries: Array.from({ length: count }, (_, at) => `q${at}`), keys: Array.from({ length: count }, (_, at) => `k${at}`) };
  const box = boxFor(count, count, { width: 500, height: 500 });
  const { context, texts, frames } = canvas();
  paintMarks(context, words, whole(box), box, 14, { hover: { query: 20, key: 10 }, pin: 700, crossed: [] }, paint);
  assert.deepEqual(texts, ["q700", "q20", "k10"]);
  assert.equal(frames.length, 4);
  const away = canvas();
  paintMarks(away.context, words, { query: 0, key: 0, size: 100 }, box, 14, { hover: null, pin: 700, crossed: [] }, paint);
  assert.deepEqual([away.texts, away.frames], [[], []]);
});
