// The surroundings of a heat map: words or positions at its axes, and marks for the hovered and the pinned cell.
import { ticks } from "d3-array";
import { letterOn, type Paint } from "./colours";
import { FONT_SIZE, fontOf } from "./paint";
import { shown, type Words } from "./stack";
import { cellOf, type Box, type Cell, type View } from "./viewport";

/** Space for words left of the box and above it, in pixels, and how many letters of a word fit. */
export interface Margins {
  left: number;
  top: number;
  letters: number;
  /** Letters of the longest key. */
  longest: number;
}

/** The width of a letter, in pixels. */
const LETTER = FONT_SIZE * 0.61;
/** The smallest height of a row that shows a word, and its font size. */
const WORD_HEIGHT = 10;

/** The space that words need beside the matrix. */
export function marginsFor(words: Words, width: number): Margins {
  const letters = width < 480 ? 8 : 14;
  const longest = (list: string[]) => {
    // Positions are shown where words do not fit.
    const digits = String(list.length - 1).length;
    return list.reduce((most, word) => Math.max(most, shown(word, letters).length), Math.max(2, digits));
  };
  const [down, across] = [longest(words.queries), longest(words.keys)];
  return { letters, longest: across, left: Math.ceil(down * LETTER) + 10, top: Math.ceil(across * LETTER) + 10 };
}

/** Draw words at the axes where they fit, positions otherwise. The box is at (0, 0). */
export function paintAxes(
  context: CanvasRenderingContext2D,
  words: Words,
  view: View,
  box: Box,
  { letters, longest }: Margins,
  paint: Paint,
): void {
  const cell = cellOf(view, box);
  context.font = fontOf(paint);
  context.fillStyle = paint.quiet;
  context.strokeStyle = paint.line;
  context.lineWidth = 1;
  context.strokeRect(-0.5, -0.5, box.width + 1, box.height + 1);
  context.textBaseline = "middle";
  const lastQuery = Math.min(box.queries, view.query + box.height / cell.height);
  const lastKey = Math.min(box.keys, view.key + box.width / cell.width);
  context.textAlign = "right";
  context.font = fontFor(cell.height, paint);
  for (const [query, text] of labels(words.queries, view.query, lastQuery, cell.height, letters)) {
    const y = (query + 0.5 - view.query) * cell.height;
    if (y >= 0 && y <= box.height) context.fillText(text, -6, y);
  }
  const places = cell.width < WORD_HEIGHT;
  const level = places || cell.width >= longest * LETTER + 6;
  context.font = fontFor(cell.width, paint);
  for (const [key, text] of labels(words.keys, view.key, lastKey, cell.width, letters)) {
    const x = (key + 0.5 - view.key) * cell.width;
    if (x < 0 || x > box.width) continue;
    context.save();
    const half = places ? (text.length * LETTER) / 2 : 0;
    context.translate(Math.min(x, box.width - half), -6);
    if (level) {
      context.textAlign = "center";
      context.textBaseline = "bottom";
    } else {
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
    }
    context.fillText(text, 0, 0);
    context.restore();
  }
}

const fontFor = (side: number, paint: Paint): string =>
  fontOf(paint, side >= WORD_HEIGHT ? Math.min(FONT_SIZE, Math.floor(side)) : FONT_SIZE);

function labels(words: string[], first: number, end: number, side: number, letters: number): [number, string][] {
  if (side >= WORD_HEIGHT) {
    const from = Math.max(0, Math.floor(first));
    return words.slice(from, Math.ceil(end)).map((word, at) => [from + at, shown(word, letters)]);
  }
  const count = Math.max(2, Math.min(8, ((end - first) * side) / 60));
  return ticks(first, end - 1, count).filter(Number.isInteger).map((place) => [place, String(place)]);
}

/** Draw the hovered and the pinned cell over everything else, with their words at the axes even where others do not fit. */
export function paintMarks(
  context: CanvasRenderingContext2D,
  words: Words,
  view: View,
  box: Box,
  letters: number,
  marks: { hover: Cell | null; pin: number | null; crossed: Cell[] },
  paint: Paint,
): void {
  const cell = cellOf(view, box);
  const band = (query: number, style: string, width: number) => {
    const y = (query - view.query) * cell.height;
    if (y + cell.height < 0 || y > box.height) return;
    context.strokeStyle = style;
    context.lineWidth = width;
    context.strokeRect(0, y, box.width, Math.max(2, cell.height));
  };
  context.save();
  context.beginPath();
  context.rect(-1, -1, box.width + 2, box.height + 2);
  context.clip();
  for (const { query, key } of marks.crossed) cross(context, key - view.key, query - view.query, cell, paint);
  if (marks.pin !== null) band(marks.pin, paint.second, 2);
  if (marks.hover) {
    const x = (marks.hover.key - view.key) * cell.width;
    band(marks.hover.query, paint.accent, 1);
    context.strokeRect(x, 0, Math.max(2, cell.width), box.height);
    const y = (marks.hover.query - view.query) * cell.height;
    context.lineWidth = 2.5;
    context.strokeRect(x, y, Math.max(3, cell.width), Math.max(3, cell.height));
  }
  context.restore();
  const chip = (text: string, x: number, y: number, upright: boolean, ground: string) => {
    context.save();
    context.font = fontOf(paint);
    const width = context.measureText(text).width + 8;
    context.translate(x, y);
    if (upright) context.rotate(-Math.PI / 2);
    context.fillStyle = ground;
    context.beginPath();
    context.roundRect(upright ? 2 : -width - 2, -8.5, width, 17, 3);
    context.fill();
    context.fillStyle = letterOn(ground);
    context.textBaseline = "middle";
    context.textAlign = upright ? "left" : "right";
    context.fillText(text, upright ? 6 : -6, 0.5);
    context.restore();
  };
  const inside = (at: number, room: number) => Math.min(room - 1, Math.max(1, at));
  if (marks.pin !== null) {
    const y = (marks.pin + 0.5 - view.query) * cell.height;
    if (y >= 0 && y <= box.height) chip(shown(words.queries[marks.pin] ?? "", letters), 0, y, false, paint.second);
  }
  if (marks.hover) {
    const { query, key } = marks.hover;
    const y = inside((query + 0.5 - view.query) * cell.height, box.height);
    chip(shown(words.queries[query] ?? "", letters), 0, y, false, paint.accent);
    chip(shown(words.keys[key] ?? "", letters), inside((key + 0.5 - view.key) * cell.width, box.width), 0, true, paint.accent);
  }
}

/** A cross over the cell in this column and row, visible on any colour. */
function cross(context: CanvasRenderingContext2D, column: number, row: number, cell: { width: number; height: number }, paint: Paint): void {
  const side = Math.max(8, Math.min(cell.width, cell.height));
  const [x, y] = [(column + 0.5) * cell.width, (row + 0.5) * cell.height];
  const arm = 0.5 * side - Math.min(4, 0.2 * side);
  context.beginPath();
  context.moveTo(x - arm, y - arm);
  context.lineTo(x + arm, y + arm);
  context.moveTo(x + arm, y - arm);
  context.lineTo(x - arm, y + arm);
  context.lineCap = "round";
  for (const [style, width] of [[paint.panel, 5], [paint.bad, 2.5]] as const) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.stroke();
  }
}
