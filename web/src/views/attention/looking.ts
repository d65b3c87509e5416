// Which token is looked at, in lines and in text: the hovered one, or the pinned query.
import { useMemo } from "preact/hooks";
import { signal, type Signal } from "@preact/signals";
import type { Words } from "./stack";
import type { HeadTiles } from "./tiles";

export interface Looked {
  side: "query" | "key";
  place: number;
}

/** What lines and text are drawn from. */
export interface ShapeProps {
  tiles: HeadTiles;
  words: Words;
  largest: number;
  root: boolean;
  looked: Signal<Looked | null>;
  pin: number | null;
  setPin: (pin: number | null) => void;
}

/** @param whose What the places are of: with another one nothing is looked at. */
export function useLooked(whose: object): Signal<Looked | null> {
  return useMemo(() => signal<Looked | null>(null), [whose]);
}

/** What is hovered, or else what is pinned. */
export function looking(hovered: Looked | null, pin: number | null): Looked | null {
  return hovered ?? (pin === null ? null : { side: "query", place: pin });
}

/** Where a key takes one who is at a place; null: nowhere. */
export function stepped(event: KeyboardEvent, at: number, count: number, page: number): number | null {
  const steps: Record<string, number> = {
    ArrowDown: at + 1,
    ArrowRight: at + 1,
    ArrowUp: at - 1,
    ArrowLeft: at - 1,
    PageDown: at + page,
    PageUp: at - page,
    Home: 0,
    End: count - 1,
  };
  const next = steps[event.key];
  return next === undefined || event.ctrlKey || event.metaKey || event.altKey ? null : Math.min(count - 1, Math.max(0, next));
}
