// The selected token of the lines and text displays: the hovered token, or the pinned query.
import { useMemo } from "preact/hooks";
import { signal, type Signal } from "@preact/signals";
import type { Words } from "./stack";
import type { HeadTiles } from "./tiles";

export interface Selection {
  side: "query" | "key";
  place: number;
}

/** The data of the lines and text displays. */
export interface ShapeProps {
  tiles: HeadTiles;
  words: Words;
  largest: number;
  root: boolean;
  selection: Signal<Selection | null>;
  pin: number | null;
  /** A key that is pinned instead of a query. */
  pinnedKey: number | null;
  setPin: (pin: number | null, side?: Selection["side"]) => void;
}

/** @param whose What the positions refer to. The selection is reset when it changes. */
export function useSelection(whose: object): Signal<Selection | null> {
  return useMemo(() => signal<Selection | null>(null), [whose]);
}

/** The hovered token, or else the pinned key or query. */
export function selectionOf(hovered: Selection | null, pin: number | null, key: number | null = null): Selection | null {
  if (hovered) return hovered;
  if (key !== null) return { side: "key", place: key };
  return pin === null ? null : { side: "query", place: pin };
}

/** The position that a key moves to; null if it moves nowhere. */
export function steppedTo(event: KeyboardEvent, at: number, count: number, page: number): number | null {
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

/** By how many rows and columns an arrow key moves; null for other keys. */
export function arrowOf(event: KeyboardEvent): [down: number, right: number] | null {
  const steps: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  return event.ctrlKey || event.metaKey || event.altKey ? null : (steps[event.key] ?? null);
}
