import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { Refused, Unanswered, type Attention, type AskRows, type AskTile, type Source } from "../src/source";
import { Difference, headTiles, HeadTiles, keyOf, shapeOf, type TileId } from "../src/views/attention/tiles";

const stack = (queries: number, keys = queries, windows: (number | null)[] = [null, 4]): Attention => ({
  part: "self",
  label: "self-attention",
  layers: windows.length,
  heads: 2,
  queries,
  keys,
  queries_are: "tokens",
  keys_are: "tokens",
  causal: true,
  windows,
  sinks: false,
});
const id = (row: number, column: number, level = 0): TileId => ({ level, row, column });
const settled = () => new Promise((resolve) => setImmediate(resolve));

/** Answers with the cell's number, query * keys + key, and records what was asked. */
function answering(of: Attention, fail: () => Error | null = () => null) {
  const asked: (AskTile | AskRows)[] = [];
  const source = {
    answers: () => true,
    async ask(name: string, question: AskTile | AskRows) {
      asked.push(question);
      const error = fail();
      if (error) throw error;
      if (name === "rows") return Float32Array.from({ length: of.keys }, (_, key) => (question as AskRows).query * of.keys + key);
      const { row, column } = question as Required<AskTile>;
      const { rows, columns } = shapeOf(of, question as TileId);
      return Float32Array.from({ length: rows * columns }, (_, at) => (row * 256 + Math.floor(at / columns)) * of.keys + column * 256 + (at % columns));
    },
  } as unknown as Source;
  return { source, asked };
}

test("tiles at the edge are smaller, and halve with each level", () => {
  assert.deepEqual(shapeOf(stack(300), id(0, 0)), { rows: 256, columns: 256 });
  assert.deepEqual(shapeOf(stack(300), id(1, 1)), { rows: 44, columns: 44 });
  assert.deepEqual(shapeOf(stack(301, 7), id(0, 0, 1)), { rows: 151, columns: 4 });
});

test("tiles arrive once, and single weights, rows and columns come from them", async () => {
  const of = stack(300);
  const { source, asked } = answering(of);
  const head = new HeadTiles(source, "r", of, { layer: 0, head: 1 });
  const owner = {};
  assert.equal(head.weight(270, 260), null);
  head.want(owner, [id(1, 0), id(1, 1)]);
  assert.ok(head.busy);
  await settled();
  head.want(owner, [id(1, 0), id(1, 1)]);
  await settled();
  assert.equal(asked.length, 2);
  assert.deepEqual(asked[0], { run: "r", part: "self", layer: 0, head: 1, level: 0, row: 1, column: 0, passed: false });
  assert.equal(head.weight(270, 260), 270 * 300 + 260);
  assert.equal(head.weight(260, 270), 0, "a later key is never read");
  assert.equal(head.row(270)?.[260], 270 * 300 + 260);
  assert.equal(head.row(300), null);
  assert.equal(head.column(0), null, "the upper tiles are missing");
  head.want(owner, [id(0, 0), id(0, 1)]);
  await settled();
  assert.equal(head.column(3)?.[270], 270 * 300 + 3);
});

test("a window bounds what a query reads", () => {
  const of = stack(10);
  const head = new HeadTiles(answering(of).source, "r", of, { layer: 1, head: 0 });
  assert.deepEqual([head.weight(9, 5), head.weight(9, 6)], [0, null]);
});

test("a row that is not here is asked for", async () => {
  const of = stack(300);
  const { source, asked } = answering(of);
  const head = new HeadTiles(source, "r", of, { layer: 1, head: 0 });
  assert.equal(head.row(5, false), null);
  assert.equal(asked.length, 0);
  assert.equal(head.row(5), null);
  head.row(5);
  await settled();
  assert.deepEqual(asked, [{ run: "r", part: "self", query: 5, layer: 1, head: 0, passed: false }]);
  assert.equal(head.row(5)?.[2], 1502);
});

test("the newest need is served first, four at once", async () => {
  const of = stack(4096);
  const { source, asked } = answering(of);
  const head = new HeadTiles(source, "r", of, { layer: 0, head: 0 });
  head.want({}, [0, 1, 2, 3, 4].map((column) => id(0, column)));
  head.want({}, [id(9, 9)]);
  assert.equal(asked.length, 4);
  await settled();
  await settled();
  assert.deepEqual(asked.map((each) => keyOf(each as TileId)), ["0.0.0", "0.0.1", "0.0.2", "0.0.3", "0.9.9", "0.0.4"]);
});

test("what is refused is not asked for again", async () => {
  const of = stack(10);
  const refusal = { got: "a", expected: "b", fix: "c" };
  const { source, asked } = answering(of, () => new Refused(refusal));
  const head = new HeadTiles(source, "r", of, { layer: 0, head: 0 });
  const before = head.version.value;
  head.want({}, [id(0, 0)]);
  await settled();
  head.want({}, [id(0, 0)]);
  assert.equal(asked.length, 1);
  assert.ok(head.refuses(id(0, 0)) && !head.refusesRow(0) && !head.busy);
  assert.deepEqual(head.refusal, refusal);
  assert.ok(head.version.value > before);
});

test("what was not answered is asked for again after a while", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const of = stack(10);
    let away = true;
    const { source, asked } = answering(of, () => (away ? new Unanswered({ got: "a", expected: "b", fix: "c" }) : null));
    const head = new HeadTiles(source, "r", of, { layer: 0, head: 0 });
    head.row(3);
    await settled();
    assert.ok(head.refusesRow(3));
    away = false;
    mock.timers.tick(2000);
    assert.ok(!head.refusesRow(3));
    head.row(3);
    await settled();
    assert.equal(asked.length, 2);
    assert.equal(head.refusal, null);
    assert.equal(head.row(3)?.[0], 30);
  } finally {
    mock.timers.reset();
  }
});

test("the tiles of sixteen heads are kept", () => {
  const of = stack(10);
  const { source } = answering(of);
  const tiles = (head: number) => headTiles(source, "r", of, { layer: 0, head });
  const others = Array.from({ length: 15 }, (_, at) => at + 1);
  const first = tiles(0);
  others.forEach(tiles);
  assert.equal(tiles(0), first);
  [16, ...others].forEach(tiles);
  assert.notEqual(tiles(0), first);
});

test("a difference is one head less the other, seen through the wider window", async () => {
  const of = stack(10);
  const { source } = answering(of);
  const [one, other] = [0, 1].map((layer) => new HeadTiles(source, "r", of, { layer, head: 0 })) as [HeadTiles, HeadTiles];
  const difference = new Difference(other, one);
  assert.equal(difference.layer, 0);
  let heard = 0;
  const stop = difference.follow();
  const unsubscribe = difference.version.subscribe(() => (heard += 1));
  assert.equal(difference.tile(id(0, 0)), null);
  difference.want({}, [id(0, 0)]);
  await settled();
  assert.deepEqual([...(difference.tile(id(0, 0)) ?? [1])], new Array(100).fill(0));
  assert.ok(heard > 2);
  stop();
  unsubscribe();
});
