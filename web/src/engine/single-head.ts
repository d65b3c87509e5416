// A hand-designed head whose weights may be edited, as glassformer/explorer/answers/hand_designed.py: in float64.
import type { Ask, AskCheck, Check, Numbers } from "../source";
import type { Attended, Pause } from "./attention";
import { certify, readingsRight } from "./certifying";
import { lettersIn } from "./codecs";
import { Matrices } from "./matrices";
import { attention, output, placesOf, tablesOf, type HeadWeights, type Rows, type Task } from "./places";
import { require } from "./refusing";
import { KeptRuns, type Kept } from "./runs";
import type { Weights } from "./weights";

const [MOST_CELLS, ALIKE] = [4096, 1e-9];

export class SingleHead extends KeptRuns<Kept> {
  private readonly task: Task;
  private readonly design: HeadWeights;

  constructor(task: Omit<Task, "targets" | "tiers">, weights: Weights) {
    super("head");
    this.task = { ...task, targets: weights.rows("targets")!, tiers: weights.rows("tiers") };
    const [Km, Qm, Vm, pos] = ["Km", "Qm", "Vm", "pos"].map((name) => weights.rows(name));
    this.design = { Km: Km!, Qm: Qm!, Vm: Vm!, pos: pos! };
  }

  read(ask: Ask): Promise<Kept> {
    return this.once(ask, async (run) => {
      const letters = lettersIn(ask.text, this.task.letters, this.task.max_len);
      const { task } = this;
      const tables = tablesOf(ask.weights ? this.fitting(ask.weights) : this.design, task);
      const places = placesOf(letters, task);
      const outputs = places.map((place) => output(tables, attention(tables, place, places), places));
      const finite = outputs.flat().every(Number.isFinite);
      require(finite, "scores or outputs beyond what float64 can hold", "finite ones", "Scale the weights down.");
      const words = outputs.slice(Number(task.has_cls)).map((row) => reading(row, task));
      const [flat, count] = [(rows: Rows) => Float64Array.from(places.flatMap((place) => rows[place]!)), places.length];
      const headDim = tables.weights.Km[0]!.length;
      const attended: Attended<Float64Array> = {
        q: flat(tables.queries),
        k: flat(tables.keys),
        v: flat(tables.values),
        ...{ heads: 1, headDim, group: 1, scale: headDim ** -0.5, cap: null, causal: false, window: null },
        ...{ keyWeights: null, sinks: null, forbids: null },
      };
      const sizes = Float64Array.from(places, (place) => Math.hypot(...tables.values[place]!));
      const stack = {
        ...{ part: "self" as const, label: "self-attention", layers: 1, heads: 1, queries: count, keys: count },
        ...{ queries_are: "tokens" as const, keys_are: "tokens" as const, causal: false, windows: [null], sinks: false },
      };
      const tokens = this.names(letters);
      const said = { headline: words.join(" "), classes: [], words };
      return { message: { run, ask, tokens, source: null, attentions: [stack], said, place: null }, matrices: new Map([["self", new Matrices([attended], false, () => sizes)]]) };
    });
  }

  async check(ask: AskCheck, pause: Pause): Promise<Check> {
    const { task } = this;
    const weights = this.fitting(ask.weights);
    const letters = lettersIn(ask.text, this.task.letters, this.task.max_len);
    const tables = tablesOf(weights, task);
    const certificate = await certify(tables, task, pause);
    const [places, tokens, first] = [placesOf(letters, task), this.names(letters), Number(task.has_cls)];
    const shares = places.map((place) => attention(tables, place, places));
    const outputs = shares.map((row) => output(tables, row, places));
    const judged = outputs.slice(first);
    const begin = firstTarget(letters, task);
    const targets = task.targets.slice(begin, begin + letters.length);
    const [names, columns] = [outputNames(task), weights.Km[0]!.map((_, at) => String(at))];
    const numbers = (rows: string[], columns: string[], cells: Rows): Numbers => ({ rows, columns, cells });
    const of = (rows: Rows) => places.map((place) => rows[place]!);
    return {
      tokens,
      inputs: numbers(tokens, inputNames(weights, task), of(tables.inputs)),
      K: numbers(tokens, columns, of(tables.keys)),
      Q: numbers(tokens, columns, of(tables.queries)),
      V: numbers(tokens, names, of(tables.values)),
      scores: numbers(tokens, tokens, places.map((query) => places.map((key) => tables.scores[query]![key]!))),
      weights: numbers(tokens, tokens, shares.map((row) => [...row])),
      outputs: numbers(tokens, names, outputs),
      targets: numbers(tokens.slice(first), names, targets),
      reads: judged.map((row) => reading(row, task)),
      wanted: targets.map((row) => reading(row, task)),
      right: judged.map((row, at) => readingsRight(row, targets[at]!, task)),
      certificate,
    };
  }

  private names(letters: number[]): string[] {
    const { has_cls, letters: known } = this.task;
    return [...(has_cls ? ["CLS"] : []), ...letters.map((letter) => known[letter]!)];
  }

  /** Weights of the shapes that the page gives them. */
  private fitting(weights: HeadWeights): HeadWeights {
    const { letters, has_cls, max_len, v_dim } = this.task;
    const { Km, Qm, Vm, pos } = weights;
    const [columns, coordinates] = [Km[0]?.length ?? 0, pos?.[0]?.length ?? 0];
    const rows = letters.length + Number(has_cls) + coordinates;
    const is = (matrix: Rows, height: number, width: number) =>
      matrix.length === height && width > 0 && width * height <= MOST_CELLS && matrix.every((row) => row.length === width);
    const placed = !pos || (pos.length >= max_len + Number(has_cls) && is(pos, pos.length, coordinates));
    const fits = placed && is(Km, rows, columns) && is(Qm, rows, columns) && is(Vm, rows, v_dim);
    require(fits, "matrices of other shapes", "shapes that fit each other and the task", "Go back to the design.");
    return weights;
  }
}

/** The place among all targets of the first one of a sequence. */
function firstTarget(letters: number[], { letters: { length: count } }: Task): number {
  const number = letters.reduce((sum, letter) => sum * count + letter, 0);
  let before = 0;
  for (let length = 1; length < letters.length; length++) before += count ** length * length;
  return before + number * letters.length;
}

function inputNames({ pos }: HeadWeights, { letters, has_cls }: Task): string[] {
  const tokens = [...letters, ...(has_cls ? ["CLS"] : [])];
  if (!pos) return tokens;
  const oneHot = pos.length === pos[0]!.length && pos.every((row, at) => row.every((value, column) => value === Number(at === column)));
  const place = (position: number) => (has_cls ? (position === 0 ? "@CLS" : `@${position - 1}`) : `@${position}`);
  return [...tokens, ...pos[0]!.map((_, at) => (oneHot ? place(at) : `p${at}`))];
}

function outputNames({ readout, letters, v_dim }: Task): string[] {
  if (readout === "argmax" && v_dim === letters.length) return letters;
  return v_dim === 1 ? ["output"] : Array.from({ length: v_dim }, (_, at) => String(at));
}

/** The name of the largest number of an output, or its sign. */
function reading(row: number[], task: Task): string {
  if (task.readout === "sign") return row.map((value) => ["-1", "0", "+1"][Math.sign(value) + 1]).join(" ");
  const least = Math.max(...row) - ALIKE * Math.max(...row.map(Math.abs));
  return outputNames(task).filter((_, at) => row[at]! >= least).join(" or ");
}
