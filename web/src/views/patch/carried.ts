// Where the difference between two texts is carried, by layers, in a sentence.

/** A place holds the difference where it brings back at least this share of it. */
const MOST = 0.5;

export interface Carried {
  /** The position that holds it in the first layers, and the last of these. */
  early: { position: number; until: number };
  /** The position that holds it in the last layers, and the first of these. */
  late: { position: number; from: number };
}

/** Null where some layer at either end has no place that holds it, and while places are not known. */
export function carried(shares: (number | null)[][]): Carried | null {
  if (shares.length === 0 || shares.some((row) => row.some((share) => share === null))) return null;
  const holders = shares.map((row) => {
    const most = Math.max(...(row as number[]));
    return most >= MOST ? row.indexOf(most) : null;
  });
  const [first, last] = [holders[0]!, holders.at(-1)!];
  if (first === null || last === null) return null;
  const changed = holders.findIndex((holder) => holder !== first);
  const until = changed === -1 ? holders.length - 1 : changed - 1;
  let from = holders.length - 1;
  while (from > 0 && holders[from - 1] === last) from -= 1;
  return { early: { position: first, until }, late: { position: last, from } };
}

/** The places that bring back most, of those that are known. */
export function largest(shares: (number | null)[][], count: number): { layer: number; position: number; share: number }[] {
  return shares
    .flatMap((row, layer) => row.flatMap((share, position) => (share === null ? [] : [{ layer, position, share }])))
    .sort((one, other) => Math.abs(other.share) - Math.abs(one.share))
    .slice(0, count);
}
