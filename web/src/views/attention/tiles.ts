// The weights of one head that have been fetched, and a queue of those still needed, the newest first.
import { signal, type Signal } from "@preact/signals";
import { TILE, Unanswered, refusalOf, type Attention, type Part, type Refusal, type Source } from "../../source";
import type { Place } from "../../state";
import { sees } from "./stack";

export interface TileId {
  level: number;
  row: number;
  column: number;
}

export const keyOf = ({ level, row, column }: TileId): string => `${level}.${row}.${column}`;
const rowName = (query: number): string => `row ${query}`;

/** The data of a heat map: one head, or the difference of two. */
export interface Cells {
  readonly stack: Attention;
  /** The layer whose window bounds the mask. */
  readonly layer: number;
  /** Incremented whenever something arrives. */
  readonly version: Signal<number>;
  readonly refusal: Refusal | null;
  readonly busy: boolean;
  tile(id: TileId): Float32Array | null;
  /** Whether a tile was refused, as by a saved page that holds only an overview of the head. */
  refuses(id: TileId): boolean;
  /** Set what `owner` needs now. Its earlier needs are dropped unless they are being fetched. */
  want(owner: object, ids: TileId[]): void;
}

const AT_ONCE = 4;
const MOST_TILES = 192;
const MOST_ROWS = 256;
/** Milliseconds after which an unanswered request is repeated; doubled each time. */
const RETRY_MS = 2000;
/** Milliseconds within which components that are shown repeat their requests. */
const ASKED_MS = 500;

/** Rows and columns of a tile. */
export function shapeOf(stack: Attention, { level, row, column }: TileId): { rows: number; columns: number } {
  const cells = (count: number) => Math.ceil(count / 2 ** level);
  return {
    rows: Math.min(TILE, cells(stack.queries) - row * TILE),
    columns: Math.min(TILE, cells(stack.keys) - column * TILE),
  };
}

export class HeadTiles implements Cells {
  readonly version = signal(0);
  readonly layer: number;
  refusal: Refusal | null = null;
  private readonly tiles = new Map<string, Float32Array>();
  private readonly rows = new Map<number, Float32Array>();
  private readonly refused = new Set<string>();
  private readonly under = new Set<string>();
  private patience = RETRY_MS;
  private readonly wanted = new Map<object, TileId[]>();

  constructor(
    private readonly source: Source,
    private readonly run: string,
    readonly stack: Attention,
    readonly place: Place,
    /** Whether these are shares of what is passed on, not weights. */
    readonly passed = false,
  ) {
    this.layer = place.layer;
  }

  get busy(): boolean {
    return this.under.size > 0;
  }

  tile(id: TileId): Float32Array | null {
    const key = keyOf(id);
    const tile = this.tiles.get(key);
    if (!tile) return null;
    this.tiles.delete(key);
    this.tiles.set(key, tile);
    return tile;
  }

  refuses(id: TileId): boolean {
    return this.refused.has(keyOf(id));
  }

  /** Whether a row was refused; after an unanswered request only until it may be repeated. */
  refusesRow(query: number): boolean {
    return this.refused.has(rowName(query));
  }

  want(owner: object, ids: TileId[]): void {
    // The newest owner is last in the map and served first.
    this.wanted.delete(owner);
    if (ids.length > 0) this.wanted.set(owner, ids);
    this.pump();
  }

  /** One weight, null if its tile has not arrived; 0 where the mask forbids it. */
  weight(query: number, key: number): number | null {
    if (!sees(this.stack, this.layer, query, key)) return 0;
    const row = this.rows.get(query);
    if (row) return row[key] ?? null;
    const id = { level: 0, row: Math.floor(query / TILE), column: Math.floor(key / TILE) };
    const tile = this.tile(id);
    if (!tile) return null;
    return tile[(query % TILE) * shapeOf(this.stack, id).columns + (key % TILE)] ?? null;
  }

  /** A query's weights. Null if they have not arrived; then they are requested, and `version` grows when they arrive. */
  row(query: number, ask = true): Float32Array | null {
    if (query < 0 || query >= this.stack.queries) return null;
    const there = this.rows.get(query) ?? this.gathered(query);
    if (!there && ask) void this.askRow(query);
    return there;
  }

  /** The weights on a key, null unless all of them have arrived. */
  column(key: number): Float32Array | null {
    const column = new Float32Array(this.stack.queries);
    for (let query = 0; query < column.length; query += 1) {
      const weight = this.weight(query, key);
      if (weight === null) return null;
      column[query] = weight;
    }
    return column;
  }

  private gathered(query: number): Float32Array | null {
    const across = Math.ceil(this.stack.keys / TILE);
    const tileRow = Math.floor(query / TILE);
    for (let column = 0; column < across; column += 1) {
      if (!this.tiles.has(keyOf({ level: 0, row: tileRow, column }))) return null;
    }
    const row = new Float32Array(this.stack.keys);
    for (let column = 0; column < across; column += 1) {
      const id = { level: 0, row: tileRow, column };
      const tile = this.tiles.get(keyOf(id));
      if (!tile) return null;
      const { columns } = shapeOf(this.stack, id);
      row.set(tile.subarray((query % TILE) * columns, (query % TILE) * columns + columns), column * TILE);
    }
    this.keep(query, row);
    return row;
  }

  private keep(query: number, row: Float32Array): void {
    this.rows.set(query, row);
    if (this.rows.size > MOST_ROWS) this.rows.delete(this.rows.keys().next().value as number);
  }

  private async askRow(query: number): Promise<void> {
    const name = rowName(query);
    if (this.under.has(name) || this.refused.has(name)) return;
    await this.bring(name, async () => {
      const asked = { run: this.run, part: this.stack.part as Part, query, ...this.place, passed: this.passed };
      this.keep(query, await this.source.ask("rows", asked));
    });
  }

  private next(): TileId | null {
    for (const ids of [...this.wanted.values()].reverse()) {
      for (const id of ids) {
        const key = keyOf(id);
        if (!this.tiles.has(key) && !this.under.has(key) && !this.refused.has(key)) return id;
      }
    }
    return null;
  }

  private pump(): void {
    while (this.under.size < AT_ONCE) {
      const id = this.next();
      if (!id) return;
      void this.fetch(id);
    }
  }

  private async fetch(id: TileId): Promise<void> {
    const key = keyOf(id);
    await this.bring(key, async () => {
      const asked = { run: this.run, part: this.stack.part, ...this.place, ...id, passed: this.passed };
      this.tiles.set(key, await this.source.ask("weights", asked));
      while (this.tiles.size > MOST_TILES) this.tiles.delete(this.tiles.keys().next().value as string);
    });
  }

  /** Run the request `arrive` under a name, and record its outcome. */
  private async bring(name: string, arrive: () => Promise<void>): Promise<void> {
    this.under.add(name);
    try {
      await arrive();
      this.patience = RETRY_MS;
      if (this.refused.size === 0) this.refusal = null;
    } catch (error) {
      this.fail(name, error);
    } finally {
      this.under.delete(name);
      this.version.value += 1;
      this.pump();
    }
  }

  private fail(name: string, error: unknown): void {
    this.refused.add(name);
    if (error instanceof Unanswered) {
      // The server may be back; a page out of sight does not ask.
      const again = () => {
        if (globalThis.document?.visibilityState === "hidden") {
          document.addEventListener("visibilitychange", again, { once: true });
          return;
        }
        this.refused.delete(name);
        this.version.value += 1;
        // Components that still need it have repeated their request by now; without one, the error is obsolete.
        setTimeout(() => {
          if (this.busy || this.refused.size > 0) return;
          this.refusal = null;
          this.version.value += 1;
        }, ASKED_MS);
      };
      setTimeout(again, this.patience);
      this.patience = Math.min(60_000, 2 * this.patience);
    }
    this.refusal = refusalOf(error);
  }
}

const kept = new WeakMap<Source, Map<string, HeadTiles>>();
const MOST_HEADS = 16;

/** The tiles of a head, kept while other heads are shown. */
export function headTiles(source: Source, run: string, stack: Attention, place: Place, passed = false): HeadTiles {
  const heads = kept.get(source) ?? new Map<string, HeadTiles>();
  kept.set(source, heads);
  const key = `${run} ${stack.part} ${place.layer} ${place.head} ${passed}`;
  const head = heads.get(key) ?? new HeadTiles(source, run, stack, place, passed);
  heads.delete(key);
  heads.set(key, head);
  if (heads.size > MOST_HEADS) heads.delete(heads.keys().next().value as string);
  return head;
}

/** The first head's weights minus the second's; at levels above 0 the difference of the largest weights. */
export class Difference implements Cells {
  readonly version = signal(0);
  readonly stack: Attention;
  readonly layer: number;
  private readonly tiles = new Map<string, Float32Array>();

  constructor(
    private readonly one: HeadTiles,
    private readonly other: HeadTiles,
  ) {
    this.stack = one.stack;
    // The wider window's keys are visible to at least one of the two.
    const window = (layer: number) => one.stack.windows[layer] ?? Infinity;
    this.layer = window(one.layer) >= window(other.layer) ? one.layer : other.layer;
  }

  /** From now on `version` grows whenever something arrives for either head. Returns a function that stops it. */
  follow(): () => void {
    const arrived = () => (this.version.value += 1);
    const stops = [this.one.version.subscribe(arrived), this.other.version.subscribe(arrived)];
    return () => stops.forEach((stop) => stop());
  }

  get refusal(): Refusal | null {
    return this.one.refusal ?? this.other.refusal;
  }

  get busy(): boolean {
    return this.one.busy || this.other.busy;
  }

  tile(id: TileId): Float32Array | null {
    const key = keyOf(id);
    const there = this.tiles.get(key);
    if (there) return there;
    const [one, other] = [this.one.tile(id), this.other.tile(id)];
    if (!one || !other) return null;
    const tile = one.map((weight, at) => weight - (other[at] ?? 0));
    this.tiles.set(key, tile);
    if (this.tiles.size > MOST_TILES) this.tiles.delete(this.tiles.keys().next().value as string);
    return tile;
  }

  refuses(id: TileId): boolean {
    return this.one.refuses(id) || this.other.refuses(id);
  }

  want(owner: object, ids: TileId[]): void {
    this.one.want(owner, ids);
    this.other.want(owner, ids);
  }
}
