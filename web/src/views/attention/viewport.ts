// The visible part of a matrix, and the position of a cell on the screen. Lengths are CSS pixels.

/** The first query and key in view, and how many cells of the longer side fit. All may be fractional. */
export interface View {
  query: number;
  key: number;
  size: number;
}

export interface Cell {
  query: number;
  key: number;
}

/** The matrix and the box that it is drawn in. */
export interface Box {
  queries: number;
  keys: number;
  width: number;
  height: number;
}

/** The largest side of a cell, large enough for a number. */
const LARGEST = 72;
/** The largest ratio of the sides of a drawn matrix. */
const LONGEST = 3;

/** The box of a whole matrix that fits into a space. */
export function boxFor(queries: number, keys: number, room: { width: number; height: number }): Box {
  let width = Math.min(room.width, keys * LARGEST);
  let height = Math.min(room.height, queries * LARGEST);
  const ratio = queries / keys;
  if (ratio >= 1 / LONGEST && ratio <= LONGEST) {
    const side = Math.min(width / keys, height / queries);
    width = side * keys;
    height = side * queries;
  } else if (ratio < 1) {
    height = Math.min(height, Math.max(width / LONGEST, width * ratio));
  } else {
    width = Math.min(width, Math.max(height / LONGEST, height / ratio));
  }
  return { queries, keys, width: Math.max(1, Math.round(width)), height: Math.max(1, Math.round(height)) };
}

const longer = (box: Box): number => Math.max(box.keys, box.queries);
const span = (box: Box): number => (box.keys >= box.queries ? box.width : box.height);

/** The smallest size of a view: the zoom limit. */
export const closest = (box: Box): number => Math.min(longer(box), Math.max(4, span(box) / LARGEST));

export const whole = (box: Box): View => ({ query: 0, key: 0, size: longer(box) });

export const isWhole = (view: View, box: Box): boolean => view.size >= longer(box) * 0.9999;

/** Width and height of a cell. A side that would not fill the box is stretched. */
export function cellOf(view: View, box: Box): { width: number; height: number } {
  const side = span(box) / view.size;
  return { width: Math.max(side, box.width / box.keys), height: Math.max(side, box.height / box.queries) };
}

/** The view moved and zoomed so that it stays within the matrix. */
export function clamped(view: View, box: Box): View {
  const size = Math.min(longer(box), Math.max(closest(box), view.size));
  const cell = cellOf({ ...view, size }, box);
  const held = (first: number, count: number, room: number) => Math.min(Math.max(0, first), Math.max(0, count - room));
  return {
    query: held(view.query, box.queries, box.height / cell.height),
    key: held(view.key, box.keys, box.width / cell.width),
    size,
  };
}

/** Zoom about the point (x, y); a `factor` above 1 magnifies. */
export function zoomed(view: View, box: Box, factor: number, x: number, y: number): View {
  const before = cellOf(view, box);
  const size = Math.min(longer(box), Math.max(closest(box), view.size / factor));
  const after = cellOf({ ...view, size }, box);
  const key = view.key + x / before.width - x / after.width;
  const query = view.query + y / before.height - y / after.height;
  return clamped({ query, key, size }, box);
}

/** Pan by pixels. */
export function moved(view: View, box: Box, dx: number, dy: number): View {
  const cell = cellOf(view, box);
  return clamped({ ...view, key: view.key - dx / cell.width, query: view.query - dy / cell.height }, box);
}

/** The view moved as little as needed to show a cell. */
export function showing(view: View, box: Box, { query, key }: Cell): View {
  const cell = cellOf(view, box);
  const into = (first: number, place: number, room: number) =>
    place < first ? place : place + 1 > first + room ? place + 1 - room : first;
  return clamped(
    {
      ...view,
      query: into(view.query, query, box.height / cell.height),
      key: into(view.key, key, box.width / cell.width),
    },
    box,
  );
}

export function cellAt(view: View, box: Box, x: number, y: number): Cell | null {
  if (x < 0 || y < 0 || x >= box.width || y >= box.height) return null;
  const cell = cellOf(view, box);
  const key = Math.floor(view.key + x / cell.width);
  const query = Math.floor(view.query + y / cell.height);
  return key >= 0 && key < box.keys && query >= 0 && query < box.queries ? { query, key } : null;
}

/** The level at which one cell remains. */
export const deepestLevel = (box: Box): number => Math.min(12, Math.ceil(Math.log2(Math.max(2, longer(box)))));

/** The level of the pyramid at which a cell is about a pixel; 0 where cells are larger. */
export function levelFor(view: View, box: Box, density: number): number {
  const cell = cellOf(view, box);
  const side = Math.max(cell.width, cell.height) * density;
  return side >= 1 ? 0 : Math.min(deepestLevel(box), Math.round(-Math.log2(side)));
}
