// Generation: tokens are requested one by one, so that each can be shown with its probability and undone.
import { useEffect, useRef, useState } from "preact/hooks";
import { refusalOf, type AskSteps, type Candidate, type Next, type Refusal, type Source, type Step, type Steps } from "../../source";
import { UNPLACED, type State, type Store } from "../../state";

export interface Written {
  /** Where the token begins in the text, and where the next one begins. */
  from: number;
  to: number;
  text: string;
  /** Null while unknown: a page opened by an address requests it again. */
  step: Pick<Step, "probability" | "obeys"> | null;
}

export interface Writing {
  written: Written[];
  busy: boolean;
  refusal: Refusal | null;
  /** Generate tokens; `first`: the id of the first one, chosen by the user. */
  write: (count: number, first?: number) => void;
  stop: () => void;
  undo: () => void;
  undoAll: () => void;
}

/** How many generated tokens have their probabilities requested in a page that did not generate them. */
const RECALLED = 24;

/** How many tokens of a character are awaited: UTF-8 has up to 4 bytes. */
const MOST_PARTS = 4;

/** Why generation ended without an error. */
const ENDS: Partial<Record<Steps["ended"], Refusal>> = {
  text: { got: "a text that would be too long", expected: "room for one more token", fix: "Shorten the text." },
  wordless: { got: "a token that has no text", expected: "a token with text", fix: "Choose another token." },
};

export function useWriting(source: Source, store: Store, state: State): Writing {
  const [steps] = useState(() => new Map<string, Written["step"]>());
  const [, redraw] = useState(0);
  const [busy, setBusy] = useState(false);
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const under = useRef<AbortController | null>(null);
  const done = () => {
    setBusy(false);
    store.writing.value = false;
  };
  const stop = () => {
    under.current?.abort();
    done();
  };
  useEffect(() => stop, []);
  const places = state.written.filter((from, at, all) => from < state.text.length && (at === 0 || from > all[at - 1]!));
  const written = places.map((from, at) => {
    const to = places[at + 1] ?? state.text.length;
    return { from, to, text: state.text.slice(from, to), step: steps.get(state.text.slice(0, to)) ?? null };
  });
  useEffect(() => {
    if (!source.answers("steps") || busy) return;
    const gone = new AbortController();
    const recallAll = async () => {
      for (const { from, to, text, step } of written.slice(-RECALLED)) {
        if (step) continue;
        const found = await recall(source, state, state.text.slice(0, from), text, gone.signal);
        if (gone.signal.aborted) return;
        if (found) steps.set(state.text.slice(0, to), found);
        redraw((times) => times + 1);
      }
    };
    // Errors are shown where the current text is read.
    recallAll().catch(() => {});
    return () => gone.abort();
  }, [state.text, places.join(), busy]);

  const write = async (count: number, first?: number) => {
    stop();
    const aborted = new AbortController();
    under.current = aborted;
    setBusy(true);
    store.writing.value = true;
    setRefusal(null);
    try {
      for (let at = 0; at < count; ) {
        const { layer, head, view } = state;
        const before: State = { ...state, ...store.state.value, layer, head, view, text: store.state.value.text ?? state.text };
        const ask = asking(before, at === 0 ? (first ?? null) : null);
        const { text, steps: made, ended } = await wholeStep(source, ask, aborted.signal);
        // Stop if the text was edited meanwhile.
        if (aborted.signal.aborted || (store.state.value.text ?? before.text) !== before.text) break;
        if (made.length === 0 && ended in ENDS) setRefusal(ENDS[ended]!);
        if (made.length === 0 || !text.startsWith(before.text)) break;
        const probability = made.reduce((product, step) => product * step.probability, 1);
        steps.set(text, { probability, obeys: made.at(-1)!.obeys });
        const kept = before.written.filter((from) => from < before.text.length);
        store.set({ text, written: [...kept, before.text.length] }, at === 0);
        at += made.length;
      }
    } catch (error) {
      if (!aborted.signal.aborted) setRefusal(refusalOf(error));
    } finally {
      if (under.current === aborted) done();
    }
  };
  const back = (to: number) => {
    stop();
    setRefusal(null);
    store.set({ ...UNPLACED, text: state.text.slice(0, to), written: places.filter((from) => from < to) }, true);
  };
  return {
    written,
    busy,
    refusal,
    write,
    stop,
    undo: () => back(places[places.length - 1] ?? state.text.length),
    undoAll: () => back(places[0] ?? state.text.length),
  };
}

function asking(state: State, first: number | null): AskSteps {
  const { model, text, temperature, topK, topP, seed } = state;
  return { model, text, temperature, top_k: topK, top_p: topP, seed, steps: 1, first };
}

/** One step, or as many as complete a character: read as text, a part of one would be other tokens. */
export async function wholeStep(source: Pick<Source, "ask">, ask: AskSteps, signal: AbortSignal): Promise<Steps> {
  for (let steps = 1; ; steps++) {
    const found = await source.ask("steps", { ...ask, steps }, signal);
    const partial = found.text === ask.text || found.text.endsWith("\ufffd");
    if (!partial || steps === MOST_PARTS || found.steps.length < steps) return found;
  }
}

async function recall(source: Source, state: State, text: string, word: string, signal: AbortSignal) {
  const { model, temperature, topK, topP } = state;
  const next = await source.ask("next", { model, text, temperature, top_k: topK, top_p: topP }, signal);
  const candidate = candidateOf(word, next);
  return candidate ? { token: candidate.token, probability: candidate.final, obeys: candidate.obeys } : null;
}

/** The candidate that writes a piece of text: by its name, in which blanks are visible, or without them where no name has any. */
export function candidateOf(piece: string, { tokens, candidates }: Next): Candidate | null {
  const shown = piece.replaceAll(" ", "\u2423").replaceAll("\n", "\u23CE").replaceAll("\t", "\u21E5");
  const blanks = [...tokens, ...candidates.map(({ token }) => token)].some((name) => name.includes("\u2423"));
  return candidates.find(({ token }) => token === shown) ?? candidates.find(({ token }) => !blanks && token === piece.trim()) ?? null;
}
