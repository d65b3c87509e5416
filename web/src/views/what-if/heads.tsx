// Every head as its attention or its effect; a click removes it or brings it back.
import { useCallback, useRef } from "preact/hooks";
import type { Attention, Detected, Measures } from "../../source";
import type { Place, State, Store } from "../../state";
import { letterOn, share, styleOf, usePaint } from "../attention/colours";
import { drawHead, drawLabel, labelOf } from "../attention/grid";
import { HeadCells, drawFrame, type Ground } from "../attention/head-cells";
import { Legend } from "../attention/legend";
import { named, samePlace } from "../attention/stack";
import { headOf, isRemoved, MOST, toggleHead, type Edits } from "./edits";
import { namedEffect, type Effects } from "./effects";

interface HeadsProps {
  store: Store;
  edits: Edits;
  stack: Attention;
  /** Null while they are awaited, and where they are not known. */
  measures: Measures | null;
  detected: Detected | null;
  /** What is shown of each head; null: its attention. */
  effects: Effects | null;
  place: Place;
  can: boolean;
}

export function Heads({ store, edits, stack, measures, detected, effects, place, can }: HeadsProps) {
  const frame = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const draw = useCallback(
    (ground: Ground, here: Place) => {
      if (effects) return drawEffect(ground, effects, here);
      drawHead(ground, stack, here.layer, measures?.thumbnails[here.layer]?.[here.head] ?? null);
      drawLabel(ground, labelOf(detected, here));
    },
    [measures, detected, effects, stack],
  );
  const choose = (next: Place) => {
    const head = headOf(stack.part, next);
    const full = edits.removed.length >= MOST && !isRemoved(edits, head);
    store.set({ part: stack.part, ...next, ...(can && !full ? toggleHead(edits, head) : {}) } as Partial<State>, true);
  };
  return (
    <div class="effects" ref={frame}>
      <HeadCells
        {...{ stack, place, draw, choose }}
        label="Heads to remove"
        role="group"
        most={64}
        narrow={48}
        tallest={TALLEST}
        move={(next) => store.set({ part: stack.part, ...next })}
        cell={(here) => {
          const removed = isRemoved(edits, headOf(stack.part, here));
          const name = effects ? namedEffect(effects, here) : named(here);
          return {
            "aria-pressed": removed,
            "data-removed": removed,
            "aria-label": `${name}${removed ? ", removed" : ""}`,
            "data-shown": samePlace(here, place),
          };
        }}
      />
      {paint && effects && (
        <Legend kind="difference" label="Change of log-odds" hatched={false} root={false} largest={effects.largest} paint={paint} />
      )}
    </div>
  );
}

/** Pixels: all layers of a model are in sight beside the answer. */
const TALLEST = 840;
/** Effects below this share of the largest have no number: they are told apart by no one. */
const FAINT = 0.1;
/** Effects below this would be written as 0. */
const SMALLEST = 0.05;

function drawEffect(ground: Ground, effects: Effects, place: Place): void {
  const { context, side, paint } = ground;
  const effect = effects.of(place);
  const colour = styleOf("difference", paint.dark, share(effect ?? 0, effects.largest, false));
  context.fillStyle = colour;
  context.globalAlpha = effects.exact(place) ? 1 : 0.45;
  context.fillRect(0, 0, side, side);
  context.globalAlpha = 1;
  drawFrame(ground);
  if (side < 24 || effect === null || Math.abs(effect) < Math.max(FAINT * effects.largest, SMALLEST)) return;
  context.font = `${side >= 42 ? 12 : side >= 32 ? 11 : 10}px ${paint.mono}`;
  context.fillStyle = letterOn(colour);
  context.fillText(rounded(effect), side / 2, side / 2 + 1);
}

/** An effect in at most four characters. */
function rounded(value: number): string {
  const size = Math.abs(value);
  const text = size >= 9.95 ? size.toFixed(0) : size >= 0.95 ? size.toFixed(1) : size.toFixed(1).slice(1);
  return `${value < 0 ? "\u2212" : "+"}${text}`;
}
