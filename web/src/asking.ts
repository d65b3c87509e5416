// Requests from within a component: the answer to the current request, or the previous answer while it is awaited.
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import { Unanswered, refusalOf, type CallName, type Calls, type Refusal, type Source } from "./source";

export interface Asked<N extends CallName> {
  /** The newest answer, perhaps to an earlier request: see `of` and `busy`. */
  answer: Calls[N]["answered"] | null;
  /** The request that it answers. */
  of: Calls[N]["asked"] | null;
  refusal: Refusal | null;
  busy: boolean;
}

/** Milliseconds until an unanswered request is repeated, at first and at most. */
const [AGAIN, LONGEST] = [2000, 30_000];
/** Unanswered requests. When one is answered, all others are repeated at once. */
const unanswered = new Set<() => void>();

/**
 * The answer to a request. Unanswered requests are repeated at growing intervals while the page is visible.
 *
 * @param asked The request, compared by its JSON; null: none for now.
 * @param wait Milliseconds without a change before the request is sent, for example while typing; Infinity: not yet.
 */
export function useAsk<N extends CallName>(
  source: Source,
  name: N,
  asked: Calls[N]["asked"] | null,
  wait = 0,
): Asked<N> {
  const key = asked === null ? null : JSON.stringify(asked);
  const [result, setResult] = useState<Omit<Asked<N>, "busy"> & { key: string | null }>({
    answer: null,
    of: null,
    refusal: null,
    key: null,
  });
  const first = useRef(true);
  const held = wait === Infinity;
  // An effect would send it only after the next frame.
  useLayoutEffect(() => {
    if (asked === null || key === null || held) return;
    const aborted = new AbortController();
    let again = 0;
    let patience = AGAIN;
    const retry = () => {
      if (document.visibilityState === "hidden" || !unanswered.delete(retry)) return;
      clearTimeout(again);
      go();
    };
    const go = () => {
      source.ask(name, asked, aborted.signal).then(
        (answer) => {
          if (aborted.signal.aborted) return;
          setResult({ answer, of: asked, refusal: null, key });
          for (const other of [...unanswered]) other();
        },
        (error: unknown) => {
          if (aborted.signal.aborted) return;
          const refusal = refusalOf(error);
          setResult((last) => ({ ...last, refusal, key }));
          if (!(error instanceof Unanswered)) return;
          unanswered.add(retry);
          again = window.setTimeout(retry, patience);
          patience = Math.min(LONGEST, 2 * patience);
        },
      );
    };
    const timer = first.current || wait === 0 ? (go(), 0) : window.setTimeout(go, wait);
    first.current = false;
    document.addEventListener("visibilitychange", retry);
    return () => {
      document.removeEventListener("visibilitychange", retry);
      unanswered.delete(retry);
      clearTimeout(again);
      clearTimeout(timer);
      aborted.abort();
    };
  }, [source, name, key, held]);
  const { answer, of, refusal } = result;
  return { answer, of, refusal: key === result.key ? refusal : null, busy: key !== null && key !== result.key };
}

/**
 * The same, one request at a time: while one is under way, only the newest of those that follow is sent when it is
 * answered. A slider that is dragged then shows as many answers as are given, and overtakes none of them.
 */
export function useAskInTurn<N extends CallName>(source: Source, name: N, asked: Calls[N]["asked"] | null): Asked<N> {
  const sent = useRef(asked);
  const under = useRef(false);
  const [, again] = useReducer((times: number) => times + 1, 0);
  if (!under.current) sent.current = asked;
  const result = useAsk(source, name, sent.current);
  under.current = result.busy;
  const newer = JSON.stringify(sent.current) !== JSON.stringify(asked);
  useEffect(() => {
    if (newer && !result.busy) again(undefined);
  });
  return newer ? { ...result, busy: true, refusal: null } : result;
}

/**
 * A sweep, which each request takes a moment further: the newest answer, until all is exact. Nothing is computed any
 * more when the component is gone or asks something newer.
 */
export function useSweep<N extends "sweep" | "patches">(
  source: Source,
  name: N,
  asked: Omit<Calls[N]["asked"], "done"> | null,
  wait = 0,
): Asked<N> {
  const key = JSON.stringify(asked);
  const [known, setKnown] = useState<{ key: string; done: number | null }>({ key, done: null });
  const found = useAsk(source, name, asked && ({ ...asked, done: known.key === key ? known.done : null } as Calls[N]["asked"]), known.key === key ? 0 : wait);
  const { answer, of } = found;
  const own = answer !== null && of !== null && JSON.stringify({ ...of, done: undefined }) === JSON.stringify({ ...asked, done: undefined });
  const done = own && source.answers(name) && answer.done < answer.total ? answer.done : null;
  useEffect(() => {
    if (done !== null) setKnown({ key, done });
  }, [key, done]);
  return { ...found, answer: own ? answer : null };
}
