// Where the parts of a program's graph stand: rows by the distance from the inputs, lines between the boxes of the rows.
// Source: Sugiyama et al. 1981, "Methods for visual understanding of hierarchical system structures".

/** A box, in pixels. */
export const [WIDE, HIGH] = [184, 56];
const [ACROSS, DOWN, LINE] = [18, 36, 10];
const SWEEPS = 12;

export interface Shape {
  /** The left upper corner of each part's box. */
  places: { x: number; y: number }[];
  /** From a part to one that reads it, as an SVG path. */
  lines: { from: number; to: number; path: string }[];
  width: number;
  height: number;
}

/** A box, or a place where a line passes through a row. */
interface Node {
  row: number;
  wide: number;
  /** The middle. */
  x: number;
  above: Node[];
  below: Node[];
}

/** @param sources Of each part, the parts that it reads, which come before it. */
export function laidOut(sources: number[][]): Shape {
  const row: number[] = [];
  sources.forEach((from, at) => (row[at] = Math.max(-1, ...from.map((each) => row[each] ?? 0)) + 1));
  const readers = sources.map((_, at) => sources.flatMap((from, reader) => (from.includes(at) ? [reader] : [])));
  // An input that is read late stands just above its first reader.
  sources.forEach((from, at) => {
    const first = Math.min(...(readers[at] ?? []).map((reader) => row[reader] ?? 0));
    if (from.length === 0 && Number.isFinite(first)) row[at] = first - 1;
  });
  const boxes: Node[] = row.map((each) => ({ row: each, wide: WIDE, x: 0, above: [], below: [] }));
  const rows: Node[][] = Array.from({ length: Math.max(...row) + 1 }, () => []);
  boxes.forEach((box) => rows[box.row]?.push(box));
  // One chain of places for all lines from a part: it passes every row above its last reader.
  const ways = boxes.map((box, at) => {
    const way = [box];
    const last = Math.max(0, ...(readers[at] ?? []).map((reader) => row[reader] ?? 0));
    for (let next = box.row + 1; next < last; next += 1) {
      const place: Node = { row: next, wide: LINE, x: 0, above: [], below: [] };
      rows[next]?.push(place);
      join(way[way.length - 1] as Node, place);
      way.push(place);
    }
    for (const reader of readers[at] ?? []) join(way[(row[reader] ?? 0) - box.row - 1] as Node, boxes[reader] as Node);
    return way;
  });
  rows.forEach((each) => settle(each, each.map(() => 0)));
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const down = sweep % 2 === 0;
    for (const each of down ? rows : [...rows].reverse()) {
      const wish = new Map(each.map((node) => [node, mean(down ? node.above : node.below, node.x)]));
      if (sweep < SWEEPS - 4) each.sort((a, b) => (wish.get(a) ?? 0) - (wish.get(b) ?? 0));
      settle(each, each.map((node) => wish.get(node) ?? 0));
    }
  }
  const nodes = rows.flat();
  const left = Math.min(...nodes.map(({ x, wide }) => x - wide / 2));
  const right = Math.max(...nodes.map(({ x, wide }) => x + wide / 2));
  nodes.forEach((node) => (node.x = Math.round(node.x - left)));
  const top = ({ row: at }: Node) => at * (HIGH + DOWN);
  const lines = boxes.flatMap((box, from) =>
    (readers[from] ?? []).map((to) => {
      const through = (ways[from] ?? []).slice(1, (row[to] ?? 0) - box.row);
      const end = boxes[to] as Node;
      let [x, y] = [box.x, top(box) + HIGH];
      let path = `M${x},${y}`;
      for (const next of [...through, end]) {
        const to = top(next);
        path += ` C${x},${y + DOWN / 2} ${next.x},${to - DOWN / 2} ${next.x},${to}`;
        [x, y] = [next.x, to + HIGH];
        if (next !== end) path += ` V${y}`;
      }
      return { from, to, path };
    }),
  );
  return {
    places: boxes.map((box) => ({ x: box.x - WIDE / 2, y: top(box) })),
    lines,
    width: Math.round(right - left),
    height: rows.length * (HIGH + DOWN) - DOWN,
  };
}

function join(upper: Node, lower: Node): void {
  upper.below.push(lower);
  lower.above.push(upper);
}

const mean = (of: Node[], or: number): number => (of.length === 0 ? or : of.reduce((sum, { x }) => sum + x, 0) / of.length);

/** The least distance of the middles of neighbours. */
const apart = (a: Node, b: Node): number => (a.wide + b.wide) / 2 + ACROSS;

/** Give the nodes of a row, in their order, places as near to the wished ones as their distances allow. */
function settle(row: Node[], wish: number[]): void {
  const from = [...wish];
  const to = [...wish];
  for (let at = 1; at < row.length; at += 1) {
    from[at] = Math.max(from[at] as number, (from[at - 1] as number) + apart(row[at - 1] as Node, row[at] as Node));
  }
  for (let at = row.length - 2; at >= 0; at -= 1) {
    to[at] = Math.min(to[at] as number, (to[at + 1] as number) - apart(row[at] as Node, row[at + 1] as Node));
  }
  row.forEach((node, at) => (node.x = ((from[at] as number) + (to[at] as number)) / 2));
}
