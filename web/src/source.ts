// What answers the page's calls: the server, the notebook's kernel, or a saved page's recorded answers. The calls are
// those of glassformer/explorer/backend.py.
import contract from "./contract.json";
import type * as messages from "./messages";

export type * from "./messages";

/** Without what the page says in its own words. */
export type Certificate = Omit<messages.CertificateMessage, "text">;
export type Check = Omit<messages.Check, "certificate"> & { certificate: Certificate };
export type WhatIf = Omit<messages.WhatIf, "changes">;
export type Part = messages.Attention["part"];
export type View = messages.ModelCard["views"][number];

/** Milliseconds between letters, so that a server or a kernel is asked once for a word. */
export const TYPING = 50;

/** Rows and columns of the largest tile. */
export const { TILE } = contract;

export interface Calls {
  models: { asked: Record<string, never>; answered: messages.Catalogue };
  run: { asked: messages.Ask; answered: messages.Run };
  weights: { asked: messages.AskTile; answered: Float32Array };
  rows: { asked: messages.AskRows; answered: Float32Array };
  measures: { asked: messages.AskMeasures; answered: messages.Measures };
  detect: { asked: messages.AskDetect; answered: messages.Detected };
  experts: { asked: messages.AskExperts; answered: messages.Experts };
  head: { asked: messages.AskHead; answered: messages.Head };
  check: { asked: messages.AskCheck; answered: Check };
  program: { asked: messages.AskProgram; answered: messages.Program };
  proof: { asked: messages.AskProof; answered: messages.Proof };
  attempt: { asked: messages.AskAttempt; answered: messages.Attempt };
  scramble: { asked: messages.AskScramble; answered: messages.Scrambled };
  next: { asked: messages.AskNext; answered: messages.Next };
  steps: { asked: messages.AskSteps; answered: messages.Steps };
  whatif: { asked: messages.AskWhatIf; answered: WhatIf };
  sweep: { asked: messages.AskSweep; answered: messages.HeadSweep };
  patches: { asked: messages.AskPatches; answered: messages.Patches };
  lens: { asked: messages.AskLens; answered: messages.Lens };
  contributions: { asked: messages.AskContributions; answered: messages.Contributions };
  ffn: { asked: messages.AskFfn; answered: messages.Ffn };
  find: { asked: messages.AskFind; answered: messages.Found };
  page: { asked: messages.AskPage; answered: string };
}
export type CallName = keyof Calls;

/** An error with the reason that the page shows. */
export class Refused extends Error {
  readonly refusal: messages.Refusal;
  constructor(refusal: messages.Refusal) {
    super(`${refusal.got}: expected ${refusal.expected}. ${refusal.fix}`);
    this.refusal = refusal;
  }
}

/** The reason of a failed request, or of a fault in the page itself. */
export function refusalOf(error: unknown): messages.Refusal {
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
  /** Whether a view can be shown, or only the one of a saved file. May change: read it in a render. */
  shows(view: View): boolean;
  /** @throws Refused, or an AbortError when `signal` aborts. */
  ask<N extends CallName>(name: N, asked: Calls[N]["asked"], signal?: AbortSignal): Promise<Calls[N]["answered"]>;
}

export function floats(bytes: ArrayBuffer | DataView): Float32Array {
  if (bytes instanceof DataView) {
    return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  }
  return new Float32Array(bytes);
}

function refusalIn(text: string): messages.Refusal | null {
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
    shows: () => true,
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
  const asks = new Map<string, messages.Ask>();
  const underWay = new Map<string, Promise<messages.Run>>();

  const ask: Source["ask"] = async (name, asked, signal) => {
    try {
      const answer = await source.ask(name, asked, signal);
      if (name === "run") asks.set((answer as messages.Run).run, (answer as messages.Run).ask);
      return answer;
    } catch (error) {
      const lost = "run" in asked ? asks.get(asked.run) : undefined;
      if (!(error instanceof Unknown) || !("run" in asked) || !lost) throw error;
      const again = await revived(asked.run, lost);
      return source.ask(name, { ...asked, run: again.run }, signal);
    }
  };

  // Of several requests that miss a run, the first one repeats it.
  function revived(run: string, lost: messages.Ask): Promise<messages.Run> {
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
