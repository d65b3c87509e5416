// Attention as tiles, rows and measures, computed from the queries and keys of a run, as
// glassformer/explorer/answers/attention.py does: a matrix at the levels from `COARSE` on is kept, finer ones never.
import { TILE, type AskRows, type AskTile, type Measures } from "../source";
import { attendTo, keysOf, queriesOf, type Attended } from "./attention";

/** The finest level of an overview. */
const COARSE = 2;
/** Rows and columns of the largest thumbnail. */
const THUMBNAIL = 32;
/** Rows that are computed at a time; a multiple of 2 ** COARSE. */
const FEW = 64;

interface Matrix {
  rows: number;
  columns: number;
  cells: Float32Array;
}

interface Overview {
  /** The matrix at the levels `COARSE`, `COARSE + 1` and so on to a single cell. */
  levels: Matrix[];
  /** Null where weights are not finite. */
  measures: { entropy: number; distance: number; sink: number; thumbnail: number[][] } | null;
}

type Pause = () => Promise<void>;

/** The attention of a run. */
export class Matrices {
  private readonly overviews = new Map<string, Overview>();
  /** The rows of tiles that were asked for last, as neighbouring tiles share them. */
  private readonly bands = new Map<string, Matrix>();

  constructor(private readonly layers: Attended[]) {}

  /** About how many bytes are kept. */
  get size(): number {
    const [queries, keys] = [queriesOf(this.layers[0]!), keysOf(this.layers[0]!)];
    return 4 * this.layers.reduce((sum, { q, k, v }) => sum + q.length + k.length + v.length, 0) + (this.overviews.size * queries * keys) / 3;
  }

  async tile({ layer, head, level, row, column }: AskTile, pause: Pause): Promise<Float32Array> {
    if (level >= COARSE) return cut((await this.overview(layer, head, pause)).levels[level - COARSE]!, row * TILE, column * TILE);
    const call = this.layers[layer]!;
    const name = `${layer} ${head} ${level} ${row}`;
    let band = this.bands.get(name);
    if (!band) {
      const first = (row * TILE) << level;
      band = rowsOf(call, head, first, Math.min(queriesOf(call), first + (TILE << level)));
      for (let each = 0; each < level; each++) band = halved(band);
      if (this.bands.size >= 4) this.bands.delete(this.bands.keys().next().value as string);
      this.bands.set(name, band);
    }
    return cut(band, 0, column * TILE);
  }

  /** The weights of one query: [layer, head, key]. */
  rows({ query, layer, head }: AskRows): Float32Array {
    const layers = layer === null ? this.layers : [this.layers[layer]!];
    const [count, keys] = [layers[0]!.heads, keysOf(layers[0]!)];
    const heads = head === null ? [...Array(count).keys()] : [head];
    const found = new Float32Array(layers.length * heads.length * keys);
    layers.forEach((call, at) =>
      heads.forEach((each, place) => found.set(rowsOf(call, each, query, query + 1).cells, (at * heads.length + place) * keys)),
    );
    return found;
  }

  async measures(pause: Pause): Promise<Measures> {
    const found: Overview["measures"][][] = [];
    for (const [layer, { heads }] of this.layers.entries()) {
      const of: Overview["measures"][] = [];
      for (let head = 0; head < heads; head++) of.push((await this.overview(layer, head, pause)).measures);
      found.push(of);
    }
    const of = (name: "entropy" | "distance" | "sink") => found.map((heads) => heads.map((each) => each && each[name]));
    return {
      entropy: of("entropy"),
      distance: of("distance"),
      sink: this.layers.some(({ sinks }) => sinks) ? of("sink") : null,
      thumbnails: found.map((heads) => heads.map((each) => each?.thumbnail ?? [])),
    };
  }

  private async overview(layer: number, head: number, pause: Pause): Promise<Overview> {
    const name = `${layer} ${head}`;
    const known = this.overviews.get(name);
    if (known) return known;
    const found = await overviewOf(this.layers[layer]!, head, pause);
    this.overviews.set(name, found);
    return found;
  }
}

async function overviewOf(call: Attended, head: number, pause: Pause): Promise<Overview> {
  const [queries, keys] = [queriesOf(call), keysOf(call)];
  const [tall, wide] = [Math.min(queries, THUMBNAIL), Math.min(keys, THUMBNAIL)];
  const thumbnail = Array.from({ length: tall }, () => new Array<number>(wide).fill(0));
  const [rowOf, columnOf] = [partsOf(queries, tall), partsOf(keys, wide)];
  const coarse = { rows: Math.ceil(queries / 2 ** COARSE), columns: Math.ceil(keys / 2 ** COARSE) };
  const levels: Matrix[] = [{ ...coarse, cells: new Float32Array(coarse.rows * coarse.columns) }];
  let [bits, distance, sink, counted, finite] = [0, 0, 0, 0, true];
  for (let start = 0; start < queries; start += FEW) {
    let some = rowsOf(call, head, start, Math.min(queries, start + FEW));
    for (let row = 0; row < some.rows; row++) {
      const position = keys - queries + start + row;
      let [total, apart, plogp] = [0, 0, 0];
      for (let key = 0; key <= position; key++) {
        const weight = some.cells[row * keys + key]!;
        if (weight === 0) continue;
        total += weight;
        apart += weight * (position - key);
        plogp += weight * Math.log2(weight);
        const line = thumbnail[rowOf[start + row]!]!;
        if (weight > line[columnOf[key]!]!) line[columnOf[key]!] = weight;
      }
      finite &&= Number.isFinite(total);
      sink += call.sinks ? Math.max(0, 1 - total) : 0;
      if (total === 0) continue;
      // Of the shares p = weight / total: -sum p log p.
      bits += Math.log2(total) - plogp / total;
      distance += apart / total;
      counted += 1;
    }
    for (let each = 0; each < COARSE; each++) some = halved(some);
    levels[0]!.cells.set(some.cells, (start / 2 ** COARSE) * some.columns);
    await pause();
  }
  for (let last = levels[0]!; Math.max(last.rows, last.columns) > 1; levels.push(last)) last = halved(last);
  const mean = (sum: number) => (counted ? sum / counted : 0);
  const rounded = thumbnail.map((row) => row.map((weight) => Math.round(weight * 1e4) / 1e4));
  const measures = { entropy: Math.max(0, mean(bits)), distance: mean(distance), sink: sink / queries, thumbnail: rounded };
  return { levels, measures: finite ? measures : null };
}

/** The part of each of `count` places that are divided into `parts` of nearly equal size. */
function partsOf(count: number, parts: number): Uint8Array {
  const found = new Uint8Array(count);
  for (let part = 0; part < parts; part++) found.fill(part, Math.floor((part * count) / parts));
  return found;
}

/** The weights of some queries of a head on all keys. */
function rowsOf(call: Attended, head: number, first: number, end: number): Matrix {
  const columns = keysOf(call);
  const cells = new Float32Array((end - first) * columns);
  const weights = new Float64Array(columns);
  for (let query = first; query < end; query++) {
    const [seen, last] = attendTo(call, head, query, weights);
    cells.set(weights.subarray(seen, last), (query - first) * columns + seen);
  }
  return { rows: end - first, columns, cells };
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

/** A tile whose first cell is this one. */
function cut({ rows, columns, cells }: Matrix, row: number, column: number): Float32Array {
  const [tall, wide] = [Math.min(TILE, rows - row), Math.min(TILE, columns - column)];
  const tile = new Float32Array(tall * wide);
  for (let at = 0; at < tall; at++) {
    const first = (row + at) * columns + column;
    tile.set(cells.subarray(first, first + wide), at * wide);
  }
  return tile;
}
