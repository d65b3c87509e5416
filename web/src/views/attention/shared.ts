// What heat maps share with the address, and their height.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { effect, signal } from "@preact/signals";
import type { State, Store } from "../../state";
import type { Shared } from "./map";
import { clamped, closest, isWhole, type Box, type View } from "./viewport";

/** Milliseconds without a change after which the view is written to the address. */
const REST_MS = 250;

/** View and hovered cell, shared by all maps that are shown; the address holds the view in whole numbers. */
export function useShared(store: Store, state: State, box: Box | null): Shared {
  const shared = useMemo<Shared>(() => ({ view: signal<View | null>(state.window), hover: signal(null) }), []);
  const written = useRef(JSON.stringify(state.window));
  const stateWindow = JSON.stringify(state.window);
  if (stateWindow !== written.current) {
    written.current = stateWindow;
    shared.view.value = state.window;
    if (state.window === null) shared.hover.value = null;
  }
  useEffect(() => {
    // The hovered cell was in another matrix.
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

/** The largest height of a view that leaves part of the screen to the page. */
export const roomAbove = (least: number, most: number): number =>
  Math.max(least, Math.min(most, Math.round(0.78 * (globalThis.innerHeight || most))));
