// Whether a head solves its task: every sequence is run, and the error bounded, as glassformer/handcraft/verification.py
// and bounds.py, whose text derives the bound.
import type { Certificate } from "../source";
import type { Pause } from "./attention";
import { general } from "./formatting";
import { attention, output, placesOf, sequences, type Rows, type Tables, type Task } from "./places";
import { require } from "./refusing";

const [ROUNDOFF, TINY, MOST, SAME] = [2 ** -53, 2 ** -1022, Number.MAX_VALUE / 4, 1e-9];

export async function certify(tables: Tables, task: Task, pause: Pause): Promise<Certificate> {
  const { tolerance } = task;
  const roundings = roundingsOf(tables, task);
  let [run, outputs, right, largest, margin, bound] = [0, 0, 0, -Infinity, Infinity, 0];
  let counterexample: Certificate["counterexample"] = null;
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
      if (!counterexample && !solved) {
        const sequence = letters.map((each) => task.letters[each]).join("");
        counterexample = { sequence, position: at, output: found, target, error };
      }
      const wanted = wantedOf(tables, task, query, places, target);
      const known = bounded(tables, query, places, wanted, target, roundings, letters.length < task.max_len);
      margin = Math.min(margin, known.margin);
      bound = Math.max(bound, known.error * (1 + roundings.bound) + roundings.value);
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
    verdict: counterexample ? "fails" : "holds",
    rests_on: "every sequence",
    criterion: tolerance === null ? readout : `every error at most ${general(tolerance, 6)}`,
    num_checked: run,
    num_possible: run,
    num_right: right,
    num_outputs: outputs,
    largest_error: largest,
    margin: Number.isFinite(margin) ? margin : null,
    bound: Number.isFinite(bound) ? bound : null,
    counterexample,
  };
}

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
  const inOutput = gamma(2 * positions + Km.length + 48);
  // In the head, and in these tables.
  const sizes = queries.reduce((sum, each, at) => sum + each + keys[at]!, 0);
  const lost = (TINY * (Km.length * sizes + keys.length)) / Math.sqrt(keys.length);
  return {
    score: 4 * gamma(2 * Km.length + keys.length + 8) * score + 2 * lost,
    value: 2 * inOutput * value + TINY * (Km.length + positions * (1 + value)),
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
