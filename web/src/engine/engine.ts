// The answers of a saved page's own model, in the messages of the server: see glassformer/explorer/answers.
import type { Ask, CallName, Calls, Experts, Part } from "../source";
import type { Pause } from "./attention";
import { codecOf, type CodecData } from "./codecs";
import type { ModelConfig } from "./config";
import { Continuing } from "./continuing";
import { contributions, lens } from "./lenses";
import { Model } from "./model";
import type { Task } from "./places";
import { CompiledProgram, type ProgramData } from "./program";
import { quoted, require } from "./refusing";
import { KeptRuns, Runs, type Kept, type KeptRun } from "./runs";
import { scramble } from "./scrambling";
import { SingleHead } from "./single-head";
import { Patching, Sweeping } from "./sweeping";
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

/** The calls that are answered for each kind. */
const CALLS = {
  transformer: [
    "run", "weights", "rows", "measures", "experts", "next", "steps", "find", "whatif", "lens", "contributions", "sweep", "patches", "scramble",
  ],
  head: ["run", "weights", "rows", "measures", "check"],
  program: ["run", "program"],
} as const satisfies Record<SavedModel["kind"], CallName[]>;
export type Computed = (typeof CALLS)[keyof typeof CALLS][number];
export const isComputed = ({ kind }: SavedModel, call: CallName): call is Computed => (CALLS[kind] as readonly CallName[]).includes(call);

const [MOST_EXPERT_NUMBERS, SIX_DIGITS] = [2 ** 20, 1e6];

type Answers = { [N in Computed]?: (asked: Calls[N]["asked"], pause: Pause) => Promise<Calls[N]["answered"]> | Calls[N]["answered"] };

export class Engine {
  private readonly answers: Answers;

  /** @throws Refused if the weights are not those that were saved, or not finite. */
  constructor(model: SavedModel) {
    const weights = Weights.open(model.weights, model.crc32);
    if (model.kind === "transformer") this.answers = ofTransformer(new Runs(new Model(model.config, weights), codecOf(model.codec)));
    else if (model.kind === "head") this.answers = ofHead(model.task, weights);
    else this.answers = ofProgram(model.program, weights);
  }

  async answer<N extends Computed>(call: N, asked: Calls[N]["asked"], pause: Pause): Promise<Calls[N]["answered"]> {
    return (this.answers[call] as (asked: Calls[N]["asked"], pause: Pause) => Calls[N]["answered"])(asked, pause);
  }
}

function ofTransformer(runs: Runs): Answers {
  const [continuing, sweeping, patching] = [new Continuing(runs), new Sweeping(runs), new Patching(runs)];
  runs.edits = (ask, pause) => passOfRun(runs, ask, pause);
  const { kind } = runs.model.config;
  return {
    run: async (asked, pause) => (await runs.reading(alone(asked, kind), pause)).message,
    ...ofMatrices(runs),
    experts: ({ run }) => experts(runs.of(run), runs.model.config),
    next: (asked, pause) => continuing.next(asked, pause),
    steps: (asked, pause) => continuing.steps(asked, pause),
    find: (asked) => continuing.find(asked),
    whatif: (asked, pause) => whatif(runs, asked, pause),
    lens: (asked, pause) => lens(runs, asked, pause),
    contributions: (asked, pause) => contributions(runs, asked, pause),
    sweep: (asked, pause) => sweeping.sweep(asked, pause),
    patches: (asked, pause) => patching.patches(asked, pause),
    scramble: (asked, pause) => scramble(runs, asked, pause),
  };
}

function ofHead(task: Omit<Task, "targets" | "tiers">, weights: Weights): Answers {
  const runs = new KeptRuns<Kept>();
  const head = new SingleHead(task, weights, runs);
  return {
    run: async (asked) => (await head.run(alone(asked, "head"))).message,
    ...ofMatrices(runs),
    check: (asked, pause) => head.check(asked, pause),
  };
}

function ofProgram(data: ProgramData, weights: Weights): Answers {
  const program = new CompiledProgram(data, weights, new KeptRuns());
  return {
    run: async (asked, pause) => (await program.run(alone(asked, "program"), pause)).message,
    program: (asked) => program.program(asked),
  };
}

function ofMatrices<T extends Kept>(runs: KeptRuns<T>): Pick<Answers, "weights" | "rows" | "measures"> {
  const of = ({ run, part }: { run: string; part: Part }) => runs.of(run).matrices.get(part)!;
  return {
    weights: (asked, pause) => of(asked).tile(asked, pause),
    rows: (asked) => of(asked).rows(asked),
    measures: (asked, pause) => of(asked).measures(pause),
  };
}

/** A request without what this kind of model does not read. */
function alone(ask: Ask, kind: ModelConfig["kind"] | "head" | "program"): Ask {
  const name = quoted(ask.model);
  const got = `weights for ${name}, whose kind is ${kind}`;
  require(ask.weights === null || kind === "head", got, "a text alone", "Omit weights, or choose a hand-designed head.");
  require(!ask.changes || (kind !== "head" && kind !== "program"), `${name}, a ${kind}`, "a model that predicts", "Choose another one.");
  const fits = kind === "encoder_decoder" || (ask.source === null && ask.order === null);
  require(fits, `a source for ${name}`, "a text alone", "Omit source and order, or choose an encoder-decoder.");
  return ask;
}

function experts({ message, reading: { routed } }: KeptRun, { num_experts, top_k }: ModelConfig): Experts {
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
