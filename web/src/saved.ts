// A saved file answers from what glassformer/explorer/saving/saved_page.py recorded in it; nothing else is
// available.
import { Refused, TILE, type AskRows, type AskTile, type CallName, type Refusal, type Source } from "./source";
import type { SavedModel } from "./engine/engine";
import type { Words } from "./state";

/** Float32 numbers: their bytes in four planes, the lowest byte of each number first, then zlib, then base64. */
type Packed = string;

export interface Matrix {
  run: string;
  part: AskTile["part"];
  layer: number;
  head: number;
  /** 0: the matrix itself; l: the largest weight of each block of 2**l x 2**l cells. */
  level: number;
  /** At this level. */
  rows: number;
  columns: number;
  numbers: Packed;
}

export interface Saved {
  version: string;
  state: Words;
  answers: { call: CallName; asked: unknown; answer?: unknown; refusal?: Refusal }[];
  rows: { asked: AskRows; numbers: Packed }[];
  matrices: Matrix[];
  /** What it lacks, in sentences. */
  left_out: string[];
  /** The model, where it fits and the page can compute it. */
  model: SavedModel | null;
  /** The models that have a page beside this one, NAME.html, beside index.html. Empty: a file on its own. */
  pages: string[];
}

export function fromSaved(saved: Saved): Source {
  const answers = new Map(saved.answers.map((each) => [keyOf(each.call, each.asked), each]));
  const rows = new Map(saved.rows.map(({ asked, numbers }) => [keyOf("rows", asked), numbers]));
  const matrices = new Map(saved.matrices.map((each) => [placeOf(each), each]));
  const unpacked = new Map<Matrix, Promise<Float32Array>>();

  const open = (matrix: Matrix): Promise<Float32Array> => {
    let cells = unpacked.get(matrix);
    if (!cells) unpacked.set(matrix, (cells = unpack(matrix.numbers)));
    return cells;
  };

  const find = (place: Pick<Matrix, "run" | "part" | "layer" | "head">, level: number): Matrix => {
    const matrix = matrices.get(placeOf(place));
    const head = `layer ${place.layer}, head ${place.head}`;
    if (!matrix) throw new Refused(otherHead(head));
    if (matrix.level > level) throw new Refused(tooFine(head));
    return matrix;
  };

  const tile = async (asked: AskTile): Promise<Float32Array> => {
    if (asked.passed) throw new Refused(unknown("weights"));
    const matrix = find(asked, asked.level);
    return cut(await open(matrix), matrix, asked);
  };

  const row = async (asked: AskRows): Promise<Float32Array> => {
    const known = rows.get(keyOf("rows", asked));
    if (known !== undefined) return unpack(known);
    if (asked.passed || asked.layer === null || asked.head === null) throw new Refused(unknown("rows"));
    const matrix = find({ ...asked, layer: asked.layer, head: asked.head }, 0);
    if (asked.query >= matrix.rows) throw new Refused(unknown("rows"));
    const first = asked.query * matrix.columns;
    return (await open(matrix)).slice(first, first + matrix.columns);
  };

  return {
    typing: 0,
    answers: () => false,
    shows: (view) => view === saved.state.view,
    async ask(name, asked) {
      if (name === "weights") return (await tile(asked as AskTile)) as never;
      if (name === "rows") return (await row(asked as AskRows)) as never;
      const known = answers.get(keyOf(name, asked));
      if (!known) throw new Refused(unknown(name));
      if (known.refusal) throw new Refused(known.refusal);
      return known.answer as never;
    },
  };
}

/** A request as a key, independent of the order of fields; null fields count as missing. */
function keyOf(call: CallName, asked: unknown): string {
  return `${call} ${JSON.stringify(sorted(asked))}`;
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const pairs = Object.entries(value).filter(([, each]) => each !== null && each !== undefined);
  return Object.fromEntries(pairs.sort(([a], [b]) => (a < b ? -1 : 1)).map(([key, each]) => [key, sorted(each)]));
}

/** One tile at the matrix's level or a coarser one. */
function cut(cells: Float32Array, matrix: Matrix, asked: Pick<AskTile, "level" | "row" | "column">): Float32Array {
  const step = 2 ** (asked.level - matrix.level);
  const tall = Math.min(TILE, Math.ceil(matrix.rows / step) - asked.row * TILE);
  const wide = Math.min(TILE, Math.ceil(matrix.columns / step) - asked.column * TILE);
  if (tall <= 0 || wide <= 0) throw new Refused(unknown("weights"));
  const tile = new Float32Array(tall * wide);
  const bottom = Math.min(matrix.rows, (asked.row * TILE + tall) * step);
  const right = Math.min(matrix.columns, (asked.column * TILE + wide) * step);
  for (let row = asked.row * TILE * step; row < bottom; row++) {
    const to = (Math.floor(row / step) - asked.row * TILE) * wide;
    for (let column = asked.column * TILE * step; column < right; column++) {
      const at = to + Math.floor(column / step) - asked.column * TILE;
      tile[at] = Math.max(tile[at]!, cells[row * matrix.columns + column]!); // NaN stays
    }
  }
  return tile;
}

async function unpack(numbers: Packed): Promise<Float32Array> {
  const zipped = Uint8Array.from(atob(numbers), (letter) => letter.charCodeAt(0));
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = planes.length / 4;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < 4; plane++) {
    for (let at = 0; at < count; at++) bytes[4 * at + plane] = planes[plane * count + at] as number;
  }
  return new Float32Array(bytes.buffer);
}

const placeOf = ({ run, part, layer, head }: Pick<Matrix, "run" | "part" | "layer" | "head">): string =>
  `${run} ${part} ${layer} ${head}`;

const unknown = (call: CallName): Refusal => ({
  got: `This answer is not in the saved file (${call})`,
  expected: "what was shown when it was saved",
  fix: "Go back to that, or open the model with 'glassformer explore'.",
});

const otherHead = (head: string): Refusal => ({
  got: `Asked for ${head}, which this file does not hold`,
  expected: "a head that was shown when it was saved",
  fix: "Choose that one, or open the model with 'glassformer explore'.",
});

const tooFine = (head: string): Refusal => ({
  got: `Asked for single weights of ${head}, which this file holds in overview`,
  expected: "the whole matrix",
  fix: "Zoom out, save a shorter text, or open the model with 'glassformer explore'.",
});
