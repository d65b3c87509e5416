// What answers the page's calls: the server, the notebook's kernel, or a saved page's recorded answers. The calls are
// those of glassformer/explorer/backend.py.
import contract from "./contract.json";
import type { components } from "./messages";

export type Schemas = components["schemas"];
export type Ask = Schemas["Ask"];
export type AskCheck = Schemas["AskCheck"];
export type AskContributions = Schemas["AskContributions"];
export type AskFind = Schemas["AskFind"];
export type AskLens = Schemas["AskLens"];
export type AskNext = Schemas["AskNext"];
export type AskPatches = Schemas["AskPatches"];
export type AskProgram = Schemas["AskProgram"];
export type AskAttempt = Schemas["AskAttempt"];
export type Attempt = Schemas["Attempt"];
export type AskRows = Schemas["AskRows"];
export type AskScramble = Schemas["AskScramble"];
export type AskSteps = Schemas["AskSteps"];
export type AskSweep = Schemas["AskSweep"];
export type AskTile = Schemas["AskTile"];
export type AskWhatIf = Schemas["AskWhatIf"];
export type Attention = Schemas["Attention"];
export type Candidate = Schemas["Candidate"];
/** Without what the page says in its own words. */
export type Certificate = Omit<Schemas["CertificateMessage"], "text">;
export type Changes = NonNullable<Ask["changes"]>;
export type Check = Omit<Schemas["Check"], "certificate"> & { certificate: Certificate };
export type Contributions = Schemas["Contributions"];
export type Detected = Schemas["Detected"];
export type Experts = Schemas["Experts"];
export type Found = Schemas["Found"];
export type Head = Schemas["Head"];
export type HeadSweep = Schemas["HeadSweep"];
export type Lens = Schemas["Lens"];
export type Measures = Schemas["Measures"];
export type ModelCard = Schemas["ModelCard"];
export type Next = Schemas["Next"];
export type Numbers = Schemas["Numbers"];
export type Patches = Schemas["Patches"];
export type Program = Schemas["Program"];
export type ProgramHead = Schemas["ProgramHead"];
export type ProgramPart = Schemas["ProgramPart"];
export type Proof = Schemas["Proof"];
export type Refusal = Schemas["Refusal"];
export type Run = Schemas["Run"];
export type Scrambled = Schemas["Scrambled"];
export type Step = Schemas["Step"];
export type Steps = Schemas["Steps"];
export type WhatIf = Omit<Schemas["WhatIf"], "changes">;
export type Part = Attention["part"];
export type View = ModelCard["views"][number];

/** Milliseconds between letters, so that a server or a kernel is asked once for a word. */
export const TYPING = 50;

/** Rows and columns of the largest tile. */
export const { TILE } = contract;

export interface Calls {
  models: { asked: Record<string, never>; answered: Schemas["Catalogue"] };
  run: { asked: Ask; answered: Run };
  weights: { asked: AskTile; answered: Float32Array };
  rows: { asked: AskRows; answered: Float32Array };
  measures: { asked: Schemas["AskMeasures"]; answered: Measures };
  detect: { asked: Schemas["AskDetect"]; answered: Detected };
  experts: { asked: Schemas["AskExperts"]; answered: Experts };
  head: { asked: Schemas["AskHead"]; answered: Head };
  check: { asked: AskCheck; answered: Check };
  program: { asked: AskProgram; answered: Program };
  proof: { asked: Schemas["AskProof"]; answered: Proof };
  attempt: { asked: AskAttempt; answered: Attempt };
  scramble: { asked: AskScramble; answered: Scrambled };
  next: { asked: AskNext; answered: Next };
  steps: { asked: AskSteps; answered: Steps };
  whatif: { asked: AskWhatIf; answered: WhatIf };
  sweep: { asked: AskSweep; answered: HeadSweep };
  patches: { asked: AskPatches; answered: Patches };
  lens: { asked: AskLens; answered: Lens };
  contributions: { asked: AskContributions; answered: Contributions };
  find: { asked: AskFind; answered: Found };
  page: { asked: Schemas["AskPage"]; answered: string };
}
export type CallName = keyof Calls;

/** An error with the reason that the page shows. */
export class Refused extends Error {
  readonly refusal: Refusal;
  constructor(refusal: Refusal) {
    super(`${refusal.got}: expected ${refusal.expected}. ${refusal.fix}`);
    this.refusal = refusal;
  }
}

/** The reason of a failed request, or of a fault in the page itself. */
export function refusalOf(error: unknown): Refusal {
  if (error instanceof Refused) return error.refusal;
  return { got: `A fault of this page: ${String(error)}`, expected: "none", fix: "Reload the page, and please report the fault." };
}

/** An unknown name, or the name of something that no longer exists. */
export class Unknown extends Refused {}

/** No answer: the server is down, overloaded or failed, and may recover. */
export class Unanswered extends Refused {}

export interface Source {
  /** Milliseconds without a change before what is typed is asked for: 0 where nothing has to be sent. */
  readonly typing: number;
  /** Whether any request for this call can be answered, or only those recorded in a saved page. May change: read it in a render. */
  answers(name: CallName): boolean;
  /** @throws Refused, or an AbortError when `signal` aborts. */
  ask<N extends CallName>(name: N, asked: Calls[N]["asked"], signal?: AbortSignal): Promise<Calls[N]["answered"]>;
}

export function floats(bytes: ArrayBuffer | DataView): Float32Array {
  if (bytes instanceof DataView) {
    return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  }
  return new Float32Array(bytes);
}

function refusalIn(text: string): Refusal | null {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** The server that the page came from. */
export function fromServer(): Source {
  return {
    typing: TYPING,
    answers: () => true,
    async ask(name, asked, signal) {
      let response: Response;
      let body: ArrayBuffer;
      try {
        response = await fetch(`api/${name}`, {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(asked),
          ...(signal ? { signal } : {}),
        });
        body = await response.arrayBuffer();
      } catch (error) {
        if (error instanceof DOMException && error.name === "AbortError") throw error;
        throw new Unanswered({
          got: "No answer from glassformer",
          expected: "its server running",
          fix: "Start it again with 'glassformer explore'. This page then continues by itself.",
        });
      }
      const text = () => new TextDecoder().decode(body);
      if (!response.ok) {
        const { status } = response;
        // Server errors may pass; a refused request would be refused again.
        const Why = status === 404 ? Unknown : status === 408 || status >= 500 ? Unanswered : Refused;
        throw new Why(refusalIn(text()) ?? { got: `An answer with status ${status}`, expected: "an answer", fix: "Try again." });
      }
      const kind = response.headers.get("Content-Type") ?? "";
      if (kind.startsWith("application/octet-stream")) return floats(body) as never;
      return (kind.startsWith("text/html") ? text() : JSON.parse(text())) as never;
    },
  };
}

/**
 * A source that repeats lost runs: when a restarted server does not know a run any more, or has dropped it, the run is
 * requested again, and then the request that needed it.
 */
export function reviving(source: Source): Source {
  const asks = new Map<string, Ask>();
  const underWay = new Map<string, Promise<Run>>();

  const ask: Source["ask"] = async (name, asked, signal) => {
    try {
      const answer = await source.ask(name, asked, signal);
      if (name === "run") asks.set((answer as Run).run, (answer as Run).ask);
      return answer;
    } catch (error) {
      const lost = "run" in asked ? asks.get(asked.run) : undefined;
      if (!(error instanceof Unknown) || !("run" in asked) || !lost) throw error;
      const again = await revived(asked.run, lost);
      return source.ask(name, { ...asked, run: again.run }, signal);
    }
  };

  // Of several requests that miss a run, the first one repeats it.
  function revived(run: string, lost: Ask): Promise<Run> {
    const known = underWay.get(run);
    if (known) return known;
    const again = source.ask("run", lost).finally(() => underWay.delete(run));
    underWay.set(run, again);
    return again;
  }

  return { ...source, ask };
}

interface Known {
  answer: Promise<unknown>;
  /** How many callers wait. The request is aborted when none is left. */
  waiting: number;
  giveUp: AbortController;
  there: boolean;
}

/** A source that caches the latest answers and shares them among equal requests. */
export function remembering(source: Source, most = 512): Source {
  const known = new Map<string, Known>();
  return {
    ...source,
    ask(name, asked, signal) {
      // Pages are made anew each time, sweeps go on. Tiles are large and cached by head (attention/tiles.ts).
      if (name === "page" || name === "weights" || name === "sweep" || name === "patches") return source.ask(name, asked, signal);
      const key = `${name} ${JSON.stringify(asked)}`;
      const entry = known.get(key) ?? begin(name, asked);
      known.delete(key);
      known.set(key, entry);
      if (known.size > most) known.delete(known.keys().next().value as string);
      const forget = () => known.get(key) === entry && known.delete(key);
      entry.answer.then(() => (entry.there = true), forget);
      if (!signal) {
        entry.waiting = Infinity;
        return entry.answer as never;
      }
      entry.waiting += 1;
      return new Promise((resolve, reject) => {
        entry.answer.then(resolve as (answer: unknown) => void, reject);
        signal.addEventListener("abort", () => {
          reject(signal.reason);
          entry.waiting -= 1;
          if (entry.waiting > 0 || entry.there) return;
          forget();
          entry.giveUp.abort();
        });
      });
    },
  };

  function begin<N extends CallName>(name: N, asked: Calls[N]["asked"]): Known {
    const giveUp = new AbortController();
    return { answer: source.ask(name, asked, giveUp.signal), waiting: 0, giveUp, there: false };
  }
}
