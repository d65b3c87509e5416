// What removing each head alone does to the chosen token or class. A click opens the head in the attention view.
import { useCallback, useRef, useState } from "preact/hooks";
import { share as chance, visible } from "../../parts";
import type { Attention, HeadSweep } from "../../source";
import type { Place, Store } from "../../state";
import { letterOn, share, styleOf, usePaint } from "../attention/colours";
import { HeadCells, drawFrame, type Ground } from "../attention/head-cells";
import { Legend } from "../attention/legend";
import { signed } from "../attention/reading";
import { named, samePlace } from "../attention/stack";
import { chanceOf, strongest } from "./edits";

interface SweepMapProps {
  store: Store;
  sweep: HeadSweep;
  stack: Attention;
  place: Place;
}

export function SweepMap({ store, sweep, stack, place }: SweepMapProps) {
  const frame = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const [own, setOwn] = useState(place);
  const after = sweep.stacks.find(({ part }) => part === stack.part)?.after ?? [];
  const exact = sweep.stacks.find(({ part }) => part === stack.part)?.exact ?? [];
  const effect = ({ layer, head }: Place) => (after[layer]?.[head] ?? sweep.before) - sweep.before;
  const sure = ({ layer, head }: Place) => exact[layer]?.[head] === true;
  const largest = Math.max(1e-9, ...sweep.stacks.flatMap((each) => each.after.flat().map((value) => Math.abs((value ?? sweep.before) - sweep.before))));
  const first = strongest(after, sweep.before);
  const draw = useCallback(
    (place: Ground, here: Place) => {
      const { context, side, paint } = place;
      const ground = styleOf("difference", paint.dark, share(effect(here), largest, false));
      context.fillStyle = ground;
      context.globalAlpha = sure(here) ? 1 : 0.45;
      context.fillRect(0, 0, side, side);
      context.globalAlpha = 1;
      drawFrame(place);
      if (side < 32 || after[here.layer]?.[here.head] == null) return;
      context.font = `${side >= 42 ? 12 : 11}px ${paint.mono}`;
      context.fillStyle = letterOn(ground);
      context.fillText(rounded(effect(here)), side / 2, side / 2 + 1);
    },
    [sweep, stack],
  );
  const inWords = (here: Place) => {
    if (after[here.layer]?.[here.head] == null) return `${named(here)}: not computed`;
    // Log-odds over another one are no probability.
    const chances = sweep.other === null ? `, ${chance(chanceOf(sweep.before))} to ${chance(chanceOf(sweep.before + effect(here)))}` : "";
    return `${named(here)}: ${signed(effect(here))}${sure(here) ? "" : ", estimated"}${chances}`;
  };
  const open = (next: Place) => store.set({ view: "attention", part: stack.part, ...next, pin: null }, true);
  const focused = { layer: Math.min(own.layer, stack.layers - 1), head: Math.min(own.head, stack.heads - 1) };
  return (
    <div class="sweep" ref={frame}>
      <HeadCells
        {...{ stack, draw }}
        place={focused}
        label={`The effect of removing each head on ${visible(sweep.name)}; Enter opens the head`}
        role="group"
        most={52}
        narrow={44}
        move={setOwn}
        choose={open}
        cell={(here) => ({ "aria-label": inWords(here), "data-shown": samePlace(here, place), onFocus: () => setOwn(here) })}
      />
      <ol class="strongest" aria-label="The heads with the largest effects">
        {first.map((here) => (
          <li>
            <button type="button" aria-label={`${named(here)}, ${signed(effect(here))}`} title={inWords(here)} onClick={() => open(here)}>
              {here.layer}.{here.head} <span class="number">{signed(effect(here))}{sure(here) ? "" : " ?"}</span>
            </button>
          </li>
        ))}
      </ol>
      {paint && <Legend kind="difference" label="Change of its log-odds" hatched={false} root={false} {...{ largest, paint }} />}
    </div>
  );
}

/** An effect in at most four characters. */
function rounded(value: number): string {
  const size = Math.abs(value);
  if (size < 0.05) return "0";
  const text = size >= 9.95 ? size.toFixed(0) : size >= 0.95 ? size.toFixed(1) : size.toFixed(1).slice(1);
  return `${value < 0 ? "\u2212" : "+"}${text}`;
}
