// The answers of a saved page's own model, in the messages of the server but for what the page does not show: see
// glassformer/explorer/answers.
import type { CallName, Calls, Experts, Part } from "../source";
import type { Pause } from "./attention";
import { codecOf, type CodecData } from "./codecs";
import type { ModelConfig } from "./config";
import { find, next, steps } from "./continuing";
import { contributions, ffn, lens } from "./lenses";
import { Model } from "./model";
import type { Task } from "./places";
import { CompiledProgram, type ProgramData } from "./program";
import { quoted, require } from "./refusing";
import { Runs, type Kept, type KeptRuns } from "./runs";
import { scramble } from "./scrambling";
import { SingleHead } from "./single-head";
import { patches, sweep } from "./sweeping";
import { Weights } from "./weights";
import { passOfRun, whatif } from "./what-if";

/** A model in a saved file, as glassformer/explorer/saving/saved_model.py writes it. */
export type SavedModel = {
  /** Safetensors in base64, and the CRC of their bytes. */
  weights: string;
  crc32: number;
} & (
  | { kind: "transformer"; config: ModelConfig; codec: CodecData }
  | { kind: "head"; task: Omit<Task, "targets" | "tiers"> }
  | { kind: "program"; program: ProgramData }
);

type Answered<N extends CallName> = Calls[N]["answered"] | Promise<Calls[N]["answered"]>;
type Answers<T> = { readonly [N in CallName]?: (of: T, asked: Calls[N]["asked"], pause: Pause) => Answered<N> };

const RUN = { run: async (of, asked, pause) => (await of.read(asked, pause)).message } satisfies Answers<KeptRuns<Kept>>;
const matricesOf = (runs: KeptRuns<Kept>, { run, part }: { run: string; part: Part }) => runs.of(run).matrices.get(part)!;
const MATRICES = {
  weights: (of, asked, pause) => matricesOf(of, asked).tile(asked, pause),
  rows: (of, asked) => matricesOf(of, asked).rows(asked),
  measures: (of, asked, pause) => matricesOf(of, asked).measures(pause),
} satisfies Answers<KeptRuns<Kept>>;
const PREDICTIONS = { experts, next, steps, find, whatif, lens, contributions, ffn, sweep, patches, scramble } satisfies Answers<Runs>;
const CHECK = { check: (head, asked, pause) => head.check(asked, pause) } satisfies Answers<SingleHead>;
const PROGRAM = { program: (program, asked) => program.program(asked) } satisfies Answers<CompiledProgram>;

/** What is answered for each kind. */
const ANSWERS = {
  transformer: { ...RUN, ...MATRICES, ...PREDICTIONS },
  head: { ...RUN, ...MATRICES, ...CHECK },
  program: { ...RUN, ...PROGRAM },
};
export type Computed = { [K in SavedModel["kind"]]: keyof (typeof ANSWERS)[K] }[SavedModel["kind"]];
export const isComputed = ({ kind }: SavedModel, call: CallName): call is Computed => call in ANSWERS[kind];

export class Engine {
  private readonly of: KeptRuns<Kept>;
  private readonly answers: Answers<never>;

  /** @throws Refused if the weights are not those that were saved, or not finite. */
  constructor(model: SavedModel) {
    const weights = new Weights(model.weights, model.crc32);
    this.answers = ANSWERS[model.kind];
    if (model.kind === "transformer") this.of = new Runs(new Model(model.config, weights), codecOf(model.codec), passOfRun);
    else if (model.kind === "head") this.of = new SingleHead(model.task, weights);
    else this.of = new CompiledProgram(model.program, weights);
  }

  async answer<N extends Computed>(call: N, asked: Calls[N]["asked"], pause: Pause): Promise<Calls[N]["answered"]> {
    return this.answers[call]!(this.of as never, asked as never, pause) as Answered<N>;
  }
}

const [MOST_EXPERT_NUMBERS, SIX_DIGITS] = [2 ** 20, 1e6];

function experts(runs: Runs, { run }: Calls["experts"]["asked"]): Experts {
  const { num_experts, top_k } = runs.model.config;
  const { message, reading: { routed } } = runs.of(run);
  const count = message.tokens.length;
  const got = `a run of ${quoted(message.ask.model)}, which has no experts`;
  require(routed.length > 0, got, "a run of a mixture of experts", "Choose a model whose card names the view 'experts'.");
  const chosen = 2 * count * routed.length * top_k;
  const whole = chosen + routed.length * count * num_experts! <= MOST_EXPERT_NUMBERS;
  const rounded = (rows: Float64Array[]) => rows.map((row) => Array.from(row, (share) => Math.round(share * SIX_DIGITS) / SIX_DIGITS));
  const layers = routed.map(({ layer, probabilities, choices, shares }) => {
    const load = new Array<number>(num_experts!).fill(0);
    for (const expert of choices.flat()) load[expert]! += 1 / (count * top_k);
    return { layer, choices, shares: rounded(shares), probabilities: whole ? rounded(probabilities) : [], load };
  });
  return { num_experts: num_experts!, top_k, layers };
}
