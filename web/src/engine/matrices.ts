// Attention as tiles, rows and measures, as glassformer/explorer/answers/attention.py computes them, from the queries and
// keys of a run. The matrices that were looked at last are kept.
import { TILE, type AskRows, type AskTile, type Measures } from "../source";
import { attendTo, keysOf, queriesOf, type Attended, type Pause } from "./attention";
import type { Numbers } from "./products";

/** Rows and columns of the largest thumbnail. */
const THUMBNAIL = 32;
/** The most cells that are kept of one stack, apart from the newest matrix. */
const MOST_CELLS = 1 << 23;

interface Matrix {
  rows: number;
  columns: number;
  cells: Float32Array;
}

/** The attention of a stack. */
export class Matrices {
  private readonly kept = new Map<string, Matrix>();

  /** @param sizes By how much each head of a layer multiplies a key's weight: the length of its value after the output projection. */
  constructor(
    private readonly layers: Attended<Numbers>[],
    private readonly crosses: boolean,
    private readonly sizes: (layer: number, head: number) => Numbers,
  ) {}

  /** About how many bytes are kept. */
  get size(): number {
    return 4 * this.layers.reduce((sum, { q, k, v }) => sum + q.length + k.length + v.length, this.cells);
  }

  async tile({ layer, head, level, row, column, passed }: AskTile, pause: Pause): Promise<Float32Array> {
    const { rows, columns, cells } = await this.matrix(layer, head, level, passed, pause);
    const [tall, wide] = [Math.min(TILE, rows - row * TILE), Math.min(TILE, columns - column * TILE)];
    const tile = new Float32Array(tall * wide);
    for (let at = 0; at < tall; at++) {
      const first = (row * TILE + at) * columns + column * TILE;
      tile.set(cells.subarray(first, first + wide), at * wide);
    }
    return tile;
  }

  /** The weights of one query: [layer, head, key]. */
  rows({ query, layer, head, passed }: AskRows): Float32Array {
    const layers = layer === null ? this.layers : [this.layers[layer]!];
    const [count, keys] = [layers[0]!.heads, keysOf(layers[0]!)];
    const heads = head === null ? [...Array(count).keys()] : [head];
    const [found, weights] = [new Float32Array(layers.length * heads.length * keys), new Float64Array(keys)];
    layers.forEach((call, at) =>
      heads.forEach((each, place) => {
        const [first, end] = attendTo(call, each, query, weights);
        const row = found.subarray((at * heads.length + place) * keys);
        row.set(weights.subarray(first, end), first);
        if (passed) portion(row.subarray(0, keys), this.sizes(layer ?? at, each));
      }),
    );
    return found;
  }

  async measures(pause: Pause): Promise<Measures> {
    const found: ReturnType<typeof measured>[][] = [];
    for (const [layer, call] of this.layers.entries()) {
      found.push([]);
      for (let head = 0; head < call.heads; head++) {
        const weights = await this.matrix(layer, head, 0, false, pause);
        found[layer]!.push(measured(call, weights, await this.matrix(layer, head, 0, true, pause)));
        await pause();
      }
    }
    const of = (name: "entropy" | "distance" | "sink" | "share" | "passed") => found.map((heads) => heads.map((each) => each && each[name]));
    return {
      entropy: of("entropy"),
      distance: this.crosses ? null : of("distance"),
      sink: this.layers.some(({ sinks }) => sinks) ? of("sink") : null,
      most_read: found.map((heads) => heads.map((each) => each?.key ?? 0)),
      on_one: of("share"),
      passed: of("passed"),
      thumbnails: found.map((heads) => heads.map((each) => each?.thumbnail ?? [])),
    };
  }

  private get cells(): number {
    return [...this.kept.values()].reduce((sum, { cells }) => sum + cells.length, 0);
  }

  /** A cell at level l is the largest of 2**l x 2**l weights, or shares of what is passed on. */
  private async matrix(layer: number, head: number, level: number, passed: boolean, pause: Pause): Promise<Matrix> {
    const name = `${layer} ${head} ${level} ${passed}`;
    const known = this.kept.get(name);
    if (known) return known;
    const found = level
      ? halved(await this.matrix(layer, head, level - 1, passed, pause))
      : await whole(this.layers[layer]!, head, passed ? this.sizes(layer, head) : null, pause);
    this.kept.set(name, found);
    for (const each of this.kept.keys()) if (this.cells > MOST_CELLS && each !== name) this.kept.delete(each);
    return found;
  }
}

async function whole(call: Attended<Numbers>, head: number, sizes: Numbers | null, pause: Pause): Promise<Matrix> {
  const [rows, columns] = [queriesOf(call), keysOf(call)];
  const [cells, weights] = [new Float32Array(rows * columns), new Float64Array(columns)];
  for (let query = 0; query < rows; query++) {
    const [first, end] = attendTo(call, head, query, weights);
    cells.set(weights.subarray(first, end), query * columns + first);
    if (sizes) portion(cells.subarray(query * columns, (query + 1) * columns), sizes);
    if (query % 64 === 63) await pause();
  }
  return { rows, columns, cells };
}

/** The share of each key in the sum of weight times size. */
function portion(row: Float32Array, sizes: Numbers): void {
  let total = 0;
  for (let key = 0; key < row.length; key++) if (row[key] !== 0) total += Math.fround(row[key]! * sizes[key]!);
  for (let key = 0; key < row.length; key++) {
    if (row[key] !== 0) row[key] = total === 0 ? 0 : Math.fround(row[key]! * sizes[key]!) / total;
  }
}

/** The mean of each column, of the queries that see more than one key. */
function means({ causal }: Attended<Numbers>, { rows, columns, cells }: Matrix): Float64Array {
  const sums = new Float64Array(columns);
  for (let at = Number(causal) * columns; at < cells.length; at++) sums[at % columns]! += cells[at]!;
  return sums.map((sum) => sum / Math.max(1, rows - Number(causal)));
}

/** Null where weights are not finite. */
function measured(call: Attended<Numbers>, matrix: Matrix, passed: Matrix) {
  const { rows, columns, cells } = matrix;
  const [tall, wide] = [Math.min(rows, THUMBNAIL), Math.min(columns, THUMBNAIL)];
  const thumbnail = Array.from({ length: tall }, () => new Array<number>(wide).fill(0));
  const [rowOf, columnOf] = [partsOf(rows, tall), partsOf(columns, wide)];
  let [bits, distance, sink, counted] = [0, 0, 0, 0];
  for (let row = 0; row < rows; row++) {
    const position = columns - rows + row;
    let [total, apart, plogp] = [0, 0, 0];
    const end = call.causal ? position + 1 : columns;
    for (let key = 0; key < end; key++) {
      const weight = cells[row * columns + key]!;
      if (weight === 0) continue;
      total += weight;
      apart += weight * Math.abs(position - key);
      plogp += weight * Math.log2(weight);
      const line = thumbnail[rowOf[row]!]!;
      if (weight > line[columnOf[key]!]!) line[columnOf[key]!] = weight;
    }
    if (!Number.isFinite(total)) return null;
    sink += call.sinks ? Math.max(0, 1 - total) : 0;
    if (total === 0) continue;
    // Of the shares p = weight / total: -sum p log p.
    bits += Math.log2(total) - plogp / total;
    distance += apart / total;
    counted += 1;
  }
  const mean = (sum: number) => (counted ? sum / counted : 0);
  const rounded = thumbnail.map((row) => row.map((weight) => Math.round(weight * 1e4) / 1e4));
  // The largest share of the attention that a key gets, and the first key that gets about as much.
  const shares = means(call, matrix);
  const share = Math.max(...shares);
  const key = shares.findIndex((each) => each >= share - 1e-4);
  const measures = { entropy: Math.max(0, mean(bits)), distance: mean(distance), sink: sink / rows };
  return { ...measures, key, share, passed: means(call, passed)[key]!, thumbnail: rounded };
}

/** The part of each of `count` places that are divided into `parts` of nearly equal size. */
function partsOf(count: number, parts: number): Uint8Array {
  const found = new Uint8Array(count);
  for (let part = 0; part < parts; part++) found.fill(part, Math.floor((part * count) / parts));
  return found;
}

/** The next coarser level: the largest of each 2 x 2 cells, or fewer at an odd edge. */
function halved({ rows: tall, columns: wide, cells: from }: Matrix): Matrix {
  const [rows, columns] = [Math.ceil(tall / 2), Math.ceil(wide / 2)];
  const cells = new Float32Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const [one, other] = [2 * row * wide, Math.min(2 * row + 1, tall - 1) * wide];
    for (let column = 0; column < columns; column++) {
      const [left, right] = [2 * column, Math.min(2 * column + 1, wide - 1)];
      cells[row * columns + column] = Math.max(from[one + left]!, from[one + right]!, from[other + left]!, from[other + right]!);
    }
  }
  return { rows, columns, cells };
}
