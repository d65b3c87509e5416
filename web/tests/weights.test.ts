import assert from "node:assert/strict";
import { test } from "node:test";
import {
  asFile,
  block,
  brief,
  cellsOf,
  edited,
  fromFile,
  parse,
  sizesOf,
  typed,
  whole,
  type Weights,
} from "../src/views/design/weights";

/** Two tokens and one coordinate. */
const design: Weights = {
  Km: [[1, 2], [3, 4], [0, 0.5]],
  Qm: [[0, 2], [1, 4], [0, 0.5]],
  Vm: [[1], [2], [0]],
  pos: [[0], [1]],
};

test("numbers as they are typed", () => {
  for (const [text, value] of [["2", 2], ["-0.5", -0.5], ["\u22122e\u22121", -0.2], ["+.5", 0.5], ["5.", 5], [" 7\t", 7]] as const) {
    assert.equal(parse(text).value, value);
  }
  for (const text of ["", "x", "0,5", "1_0", "Infinity", "0x1F", "1e301", "1\n", "1".repeat(41)]) {
    assert.equal(parse(text).value, null, text);
    assert.notEqual(parse(text).fault, null);
  }
  assert.match(parse("0,5").fault ?? "", /decimal point/);
});

test("edits replace the design's numbers", () => {
  const { weights, base, changed, differs, resized } = edited(design, { "Km.0.1": "9", "pos.1.0": "-1.5", "Vm.9.9": "1", "Qm.0.1": "2" });
  assert.deepEqual(weights.Km[0], [1, 9]);
  assert.deepEqual(weights.pos, [[0], [-1.5]]);
  assert.deepEqual(base, design);
  assert.deepEqual([...changed], ["Km.0.1", "pos.1.0"]);
  assert.deepEqual([differs, resized], [true, false]);
  assert.deepEqual(design.Km[0], [1, 2]);
});

test("odd addresses are ignored", () => {
  for (const key of ["Km..1", "Km.0.", "Km.00.1", "Km. 0.1", "Km.0.1.0", "Km.0x0.1", "Km.-1.0", "toString.0.0", "Km.0.1\n"]) {
    assert.deepEqual(edited(design, { [key]: "9" }).weights, design, key);
  }
});

test("a cell without a number keeps the design's", () => {
  const { weights, differs, changed, faults } = edited(design, { "Vm.1.0": "nonsense" });
  assert.deepEqual([weights.Vm[1], differs], [[2], false]);
  assert.deepEqual([[...changed], [...faults.keys()]], [["Vm.1.0"], ["Vm.1.0"]]);
});

test("matrices change their sizes together", () => {
  const { weights, resized } = edited(design, { "size.qk": "3", "size.pos": "2", "size.len": "1", "Km.3.2": "4" });
  assert.deepEqual(weights.Km, [[1, 2, 0], [3, 4, 0], [0, 0.5, 0], [0, 0, 4]]);
  assert.deepEqual(weights.pos, [[0, 0]]);
  assert.ok(resized);
  assert.equal(edited(design, { "size.pos": "0" }).weights.pos, null);
  assert.deepEqual(sizesOf(edited(design, { "size.pos": "0" }).weights), { qk: 2, pos: 0, len: 0 });
});

test("sizes that would make a matrix too large are ignored", () => {
  assert.deepEqual(edited(design, { "size.qk": "999", "size.pos": "99" }).weights, design);
  assert.deepEqual(edited(design, { "size.pos": "99", "size.len": "99" }).weights, design);
  assert.equal(edited(design, { "size.qk": "999" }).weights.Km[0]?.length, 999);
});

test("the edits of other weights make them of the design", () => {
  const other: Weights = { Km: [[1], [3], [0], [9]], Qm: [[0], [1], [0], [0]], Vm: [[1], [2], [0], [1e21]], pos: [[0, -2.5]] };
  assert.deepEqual(edited(design, cellsOf(design, other)).weights, other);
  assert.deepEqual(cellsOf(design, design), {});
});

test("typing the design's number again removes the edit", () => {
  const cells = typed(design, { "Km.0.0": "5" }, [["Km.0.0", " 1 "], ["Vm.0.0", " 3 "], ["Qm.0.0", `1${"0".repeat(50)}`]]);
  assert.deepEqual(Object.keys(cells), ["Vm.0.0", "Qm.0.0"]);
  assert.equal(parse(cells["Qm.0.0"]!).value, null); // not a number of fewer digits
});

test("blocks are split as spreadsheets write them", () => {
  assert.deepEqual(block("1\t2\r\n3\t4\r\n"), [["1", "2"], ["3", "4"]]);
  assert.deepEqual(block("1; 2\n3; 4"), [["1", "2"], ["3", "4"]]);
  assert.deepEqual(block("1, 2"), [["1", "2"]]);
  assert.deepEqual(block(" 1  2 "), [["1", "2"]]);
  assert.deepEqual(block("1"), [["1"]]);
  assert.deepEqual(block("\t2\t\n3 \t 4\t5\n"), [["", "2", ""], ["3", "4", "5"]]);
});

test("a file comes back", () => {
  assert.deepEqual(fromFile(asFile(design), design), design);
  const bare: Weights = { Km: [[1], [2]], Qm: [[3], [4]], Vm: [[5], [6]], pos: null };
  assert.deepEqual(fromFile(asFile(bare), design), bare);
  assert.deepEqual(fromFile(asFile(bare, "unique"), design), bare);
  assert.equal(JSON.parse(asFile(bare, "unique")).exercise, "unique");
});

test("files that do not hold such weights are refused", () => {
  const change = (part: object) => JSON.stringify({ ...design, ...part });
  for (const text of [
    "{",
    "[]",
    "null",
    change({ more: [[1]] }),
    change({ Km: undefined }),
    change({ Km: [] }),
    change({ Km: [[1, 2], [3]] }),
    change({ Km: [[1, "2"], [3, 4], [0, 0]] }),
    change({ Km: [[1, null], [3, 4], [0, 0]] }),
    change({ Km: [[1], [3], [0]] }),
    change({ Km: [[1, 2], [3, 4]] }),
    change({ Vm: [[1, 1], [2, 2], [0, 0]] }),
    change({ Km: [new Array(1000).fill(0), new Array(1000).fill(0), new Array(1000).fill(0)] }),
    change({ Km: [[1e301, 2], [3, 4], [0, 0.5]] }).replace("1e+301", "1e999"),
  ]) {
    assert.ok("got" in fromFile(text, design), text.slice(0, 60));
  }
});

test("numbers are shortened for a cell", () => {
  const shortened = [0, 0.0004, 0.004, 0.9969, 0.5, -0.456, 12.345, 1234.5, -99_999.6, 1e300].map(brief);
  assert.deepEqual(shortened, ["0", "~0", "0.004", "0.997", "0.5", "\u22120.46", "12.3", "1235", "\u22121e5", "1e300"]);
  assert.equal(whole(-1.25), "\u22121.25");
});
