// Asking from within a component: the answer to what is wanted now, and the last one while that is under way.
import { useEffect, useRef, useState } from "preact/hooks";
import { Refused, type CallName, type Calls, type Refusal, type Source } from "./source";

export interface Asked<T> {
  /** The newest answer, perhaps to an earlier question: see `busy`. */
  answer: T | null;
  refusal: Refusal | null;
  busy: boolean;
}

/**
 * @param asked What to ask; null: nothing for now. Compared by its JSON.
 * @param wait Milliseconds to wait for the question to stop changing, as while somebody types.
 */
export function useAsk<N extends CallName>(
  source: Source,
  name: N,
  asked: Calls[N]["asked"] | null,
  wait = 0,
): Asked<Calls[N]["answered"]> {
  const key = asked === null ? null : JSON.stringify(asked);
  const [result, setResult] = useState<Asked<Calls[N]["answered"]> & { key: string | null }>({
    answer: null,
    refusal: null,
    busy: key !== null,
    key: null,
  });
  const first = useRef(true);
  useEffect(() => {
    if (asked === null || key === null) return;
    const aborted = new AbortController();
    const go = () => {
      source.ask(name, asked, aborted.signal).then(
        (answer) => {
          if (!aborted.signal.aborted) setResult({ answer, refusal: null, busy: false, key });
        },
        (error: unknown) => {
          if (aborted.signal.aborted) return;
          const refusal = error instanceof Refused ? error.refusal : asRefusal(error);
          setResult((last) => ({ answer: last.answer, refusal, busy: false, key }));
        },
      );
    };
    const timer = first.current || wait === 0 ? (go(), 0) : window.setTimeout(go, wait);
    first.current = false;
    return () => {
      clearTimeout(timer);
      aborted.abort();
    };
  }, [source, name, key]);
  return { answer: result.answer, refusal: key === result.key ? result.refusal : null, busy: key !== null && key !== result.key };
}

function asRefusal(error: unknown): Refusal {
  return { got: `A fault of this page: ${String(error)}`, expected: "none", fix: "Load it again, and please report it." };
}
