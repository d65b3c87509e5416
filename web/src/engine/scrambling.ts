// The effect of the source's order on the logits of an encoder-decoder, as glassformer/explorer/answers/scrambling.py.
import type { AskScramble, Scrambled } from "../source";
import type { Pause } from "./attention";
import { require, requireFinite } from "./refusing";
import { inOrder, type Runs } from "./runs";
import { mersenneTwister, ranked } from "./sampling";

const [MOST_ORDERS, TOLERANCE] = [500, 1e-5];

export async function scramble({ model, codec }: Runs, ask: AskScramble, pause: Pause): Promise<Scrambled> {
  const source = codec.source!.read(ask.source);
  const target = codec.encode(ask.text).map((token) => [token]);
  const predict = async (order: number[] | null) => {
    const reading = (await model.readAll([inOrder(source, order), target], { pause })).at(-1)!;
    const logits = target.map((_, at) => model.logits(reading, at));
    logits.forEach((each) => requireFinite(each));
    return logits;
  };
  const given = await predict(null);
  const tolerance = TOLERANCE * Math.max(1, ...given.map((each) => Math.max(...each.map(Math.abs))));
  const units = source.map(String);
  const differ = ask.order !== null || units.some((unit) => unit !== units[0]);
  const fix = "Pass contexts whose real positions differ.";
  require(differ, "contexts that are the same in every order", "two different real positions in one of them", fix);
  const [orders, exhaustive] = ask.order === null ? allOrders(source.length) : [[ask.order], false];
  const found = { largest: 0, changed: 0, worst: orders[0]! };
  for (const order of orders) {
    const logits = await predict(order);
    const changes = logits.map((each, at) => Math.max(...each.map((logit, token) => Math.abs(logit - given[at]![token]!))));
    const change = Math.max(...changes);
    found.changed += logits.filter((each, at) => ranked(each)[0] !== ranked(given[at]!)[0]).length;
    if (change > found.largest) [found.largest, found.worst] = [change, order];
  }
  const { largest, changed, worst } = found;
  const holds = changed === 0 && largest <= tolerance;
  return { orders: orders.length, exhaustive, largest_change: largest, changed_tokens: changed, tolerance, holds, worst };
}

/** All orders, the given one first, or that and others at random as torch's `randperm` draws them; and whether they are all. */
function allOrders(count: number): [number[][], boolean] {
  const places = [...Array(count).keys()];
  const permutations = (rest: number[]): number[][] => {
    const others = (first: number) => permutations(rest.filter((each) => each !== first));
    return rest.length ? rest.flatMap((first) => others(first).map((some) => [first, ...some])) : [[]];
  };
  if (count <= 5) return [permutations(places), true];
  const [drawn, words] = [new Map([[String(places), places]]), mersenneTwister(0)];
  while (drawn.size < MOST_ORDERS) {
    const order = [...places];
    for (let at = 0; at < count - 1; at++) {
      const other = at + (words.next().value % (count - at));
      [order[at], order[other]] = [order[other]!, order[at]!];
    }
    drawn.set(String(order), order);
  }
  return [[...drawn.values()], false];
}
