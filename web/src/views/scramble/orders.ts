// Orders of a source's things: `order[place]` is the thing that is read at a place.

export const straight = (count: number): number[] => Array.from({ length: count }, (_, at) => at);

/** The order that an address tells, or as things are where it tells none of so many. */
export function orderOf(told: number[] | null, count: number): number[] {
  const fits = told !== null && told.length === count && new Set(told).size === count && told.every((at) => at < count);
  return fits ? told : straight(count);
}

/** What is kept in the address: null for things as they are. */
export const asTold = (order: number[]): number[] | null => (order.every((unit, at) => unit === at) ? null : order);

export function moved(order: number[], from: number, to: number): number[] {
  const next = order.filter((_, at) => at !== from);
  next.splice(to, 0, order[from] as number);
  return next;
}

/** The order without a thing that is taken out of the source. */
export const without = (order: number[], unit: number): number[] =>
  order.filter((each) => each !== unit).map((each) => (each > unit ? each - 1 : each));

/** Another order at random. */
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

/** Something that could be added to a source: an unused word, or a fact about an unused key. */
export function suggestion(source: string[], words: string[] | null): string {
  const facts = source.length > 0 && source.every((unit) => unit.includes("="));
  const plain = (words ?? []).filter((word) => !word.startsWith("[") && word !== "none");
  if (!facts) return plain.find((word) => !source.includes(word)) ?? plain[0] ?? "";
  const asked = new Set(source.map((unit) => unit.split("=")[0]?.trim()));
  const numbers = plain.filter((word) => /^\d+$/.test(word));
  // Away from the beginning, so that names do not look like one another.
  const keys = plain.filter((word) => !/^\d+$/.test(word) && !asked.has(word));
  const key = keys[(source.length * 11) % Math.max(1, keys.length)] ?? "";
  return `${key}=${numbers[(source.length * 37 + 5) % Math.max(1, numbers.length)] ?? ""}`;
}
