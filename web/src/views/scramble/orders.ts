// Orders of a source: `order[position]` is the unit that is read at a position.

export const straight = (count: number): number[] => Array.from({ length: count }, (_, at) => at);

/** The state's order, or the given one where the state's does not fit the number of units. */
export function orderOf(stored: number[] | null, count: number): number[] {
  const fits = stored !== null && stored.length === count && new Set(stored).size === count && stored.every((at) => at < count);
  return fits ? stored : straight(count);
}

/** The order as the address holds it: null for the given one. */
export const asStored = (order: number[]): number[] | null => (order.every((unit, at) => unit === at) ? null : order);

export function moved(order: number[], from: number, to: number): number[] {
  const next = order.filter((_, at) => at !== from);
  next.splice(to, 0, order[from] as number);
  return next;
}

/** The order after a unit is removed from the source. */
export const without = (order: number[], unit: number): number[] =>
  order.filter((each) => each !== unit).map((each) => (each > unit ? each - 1 : each));

/** A random order other than the current one. */
export function shuffled(order: number[]): number[] {
  if (order.length < 2) return order;
  for (;;) {
    const next = [...order];
    for (let last = next.length - 1; last > 0; last--) {
      const other = Math.floor(Math.random() * (last + 1));
      [next[last], next[other]] = [next[other] as number, next[last] as number];
    }
    if (next.some((unit, at) => unit !== order[at])) return next;
  }
}

/** A unit to add to a source: an unused word, or a fact with an unused key. */
export function suggestion(source: string[], words: string[] | null): string {
  const facts = source.length > 0 && source.every((unit) => unit.includes("="));
  const plain = (words ?? []).filter((word) => !word.startsWith("[") && word !== "none");
  if (!facts) return plain.find((word) => !source.includes(word)) ?? plain[0] ?? "";
  const asked = new Set(source.map((unit) => unit.split("=")[0]?.trim()));
  const numbers = plain.filter((word) => /^\d+$/.test(word));
  // Steps through the list, so that successive names do not look alike.
  const keys = plain.filter((word) => !/^\d+$/.test(word) && !asked.has(word));
  const key = keys[(source.length * 11) % Math.max(1, keys.length)] ?? "";
  return `${key}=${numbers[(source.length * 37 + 5) % Math.max(1, numbers.length)] ?? ""}`;
}
