// The parts of a logit as the view Flow draws them: layers from bottom to top, heads left of the residual stream of the
// position that predicts, and networks right of it. A ribbon leads from each part into the stream and up to the answer.
import type { Contribution } from "../../source";

export interface Piece {
  /** `heads`: those of a layer that are not shown alone. `rest`: biases, and what edits add. */
  kind: "head" | "heads" | "network" | "embedding" | "rest";
  layer: number | null;
  head: number | null;
  /** How many heads or experts it sums up. */
  count: number;
  value: number;
  /** Whether it is among those that add or take most. */
  strong: boolean;
}

const bySize = (one: Piece, other: Piece) => Math.abs(other.value) - Math.abs(one.value);
const total = (parts: { value: number }[]) => parts.reduce((sum, { value }) => sum + value, 0);

/** The parts from bottom to top, with as many heads of their own as `most`. Their values have the sum of the parts. */
export function piecesOf(parts: Contribution[], most: number): Piece[] {
  const piece = (kind: Piece["kind"], layer: number | null, of: Contribution[], head: number | null = null): Piece => ({
    ...{ kind, layer, head, count: of.length, value: total(of), strong: false },
  });
  const heads = parts.filter(({ kind }) => kind === "head").map((each) => piece("head", each.layer, [each], each.number));
  const alone = new Set(heads.sort(bySize).slice(0, most));
  const layers = [...new Set(parts.flatMap(({ kind, layer }) => (kind !== "bias" && layer !== null ? [layer] : [])))].sort((a, b) => a - b);
  const found = [piece("embedding", null, parts.filter(({ kind }) => kind === "embedding"))];
  for (const layer of layers) {
    const own = heads.filter((each) => each.layer === layer);
    const others = own.filter((each) => !alone.has(each));
    if (others.length > 0) found.push({ ...piece("heads", layer, []), count: others.length, value: total(others) });
    found.push(...own.filter((each) => alone.has(each)).sort((a, b) => a.head! - b.head!));
    const network = parts.filter((each) => each.layer === layer && (each.kind === "ffn" || each.kind === "expert"));
    if (network.length > 0) found.push(piece("network", layer, network));
  }
  const rest = parts.filter(({ kind }) => kind === "bias" || kind === "interventions");
  if (rest.length > 0) found.push(piece("rest", null, rest));
  const strong = new Set(found.filter(({ kind }) => kind !== "head").sort(bySize).slice(0, most));
  return found.map((each) => ({ ...each, strong: each.kind === "head" || (each.kind !== "heads" && strong.has(each)) }));
}

/** A number with one decimal place and a true minus sign. */
export const tenths = (value: number): string => (Math.abs(value) < 0.05 ? "0.0" : value.toFixed(1).replace("-", "\u2212"));

/** The same with its sign, and small numbers with two digits. */
export function added(value: number): string {
  if (Math.abs(value) >= 0.95) return `${value > 0 ? "+" : ""}${tenths(value)}`;
  const [sign, size] = [value < 0 ? "\u2212" : "+", Math.abs(value)];
  return size < 0.005 ? "0" : `${sign}${Number(size.toFixed(2))}`;
}

export function nameOf({ kind, layer, head, count }: Piece): string {
  switch (kind) {
    case "head":
      return `head ${head} of layer ${layer}`;
    case "heads":
      return `${count} other ${count === 1 ? "head" : "heads"} of layer ${layer}`;
    case "network":
      return `the ${count > 1 ? "experts" : "MLP"} of layer ${layer}`;
    case "embedding":
      return "the embedding";
    case "rest":
      return "biases";
  }
}

/** What adds to a logit and takes from it, in two sentences. */
export function inWords(name: string, sum: number, pieces: Piece[]): string {
  const few = (value: number) => tenths(Math.abs(value));
  const some = pieces.filter(({ kind }) => kind !== "heads").sort(bySize);
  const [first, ...more] = some.filter(({ value }) => value >= 0.05).slice(0, 3);
  const against = some.find(({ value }) => value <= -0.05);
  const several = against && (against.kind === "rest" || (against.kind === "network" && against.count > 1));
  const gets = first
    ? `gets ${[`${few(first.value)} of its logit of ${tenths(sum)} from ${nameOf(first)}`, ...more.map((each) => `${few(each.value)} from ${nameOf(each)}`)].join(", ")}`
    : `has a logit of ${tenths(sum)}`;
  const takes = against ? `; ${nameOf(against)} ${several ? "take" : "takes"} ${few(against.value)} from it` : "";
  const sums = (title: string, ...kinds: Piece["kind"][]) => {
    const of = pieces.filter(({ kind }) => kinds.includes(kind));
    return of.length > 0 ? [`${title} ${tenths(total(of))}`] : [];
  };
  const network = pieces.some(({ kind, count }) => kind === "network" && count > 1) ? "all experts" : "all MLPs";
  const kinds = [...sums("all heads", "head", "heads"), ...sums(network, "network"), ...sums("the embedding", "embedding"), ...sums("biases", "rest")];
  return `\u201C${name}\u201D ${gets}${takes}. In sum: ${kinds.join(", ")}.`;
}

export interface Band {
  piece: Piece;
  left: boolean;
  /** The middle of its part. */
  y: number;
  /** Its width, along all its way. */
  size: number;
  /** How far it is from the middle of the stream. */
  inner: number;
}

export interface Layout {
  bands: Band[];
  height: number;
}

/** Pixels between parts, and of one logit at most. */
const [GAP, WIDEST] = [2, 10];

/** Whether a part has a label, which opens it. For a finger these are large, and fewer. */
export const isLabelled = ({ kind, strong }: Piece, touch: boolean): boolean => strong || (kind !== "heads" && !(kind === "network" && touch));

/** @param half The room for ribbons on each side of the stream. */
export function layoutOf(pieces: Piece[], half: number, touch = false): Layout {
  const [least, label] = touch ? [10, 40] : [18, 17];
  const isLeft = ({ kind }: Piece) => kind === "head" || kind === "heads";
  const room = (left: boolean) => pieces.filter((each) => isLeft(each) === left).reduce((sum, { value }) => sum + Math.abs(value), 0);
  const scale = Math.min(WIDEST, half / Math.max(room(true), room(false), 1e-9));
  const sizeOf = ({ value }: Piece) => Math.abs(value) * scale;
  const tall = (each: Piece) => Math.max(isLabelled(each, touch) ? label : 0, sizeOf(each)) + GAP;
  const rows: Piece[][] = [];
  pieces.forEach((each, at) => {
    const before = pieces[at - 1];
    if (before && before.kind !== "embedding" && before.kind !== "rest" && before.layer === each.layer) rows.at(-1)!.push(each);
    else rows.push([each]);
  });
  const side = (row: Piece[], left: boolean) => row.filter((each) => isLeft(each) === left);
  const taken = (some: Piece[]) => some.reduce((sum, each) => sum + tall(each), 0);
  const heights = rows.map((row) => Math.max(least, taken(side(row, true)), taken(side(row, false))));
  const height = heights.reduce((sum, each) => sum + each, 0);
  const bands: Band[] = [];
  const inner = { true: 1, false: 1 };
  let bottom = height;
  rows.forEach((row, at) => {
    for (const left of [true, false]) {
      const own = side(row, left);
      let y = bottom - (heights[at]! - taken(own)) / 2;
      for (const piece of own) {
        const size = sizeOf(piece);
        bands.push({ piece, left, y: y - tall(piece) / 2, size, inner: inner[`${left}`] });
        inner[`${left}`] += size;
        y -= tall(piece);
      }
    }
    bottom -= heights[at]!;
  });
  return { bands, height };
}

/** A ribbon from a part at `x` into the stream, whose middle is `middle`, and up to `top`. */
export function ribbon({ left, y, size, inner }: Band, x: number, middle: number, top: number, radius: number): string {
  const [way, turn, back] = left ? [-1, 0, 1] : [1, 1, 0];
  const [near, far] = [middle + way * inner, middle + way * (inner + size)];
  const [above, below, corner, outer] = [y - size / 2, y + size / 2, far + way * radius, radius + size];
  const turned = above - radius;
  return `M${x} ${below}H${corner}A${outer} ${outer} 0 0 ${turn} ${near} ${turned}V${top}H${far}V${turned}A${radius} ${radius} 0 0 ${back} ${corner} ${above}H${x}Z`;
}

/** The places of some labels, the most important first, that are at least `apart` from one another. */
export function spaced(places: { at: number; x: number }[], apart: number): number[] {
  const chosen: { at: number; x: number }[] = [];
  for (const each of places) if (chosen.every(({ x }) => Math.abs(x - each.x) >= apart)) chosen.push(each);
  return chosen.map(({ at }) => at);
}
