// Draws a heat map on a canvas: tiles as cached images, masked cells as hatching, and numbers.
import { TILE, type Attention } from "../../source";
import { letterOn, share, stepOf, styleOf, table, type Kind, type Paint } from "./colours";
import { seen, sees } from "./stack";
import { keyOf, shapeOf, type Cells, type TileId } from "./tiles";
import { cellOf, deepestLevel, levelFor, type Box, type View } from "./viewport";

export interface Look {
  kind: Kind;
  largest: number;
  root: boolean;
  paint: Paint;
}

export const FONT_SIZE = 12;
const MOST_PICTURES = 200;
/** The smallest side of a cell that shows a number. */
const NUMBER_WIDTH = { weights: 26, difference: 34 };
const NUMBER_HEIGHT = 20;

export const fontOf = (paint: Paint, size = FONT_SIZE): string => `${size}px ${paint.mono}`;

/** Tiles as images, cached until colours or scale change. */
export class Pictures {
  private readonly kept = new Map<string, OffscreenCanvas>();
  private look = "";

  of(cells: Cells, id: TileId, look: Look): OffscreenCanvas | null {
    const now = `${look.kind} ${look.largest} ${look.root} ${look.paint.dark}`;
    if (now !== this.look) {
      this.kept.clear();
      this.look = now;
    }
    const key = keyOf(id);
    const there = this.kept.get(key);
    if (there) return there;
    const tile = cells.tile(id);
    if (!tile) return null;
    const { rows, columns } = shapeOf(cells.stack, id);
    const picture = new OffscreenCanvas(columns, rows);
    const context = picture.getContext("2d");
    if (!context) return null;
    const { pixels } = table(look.kind, look.paint.dark);
    const image = context.createImageData(columns, rows);
    const words = new Uint32Array(image.data.buffer);
    for (let at = 0; at < words.length; at += 1) {
      words[at] = pixels[stepOf(look.kind, share(tile[at] ?? 0, look.largest, look.root))] ?? 0;
    }
    context.putImageData(image, 0, 0);
    this.kept.set(key, picture);
    if (this.kept.size > MOST_PICTURES) this.kept.delete(this.kept.keys().next().value as string);
    return picture;
  }
}

/** The tiles of a level that overlap a view, those in its middle first. */
function tilesIn(view: View, box: Box, stack: Attention, level: number): TileId[] {
  const cell = cellOf(view, box);
  const side = TILE * 2 ** level;
  const spanOf = (first: number, room: number, count: number) => {
    const from = Math.floor(first / side);
    const to = Math.min(Math.ceil(count / side), Math.ceil((first + room) / side));
    return Array.from({ length: Math.max(0, to - from) }, (_, step) => from + step);
  };
  const rows = spanOf(view.query, box.height / cell.height, stack.queries);
  const columns = spanOf(view.key, box.width / cell.width, stack.keys);
  const ids = rows.flatMap((row) => columns.map((column) => ({ level, row, column })));
  const middle = { row: (rows.length - 1) / 2 + (rows[0] ?? 0), column: (columns.length - 1) / 2 + (columns[0] ?? 0) };
  const far = (id: TileId) => Math.abs(id.row - middle.row) + Math.abs(id.column - middle.column);
  return ids.sort((one, other) => far(one) - far(other));
}

/** Draw the visible part of a matrix into (0, 0, box.width, box.height); returns the tiles that it needs. */
export function paintMatrix(
  context: CanvasRenderingContext2D,
  cells: Cells,
  pictures: Pictures,
  view: View,
  box: Box,
  look: Look,
  density: number,
): TileId[] {
  const { stack } = cells;
  const deepest = deepestLevel(box);
  let level = levelFor(view, box, density);
  let needed = tilesIn(view, box, stack, level);
  while (level < deepest && needed.some((id) => cells.refuses(id))) {
    level += 1;
    needed = tilesIn(view, box, stack, level);
  }
  context.save();
  context.beginPath();
  context.rect(0, 0, box.width, box.height);
  context.clip();
  context.fillStyle = look.paint.panel;
  context.fillRect(0, 0, box.width, box.height);
  const missing = needed.some((id) => !pictures.of(cells, id, look));
  if (missing) {
    // Meanwhile draw the coarser tiles that have arrived, the coarsest first.
    for (let coarse = deepest; coarse > level; coarse -= 1) {
      for (const id of tilesIn(view, box, stack, coarse)) paintTile(context, cells, pictures, id, view, box, look);
    }
  }
  for (const id of needed) paintTile(context, cells, pictures, id, view, box, look);
  hatch(context, stack, cells.layer, view, box, look.paint);
  if (level === 0) numbers(context, cells, view, box, look);
  context.restore();
  return needed;
}

function paintTile(
  context: CanvasRenderingContext2D,
  cells: Cells,
  pictures: Pictures,
  id: TileId,
  view: View,
  box: Box,
  look: Look,
): void {
  const picture = pictures.of(cells, id, look);
  if (!picture) return;
  const cell = cellOf(view, box);
  const grain = 2 ** id.level;
  const x = (id.column * TILE * grain - view.key) * cell.width;
  const y = (id.row * TILE * grain - view.query) * cell.height;
  const width = picture.width * grain * cell.width;
  const height = picture.height * grain * cell.height;
  // Cells smaller than a pixel are blended; others have sharp edges.
  context.imageSmoothingEnabled = cell.width * grain < 1;
  context.drawImage(picture, x, y, width, height);
}

const hatchings = new Map<string, CanvasPattern>();

export function hatching(context: CanvasRenderingContext2D, paint: Paint): CanvasPattern | string {
  const name = `${paint.panel} ${paint.line}`;
  const there = hatchings.get(name);
  if (there) return there;
  const swatch = new OffscreenCanvas(8, 8);
  const drawing = swatch.getContext("2d");
  if (!drawing) return paint.panel;
  drawing.fillStyle = paint.panel;
  drawing.fillRect(0, 0, 8, 8);
  drawing.strokeStyle = paint.line;
  drawing.lineWidth = 1.2;
  for (const shift of [-8, 0, 8]) {
    drawing.moveTo(shift - 1, 9);
    drawing.lineTo(shift + 9, -1);
  }
  drawing.stroke();
  const pattern = context.createPattern(swatch, "repeat");
  if (!pattern) return paint.panel;
  hatchings.set(name, pattern);
  return pattern;
}

/** Cover the masked cells. */
function hatch(
  context: CanvasRenderingContext2D,
  stack: Attention,
  layer: number,
  view: View,
  box: Box,
  paint: Paint,
): void {
  if (!stack.causal) return;
  const cell = cellOf(view, box);
  const x = (key: number) => (key - view.key) * cell.width;
  const y = (query: number) => (query - view.query) * cell.height;
  const first = Math.floor(view.query);
  const end = Math.min(stack.queries, Math.ceil(view.query + box.height / cell.height));
  // Keep the unmasked band visible where it is narrower than a pixel.
  const slack = cell.width < 1 ? 0.75 : 0;
  // Steps smaller than a pixel would be invisible.
  const step = Math.max(1, Math.floor(0.5 / cell.height));
  const outline = (edge: (query: number) => number, outside: number) => {
    context.beginPath();
    context.moveTo(outside, y(first));
    for (let query = first; query < end; query += step) {
      const at = x(edge(query)) + (outside > 0 ? slack : -slack);
      context.lineTo(at, y(query));
      context.lineTo(at, y(Math.min(end, query + step)));
    }
    context.lineTo(outside, y(end));
    context.closePath();
    context.fill();
  };
  context.fillStyle = hatching(context, paint);
  outline((query) => seen(stack, layer, query).end, Math.max(box.width, x(stack.keys)) + 1);
  const window = stack.windows[layer] ?? null;
  if (window !== null && window < stack.keys) outline((query) => seen(stack, layer, query).first, Math.min(0, x(0)) - 1);
}

/** A weight in few characters: ".42", or with its sign for a difference. */
export function brief(value: number, signed: boolean): string {
  if (Number.isNaN(value)) return "NaN";
  const size = Math.abs(value);
  if (size < 0.005) return "0";
  const text = size >= 0.995 ? size.toFixed(1) : size.toFixed(2).slice(1);
  return !signed ? text : `${value < 0 ? "\u2212" : "+"}${text}`;
}

function numbers(context: CanvasRenderingContext2D, cells: Cells, view: View, box: Box, look: Look): void {
  const cell = cellOf(view, box);
  if (cell.width < NUMBER_WIDTH[look.kind] || cell.height < NUMBER_HEIGHT) return;
  context.font = fontOf(look.paint, 11);
  context.textAlign = "center";
  context.textBaseline = "middle";
  eachVisible(view, box, (query, key) => {
    if (!sees(cells.stack, cells.layer, query, key)) return;
    const id = { level: 0, row: Math.floor(query / TILE), column: Math.floor(key / TILE) };
    const tile = cells.tile(id);
    if (!tile) return;
    const value = tile[(query % TILE) * shapeOf(cells.stack, id).columns + (key % TILE)] ?? 0;
    context.fillStyle = letterOn(styleOf(look.kind, look.paint.dark, share(value, look.largest, look.root)));
    const x = (key + 0.5 - view.key) * cell.width;
    const y = (query + 0.5 - view.query) * cell.height;
    context.fillText(brief(value, look.kind === "difference"), x, y);
  });
}

function eachVisible(view: View, box: Box, visit: (query: number, key: number) => void): void {
  const cell = cellOf(view, box);
  const lastQuery = Math.min(box.queries, Math.ceil(view.query + box.height / cell.height));
  const lastKey = Math.min(box.keys, Math.ceil(view.key + box.width / cell.width));
  for (let query = Math.floor(view.query); query < lastQuery; query += 1) {
    for (let key = Math.floor(view.key); key < lastKey; key += 1) visit(query, key);
  }
}
