// Undo and redo of a head's edits. The history outlives the view, so that changing tabs keeps it.
import { useState } from "preact/hooks";
import type { Store } from "../../state";
import type { Cells } from "./weights";

interface Past {
  model: string;
  /** The edits when this history was last written. Other edits come from elsewhere, such as the address. */
  now: Cells;
  before: Cells[];
  after: Cells[];
  /** The cell being typed in: its characters are undone together. */
  typing: string | null;
}

const MOST = 500;
const kept = new WeakMap<Store, Past>();
const same = (a: Cells, b: Cells): boolean => JSON.stringify(a) === JSON.stringify(b);

export interface History {
  /** Change the edits. Consecutive changes with the same `typing` are one step. */
  change(cells: Cells, typing?: string): void;
  /** Begin a new step with the next change. */
  settle(): void;
  undo(): void;
  redo(): void;
  canUndo: boolean;
  canRedo: boolean;
}

export function useHistory(store: Store, model: string, cells: Cells): History {
  const [, draw] = useState(0);
  let past = kept.get(store);
  if (!past || past.model !== model || !same(past.now, cells)) {
    past = { model, now: cells, before: [], after: [], typing: null };
    kept.set(store, past);
  }
  const there = past;
  const show = (next: Cells) => {
    there.now = next;
    store.set({ cells: next });
    draw((count) => count + 1);
  };
  const turn = (from: "before" | "after", to: "before" | "after") => {
    const next = there[from].at(-1);
    if (!next) return;
    there[from] = there[from].slice(0, -1);
    there[to] = [...there[to], there.now];
    there.typing = null;
    show(next);
  };
  return {
    change(next, typing) {
      if (same(next, there.now)) return;
      if (typing === undefined || there.typing !== typing) there.before = [...there.before, there.now].slice(-MOST);
      there.typing = typing ?? null;
      there.after = [];
      show(next);
    },
    settle() {
      there.typing = null;
    },
    undo: () => turn("before", "after"),
    redo: () => turn("after", "before"),
    canUndo: there.before.length > 0,
    canRedo: there.after.length > 0,
  };
}
