// Whether a head solves its task: every sequence is run, the error bounded, and what rounding decides is undecided, as
// glassformer/handcraft/verification.py, bounds.py and rounding.py, whose texts derive the bounds.
import type { Certificate } from "../source";
import type { Pause } from "./attention";
import { general } from "./formatting";
import { attention, output, placesOf, sequences, type Rows, type Tables, type Task } from "./places";
import { require } from "./refusing";

const [ROUNDOFF, TINY, MOST, SAME] = [2 ** -53, 2 ** -1022, Number.MAX_VALUE / 4, 1e-9];
/** More than the rounding of sums of positive numbers, and of a difference. */
const [OWN, OF_A_DIFFERENCE, MOST_LETTERS] = [1 + 2 ** -20, 2 ** -50, 12];

export async function certify(tables: Tables, task: Task, pause: Pause): Promise<Certificate> {
  const { tolerance } = task;
  const roundings = roundingsOf(tables, task);
  const sizes = sizesOf(tables);
  let [run, outputs, right, undecidedOutputs, largest, margin, bound, rounding] = [0, 0, 0, 0, -Infinity, Infinity, 0, 0];
  let [counterexample, undecided]: [Certificate["counterexample"], Certificate["undecided"]] = [null, null];
  for (const letters of sequences(task)) {
    const places = placesOf(letters, task);
    const first = places.length - letters.length;
    for (let at = 0; at < letters.length; at++) {
      const [query, target] = [places[first + at]!, task.targets[outputs]!];
      const found = output(tables, attention(tables, query, places), places);
      const apart = Math.max(...found.map((value, column) => Math.abs(value - target[column]!)));
      const error = Number.isNaN(apart) ? Infinity : apart;
      const isRight = error < task.decisive_error || readingsRight(found, target, task);
      const solved = tolerance === null ? isRight : error <= tolerance;
      largest = Math.max(largest, error);
      const wanted = wantedOf(tables, task, query, places, target);
      const known = bounded(tables, query, places, wanted, target, roundings, letters.length < task.max_len);
      margin = Math.min(margin, known.margin);
      const most = known.error * (1 + roundings.bound) + roundings.value;
      bound = Math.max(bound, most);
      const proved = tolerance === null ? most < task.decisive_error : most <= tolerance;
      if (!proved) {
        const radius = radiusOf(tables, sizes, query, places, found);
        const certain = certainty(found, radius, target, task);
        const failure = () => ({ sequence: letters.map((each) => task.letters[each]).join(""), position: at, output: found, target, error });
        if (certain === "wrong") counterexample ??= failure();
        if (certain === null) {
          undecidedOutputs += 1;
          if (!undecided) [undecided, rounding] = [failure(), Math.max(...radius)];
        }
      }
      right += Number(isRight || solved);
      outputs += 1;
    }
    run += 1;
    await pause();
  }
  const readout = task.readout === "sign" ? "every sign right" : "every largest entry right";
  const finite = Number.isFinite(largest);
  require(finite, "outputs that float64 cannot represent", "finite outputs", "Scale the weights down.");
  return {
    verdict: counterexample ? "fails" : undecided ? "undecided" : "holds",
    covers: coversOf(task),
    rests_on: "every sequence",
    criterion: tolerance === null ? readout : `every error at most ${general(tolerance, 6)}`,
    num_checked: run,
    num_possible: run,
    num_right: right,
    num_outputs: outputs,
    num_undecided: undecidedOutputs,
    largest_error: largest,
    margin: Number.isFinite(margin) ? margin : null,
    bound: Number.isFinite(bound) ? bound : null,
    counterexample,
    undecided,
    rounding: Number.isFinite(rounding) ? rounding : null,
  };
}

/** The sequences of a task, in words. */
function coversOf({ letters, max_len, has_cls }: Task): string {
  const listed = letters.length <= MOST_LETTERS ? letters.join(" ") : `${letters[0]} to ${letters.at(-1)}`;
  return `${max_len === 1 ? "1 letter" : `1 to ${max_len} letters`} of ${listed}${has_cls ? ", after CLS" : ""}`;
}

/** Whether all outputs within a radius are right, or all wrong; null if neither. */
function certainty(output: number[], radius: number[], target: number[], task: Task): "right" | "wrong" | null {
  const { tolerance, readout } = task;
  const [low, high] = [output.map((value, at) => value - radius[at]!), output.map((value, at) => value + radius[at]!)];
  if (tolerance !== null) {
    const errors = output.map((value, at) => Math.abs(value - target[at]!));
    const slack = errors.map((error, at) => radius[at]! + (radius[at]! > 0 ? OF_A_DIFFERENCE * error : 0));
    if (errors.every((error, at) => error + slack[at]! <= tolerance)) return "right";
    return errors.some((error, at) => error - slack[at]! > tolerance) ? "wrong" : null;
  }
  if (readout === "sign") {
    const sign = target.map(Math.sign);
    if (sign.every((each, at) => Math.sign(low[at]!) === each && Math.sign(high[at]!) === each)) return "right";
    return sign.some((each, at) => Math.sign(low[at]!) > each || Math.sign(high[at]!) < each) ? "wrong" : null;
  }
  const least = Math.max(...target) - SAME * Math.max(...target.map(Math.abs));
  const best = (of: number[], wanted: boolean) => Math.max(...of.filter((_, at) => target[at]! >= least === wanted));
  if (best(low, true) > best(high, false)) return "right";
  return best(high, true) <= best(low, false) ? "wrong" : null;
}

interface Sizes {
  /** [query place][key place]: how far a score may be off; 0 where it has no product that is not 0. */
  scores: Rows;
  products: boolean[][];
  /** [place][column]: how far a value may be off, and whether it has a product that is not 0. */
  values: Rows;
  some: boolean[][];
}

/** What rounding may change of scores and values: on another path, and here. */
function sizesOf({ inputs, weights: { Km, Qm, Vm } }: Tables): Sizes {
  const times = (x: Rows, matrix: Rows, term: (x: number, weight: number) => number): Rows =>
    x.map((row) => matrix[0]!.map((_, column) => row.reduce((sum, value, at) => sum + term(value, matrix[at]![column]!), 0)));
  const absolute = (x: number, weight: number) => Math.abs(x * weight);
  const some = (x: number, weight: number) => Number(x !== 0 && weight !== 0);
  const below = (x: number, weight: number) =>
    (Math.abs(weight) < TINY ? Math.abs(x * weight) : 0) + (Math.abs(x) < TINY ? Math.abs(x * weight) : 0);
  const lost = (matrix: Rows) => times(inputs, matrix, below).map((row) => row.map((each) => each + TINY * (matrix.length + 1)));
  const [queries, keys] = [times(inputs, Qm, absolute), times(inputs, Km, absolute)];
  const [lostQueries, lostKeys] = [lost(Qm), lost(Km)];
  const [someQuery, someKey] = [times(inputs, Qm, some), times(inputs, Km, some)];
  const scale = keys[0]!.length ** -0.5;
  const relative = 2 * gamma(2 * Km.length + keys[0]!.length + 8);
  const across = (left: Rows, right: Rows, query: number, key: number) =>
    left[query]!.reduce((sum, value, at) => sum + value * right[key]![at]!, 0);
  const pairs = <T>(of: (query: number, key: number) => T): T[][] => inputs.map((_, query) => inputs.map((_, key) => of(query, key)));
  const scores = pairs((query, key) => {
    const off = across(lostQueries, keys, query, key) + across(queries, lostKeys, query, key) + across(lostQueries, lostKeys, query, key);
    return relative * across(queries, keys, query, key) * scale + 2 * (off + TINY * keys[0]!.length) * scale;
  });
  const products = pairs((query, key) => across(someQuery, someKey, query, key) > 0);
  const [terms, inexact, lostValues] = [times(inputs, Vm, some), times(inputs, Vm, (x, weight) => Number(Math.abs(x) !== 1 && some(x, weight))), lost(Vm)];
  const subnormal = times(inputs, Vm, (x, weight) => (Math.abs(weight) < TINY ? Math.abs(x * weight) : 0));
  const values = times(inputs, Vm, absolute).map((row, place) =>
    row.map((size, column) => {
      const count = Math.max(terms[place]![column]! - 1, 0) + Number(inexact[place]![column]! > 0);
      return 2 * gamma(count) * size + 2 * (count > 0 ? lostValues : subnormal)[place]![column]!;
    }),
  );
  return { scores, products, values, some: terms.map((row) => row.map((count) => count > 0)) };
}

/** How far other ways of computing an output, and the exact one, may be from it. */
function radiusOf({ scores, values }: Tables, sizes: Sizes, query: number, keys: number[], found: number[]): number[] {
  const tiles = Math.floor((keys.length - 1) / 32);
  const exponentials = 2 * gamma(40 + 42 * tiles);
  const some = keys.some((key) => sizes.products[query]![key]!);
  const most = Math.max(...keys.map((key) => scores[query]![key]!));
  const ahead = keys.map((key) => scores[query]![key]! - most);
  const tiled = 1 + tiles / 4; // at most the factor that two roundings more for each tile make
  const shift = keys.map((key) => (some ? tiled * sizes.scores[query]![key]! + exponentials : 0));
  const total = ahead.reduce((sum, each) => sum + Math.exp(each), 0);
  const shares = ahead.map((each) => Math.exp(each) / total);
  const top = ahead.indexOf(0);
  const atMost = ahead.map((each, at) => Math.min(1, Math.exp(each + shift[at]! + shift[top]!)));
  const spread = Math.log1p(shares.reduce((sum, share, at) => sum + share * Math.expm1(shift[at]!), 0));
  const highest = shares.map((share, at) => least(atMost[at]!, share * Math.exp(shift[at]! + spread)));
  const relative = 2 * gamma(2 * keys.length + 1 + 2 * tiles);
  const summed = (of: (key: number, at: number) => number) => keys.reduce((sum, key, at) => sum + of(key, at), 0);
  return found.map((output, column) => {
    const value = (key: number) => values[key]![column]!;
    const off = (key: number) => (sizes.some[key]![column]! ? sizes.values[key]![column]! : 0);
    const byRatio = summed((key, at) => shares[at]! * Math.expm1(shift[at]! + spread) * Math.abs(value(key) - output));
    const byTop = summed((key, at) => (at === top ? 0 : atMost[at]! * Math.abs(value(key) - value(keys[top]!))));
    const size = (key: number) => Math.abs(value(key)) + off(key);
    const below = 4 * TINY * summed((key) => (size(key) > 0 ? 1 + size(key) : 0));
    const sums = summed((key, at) => highest[at]! * (off(key) + relative * size(key)));
    const radius = (least(byRatio, byTop) + sums + below) * OWN;
    if (Number.isNaN(radius)) return Infinity;
    return radius + (radius > 0 ? 4 * ROUNDOFF * Math.abs(output) : 0);
  });
}

/** The smaller of two numbers; one that is no number is left out. */
const least = (one: number, other: number): number => (Number.isNaN(one) ? other : Number.isNaN(other) ? one : Math.min(one, other));

/** Whether an output is read as its target is; any of several largest entries counts. */
export function readingsRight(output: number[], target: number[], { readout }: Task): boolean {
  if (readout === "sign") return output.every((value, at) => Math.sign(value) === Math.sign(target[at]!));
  const least = Math.max(...target) - SAME * Math.max(...target.map(Math.abs));
  const best = (wanted: boolean) => Math.max(...output.filter((_, at) => target[at]! >= least === wanted));
  return best(true) > best(false);
}

/** Rounding errors: of differences of two scores, of outputs, and of bounds, these relative. */
function roundingsOf({ inputs, weights: { Km, Qm, Vm } }: Tables, { max_len, has_cls }: Task) {
  /** The largest sums of absolute products, by columns. */
  const sums = (matrix: Rows) =>
    matrix[0]!.map((_, column) => Math.max(...inputs.map((row) => row.reduce((sum, x, at) => sum + Math.abs(x * matrix[at]![column]!), 0))));
  const [queries, keys] = [sums(Qm), sums(Km)];
  const product = queries.reduce((sum, value, at) => sum + value * keys[at]!, 0);
  const [score, value] = [product / Math.sqrt(keys.length), Math.max(...sums(Vm))];
  const positions = max_len + Number(has_cls);
  const below = `below ${general(MOST, 2)}, which torch.float64 can hold`;
  const fits = (size: number, kind: string, matrix: string) =>
    require(size < MOST, `${kind} of up to ${general(size, 3)}`, below, `Scale ${matrix} down.`);
  fits(Math.max(...queries, ...keys), "queries or keys", "Km or Qm");
  fits(product, "scores", "Km or Qm");
  fits(value * positions, "sums of values", "Vm");
  const [inOutput, tiles] = [gamma(2 * positions + Km.length + 48), Math.floor((positions - 1) / 32)];
  // In the head, and in these tables.
  const largest = (matrix: Rows) => Math.max(1, ...inputs.flat().map(Math.abs), ...matrix.flat().map(Math.abs));
  const [lostQuery, lostKey, lostValue] = [Qm, Km, Vm].map((matrix) => 2 * TINY * (matrix.length + 1) * largest(matrix)) as [number, number, number];
  const lost = queries.reduce((sum, each, at) => sum + each * lostKey + keys[at]! * lostQuery + lostKey * lostQuery + TINY, 0);
  return {
    score: 2 * (2 * gamma(2 * Km.length + keys.length + 8 + 2 * tiles) * score + gamma(42 * tiles) + lost / Math.sqrt(keys.length)),
    value: 2 * inOutput * value + lostValue + TINY * positions * (1 + value),
    bound: inOutput,
  };
}

const gamma = (roundings: number): number => (roundings * ROUNDOFF) / (1 - roundings * ROUNDOFF);

/** The keys that a query should attend to: by the description, or those whose value is the target. */
function wantedOf({ values }: Tables, { tiers, tolerance }: Task, query: number, keys: number[], target: number[]): boolean[] {
  if (tiers) {
    const most = Math.max(...keys.map((key) => tiers[query]![key]!));
    return keys.map((key) => tiers[query]![key] === most);
  }
  const found = keys.map((key) => values[key]!.every((value, at) => Math.abs(value - target[at]!) <= (tolerance ?? SAME)));
  return found.includes(true) ? found : found.map(() => true);
}

type Roundings = ReturnType<typeof roundingsOf>;

/** Of one query: the margin of its best wanted score, and the bound on the error of its output. */
function bounded(
  { scores, values }: Tables, query: number, keys: number[], wanted: boolean[], target: number[], roundings: Roundings, padded: boolean,
): { margin: number; error: number } {
  const of = (which: boolean) => keys.filter((_, at) => wanted[at] === which);
  const [chosen, others] = [of(true), of(false)];
  const score = (key: number) => scores[query]![key]!;
  const [best, least] = [Math.max(...chosen.map(score)), Math.min(...chosen.map(score))];
  const margin = best - Math.max(...others.map(score));
  const leaked = others.length ? 1 / (1 + Math.exp(margin - roundings.score) / others.length) : 0;
  const uneven = Math.tanh((best - least + roundings.score) / 4);
  const errors = target.map((wanted, column) => {
    const off = (key: number) => values[key]![column]! - wanted;
    const missed = Math.abs(chosen.reduce((sum, key) => sum + off(key), 0)) / chosen.length;
    // Keys that are not wanted count as 0, those of padding among them.
    const near = [...chosen.map(off), ...(others.length || padded ? [0] : [])];
    const distance = Math.max(0, ...others.map((key) => Math.abs(off(key))));
    return missed + uneven * (Math.max(...near) - Math.min(...near)) + leaked * distance;
  });
  return { margin, error: Math.max(...errors) };
}
