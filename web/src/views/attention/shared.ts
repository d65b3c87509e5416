// What a map of cells shares with the address, and the room that it has.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { effect, signal } from "@preact/signals";
import type { State, Store } from "../../state";
import type { Shared } from "./map";
import { clamped, closest, isWhole, type Box, type View } from "./viewport";

/** Milliseconds after which a part that stays is written into the address. */
const REST_MS = 250;

/** View and hovered cell of all maps that are seen at once; the view stands in the address as whole numbers. */
export function useShared(store: Store, state: State, box: Box | null): Shared {
  const shared = useMemo<Shared>(() => ({ view: signal<View | null>(state.window), hover: signal(null) }), []);
  const written = useRef(JSON.stringify(state.window));
  const told = JSON.stringify(state.window);
  if (told !== written.current) {
    written.current = told;
    shared.view.value = state.window;
    if (state.window === null) shared.hover.value = null;
  }
  useEffect(() => {
    // What was hovered was a cell of another matrix.
    shared.hover.value = null;
  }, [shared, box?.queries, box?.keys]);
  useEffect(() => {
    if (!box) return;
    let timer: ReturnType<typeof setTimeout>;
    const stop = effect(() => {
      const view = shared.view.value;
      clearTimeout(timer);
      timer = setTimeout(() => {
        const next = view === null || isWhole(view, box) ? null : rounded(clamped(view, box), box);
        if (JSON.stringify(next) === written.current) return;
        written.current = JSON.stringify(next);
        store.set({ window: next });
      }, REST_MS);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [shared, store, box?.queries, box?.keys, box?.width, box?.height]);
  return shared;
}

const rounded = (view: View, box: Box): View => ({
  query: Math.round(view.query),
  key: Math.round(view.key),
  size: Math.max(1, Math.ceil(closest(box)), Math.round(view.size)),
});

/** The height that a view may take without filling more than the screen. */
export const roomAbove = (least: number, most: number): number =>
  Math.max(least, Math.min(most, Math.round(0.78 * (globalThis.innerHeight || most))));
