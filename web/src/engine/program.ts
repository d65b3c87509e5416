// A compiled program, as glassformer/programs/model.py and glassformer/explorer/answers/programs.py: in float64.
import type { Ask, AskProgram, Program, ProgramHead, ProgramVariable } from "../source";
import { attend, attendTo, queriesOf, type Attended, type Pause } from "./attention";
import { split, SPACE } from "./codecs";
import { defined, type Definition } from "./definition";
import { general, grouped } from "./formatting";
import { linear, rowsOf, sum } from "./products";
import { ascii, require } from "./refusing";
import { KeptRuns, type Kept } from "./runs";
import type { Weights } from "./weights";

/** What is in the file besides the weights, as glassformer/explorer/saving/saved_program.py writes it. */
export interface ProgramData {
  vocabulary: string[];
  max_len: number;
  causal: boolean;
  /** Of each layer. */
  num_heads: number[];
  num_parameters: number;
  stages: string[];
  heads: Omit<ProgramHead, "weights" | "sink">[];
  /** Tables: of each coordinate the number for each value; null for the value itself. */
  variables: (Omit<ProgramVariable, "values"> & { words: string[]; tables: number[][] | null })[];
  /** The numbers that stand for values, ascending; null if the output is the value. */
  codes: { numbers: number[]; words: string[] } | null;
  definition: Definition | null;
}

interface KeptProgram extends Kept {
  tokens: number[];
  /** [stage][position][coordinate] */
  stream: number[][][];
  attended: Attended<Float64Array>[];
  numbers: number[];
}

const [MOST_NUMBERS, MOST_ALIKE] = [2 ** 18, 3];

export class CompiledProgram extends KeptRuns<KeptProgram> {
  constructor(
    private readonly data: ProgramData,
    private readonly weights: Weights,
  ) {
    super("program");
  }

  read(ask: Ask, pause: Pause): Promise<KeptProgram> {
    return this.once(ask, async (run) => {
      const tokens = this.encode(ask.text);
      const read = await this.forward(tokens, pause);
      const finite = read.numbers.every(Number.isFinite);
      const words = finite ? this.words(read.numbers) : [];
      const said = { headline: finite ? words.map((word) => (word === "None" ? "\u2013" : word)).join(" ") : "outputs that are not finite", classes: [], words };
      const names = tokens.map((token) => this.data.vocabulary[token]!);
      return { message: { run, ask, tokens: names, source: null, attentions: [], said, place: null }, matrices: new Map(), tokens, ...read };
    });
  }

  program({ run }: AskProgram): Program {
    const { tokens, stream, attended, numbers } = this.of(run);
    const { stages, heads, num_parameters, definition } = this.data;
    const [length, width] = [tokens.length, stream[0]![0]!.length];
    const count = length * (this.data.num_heads.reduce((all, each) => all + each, 0) * length + stages.length * width);
    const most = `at most ${grouped(MOST_NUMBERS)}`;
    require(count <= MOST_NUMBERS, `${length} tokens, with ${grouped(count)} numbers`, most, "Shorten the text.");
    const finite = [...numbers, ...stream.flat(2)].every(Number.isFinite);
    require(finite, "numbers that are not finite", "finite weights", "Compile the program again.");
    const found = definition && defined(definition, this.weights, tokens, this.data.causal);
    const right = found?.values && numbers.map((number, at) => found.agrees(at, number, this.code(number)));
    return {
      stages,
      parts: found?.parts ?? [],
      heads: heads.map((head) => ({ ...head, ...attentionOf(attended[head.layer]!, head.head) })),
      variables: this.data.variables.map(({ words, tables, ...variable }) => {
        const rows = stream[Math.min(variable.born, stream.length - 1)]!;
        return { ...variable, values: rows.map((row) => decoded(variable.coordinates.map((at) => row[at]!), words, tables)) };
      }),
      stream,
      outputs: this.words(numbers),
      definition: found?.values ?? null,
      right: right ?? null,
      num_parameters,
    };
  }

  /** The tokens of a text: its characters if each token is one, otherwise its words. */
  private encode(text: string): number[] {
    const { vocabulary: names, max_len } = this.data;
    const letters = names.every((name) => [...name].length === 1);
    const space = new RegExp(`[${SPACE}]`, "u");
    const pieces = letters ? [...text].filter((each) => names.includes(each) || !space.test(each)) : split(text);
    const expected = `${letters ? "characters" : "words between spaces"} among ${names.join(" ")}`;
    require(pieces.length > 0, "no tokens", expected, "Type some.");
    const unknown = pieces.find((piece) => !names.includes(piece));
    require(unknown === undefined, `the token ${ascii(unknown ?? "")}`, expected, "Use these.");
    require(pieces.length <= max_len, `${pieces.length} tokens`, `1 to ${max_len}`, "Compile with a larger max_len.");
    return pieces.map((piece) => names.indexOf(piece));
  }

  private async forward(tokens: number[], pause: Pause): Promise<Pick<KeptProgram, "stream" | "attended" | "numbers">> {
    const { num_heads, causal, vocabulary } = this.data;
    const of = (name: string) => this.weights.wide(name);
    const maybe = (name: string) => this.weights.maybe(name) && of(name);
    const width = of("embedding.weight").length / vocabulary.length;
    const part = (name: string, x: Float64Array, from: number) => linear(x, of(`${name}.weight`), of(`${name}.bias`), from);
    const [table, places] = [rowsOf(of("embedding.weight"), width), rowsOf(of("positions.weight"), width)];
    let x: Float64Array = Float64Array.from(tokens.flatMap((token, at) => [...sum(table[token]!, places[at]!)]));
    const [stages, attended]: [Float64Array[], Attended<Float64Array>[]] = [[x], []];
    for (const [layer, heads] of num_heads.entries()) {
      const name = `layers.${layer}`;
      const [q, k, v] = ["query", "key", "value"].map((each) => part(`${name}.attention.${each}`, x, width)) as [Float64Array, Float64Array, Float64Array];
      const headDim = q.length / tokens.length / heads;
      const [scale, sinks] = [headDim ** -0.5, maybe(`${name}.attention.sinks`)];
      attended.push({ q, k, v, heads, headDim, group: 1, scale, cap: null, causal, window: null, keyWeights: null, sinks, forbids: null });
      x = sum(x, part(`${name}.attention.output`, await attend(attended[layer]!, pause), heads * headDim));
      stages.push(x);
      const bias = maybe(`${name}.ffn.up.bias`);
      if (bias) {
        const inside = part(`${name}.ffn.up`, x, width).map((value) => Math.max(value, 0));
        x = sum(x, part(`${name}.ffn.down`, inside, bias.length));
      }
      stages.push(x);
    }
    const stream = stages.map((stage) => rowsOf(stage, width).map((row) => [...row]));
    return { stream, attended, numbers: [...part("output", x, width)] };
  }

  /** The place of the nearest code; of two equally near ones the lower. */
  private code(number: number): number {
    const { numbers } = this.data.codes ?? { numbers: [] };
    return numbers.findIndex((code, at) => at + 1 === numbers.length || number <= code + (numbers[at + 1]! - code) / 2);
  }

  private words(numbers: number[]): string[] {
    const { codes } = this.data;
    return numbers.map((number) => (codes ? codes.words[this.code(number)]! : general(number, 6)));
  }
}

function attentionOf(call: Attended<Float64Array>, head: number): Pick<ProgramHead, "weights" | "sink"> {
  const count = queriesOf(call);
  const weights = Array.from({ length: count }, (_, query) => {
    const row = new Float64Array(count);
    attendTo(call, head, query, row);
    return [...row];
  });
  const left = (row: number[]) => Math.max(0, 1 - row.reduce((all, weight) => all + weight, 0));
  return { weights, sink: call.sinks && weights.map(left) };
}

/** The values whose coordinates are nearest to these numbers; several where the stream does not tell them apart. */
function decoded(row: number[], words: string[], tables: number[][] | null): string {
  // What attention leaves of 0 is 0.
  if (!tables) return Math.abs(row[0]!) < 1e-9 ? "0" : general(row[0]!, 3);
  const far = words.map((_, value) => Math.max(...tables.map((table, at) => Math.abs(table[value]! - row[at]!))));
  const least = Math.min(...far);
  const alike = words.filter((_, value) => far[value]! <= least + 1e-6);
  return alike.length > MOST_ALIKE ? `one of ${alike.length} values` : alike.join(" or ");
}
