// Every head as a picture; a click removes it or brings it back.
import { useCallback } from "preact/hooks";
import type { Attention, Detected, Measures } from "../../source";
import type { Place, State, Store } from "../../state";
import { drawHead, drawLabel, labelOf } from "../attention/grid";
import { HeadCells, type Ground } from "../attention/head-cells";
import { named } from "../attention/stack";
import { headOf, isRemoved, MOST, toggleHead, type Edits } from "./edits";

interface HeadsProps {
  store: Store;
  edits: Edits;
  stack: Attention;
  /** Null while they are awaited, and where they are not known. */
  measures: Measures | null;
  detected: Detected | null;
  place: Place;
  can: boolean;
}

export function Heads({ store, edits, stack, measures, detected, place, can }: HeadsProps) {
  const draw = useCallback(
    (ground: Ground, { layer, head }: Place) => {
      drawHead(ground, stack, layer, measures?.thumbnails[layer]?.[head] ?? null);
      drawLabel(ground, labelOf(detected, { layer, head }));
    },
    [measures, detected, stack],
  );
  const choose = (next: Place) => {
    const head = headOf(stack.part, next);
    const full = edits.removed.length >= MOST && !isRemoved(edits, head);
    store.set({ part: stack.part, ...next, ...(can && !full ? toggleHead(edits, head) : {}) } as Partial<State>, true);
  };
  return (
    <HeadCells
      {...{ stack, place, draw, choose }}
      label="Heads to remove"
      role="group"
      most={64}
      narrow={48}
      move={(next) => store.set({ part: stack.part, ...next })}
      cell={(here) => {
        const removed = isRemoved(edits, headOf(stack.part, here));
        return {
          "aria-pressed": removed,
          "data-removed": removed,
          "aria-label": `${named(here)}${removed ? ", removed" : ""}`,
          "data-shown": here.layer === place.layer && here.head === place.head,
        };
      }}
    />
  );
}
