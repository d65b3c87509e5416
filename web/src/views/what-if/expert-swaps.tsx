// Every expert of every layer; a click forbids one, and a list replaces it by another.
import { useCallback, useState } from "preact/hooks";
import { Field } from "../../parts";
import type { Experts } from "../../source";
import type { Place, Store } from "../../state";
import { HeadCells, drawFrame, type Ground } from "../attention/head-cells";
import { letter } from "../experts/names";
import { MOST, setSwap, swapOf, type Edits } from "./edits";

interface ExpertSwapsProps {
  store: Store;
  edits: Edits;
  experts: Experts;
  /** The token whose choices are marked. */
  token: number;
  can: boolean;
}

export function ExpertSwaps({ store, edits, experts, token, can }: ExpertSwapsProps) {
  const [place, setPlace] = useState<Place>({ layer: 0, head: 0 });
  const stack = { layers: experts.layers.length, heads: experts.num_experts };
  const here = { layer: Math.min(place.layer, stack.layers - 1), head: Math.min(place.head, stack.heads - 1) };
  const chosen = ({ layer, head }: Place) => experts.layers[layer]?.choices[token]?.includes(head) ?? false;
  const draw = useCallback(
    (ground: Ground, { layer, head }: Place) =>
      drawExpert(ground, head, chosen({ layer, head }), swapOf(edits, layer, head)?.instead),
    [experts, token, edits.swaps],
  );
  const set = ({ layer, head }: Place, instead: number | null | undefined) => {
    const full = edits.swaps.length >= MOST && instead !== undefined && !swapOf(edits, layer, head);
    if (can && !full) store.set(setSwap(edits, layer, head, instead), true);
  };
  const now = swapOf(edits, here.layer, here.head)?.instead;
  return (
    <>
      <HeadCells
        {...{ stack, draw }}
        place={here}
        label="Experts to forbid"
        role="group"
        most={44}
        narrow={44}
        move={setPlace}
        choose={(next) => {
          setPlace(next);
          set(next, swapOf(edits, next.layer, next.head) ? undefined : null);
        }}
        cell={(each) => {
          const swap = swapOf(edits, each.layer, each.head);
          const state = swap ? (swap.instead === null ? ", forbidden" : `, replaced by ${letter(swap.instead)}`) : "";
          return {
            "aria-pressed": swap !== undefined,
            "aria-label": `layer ${each.layer}, expert ${letter(each.head)}${chosen(each) ? ", chosen here" : ""}${state}`,
            "data-shown": each.layer === here.layer && each.head === here.head,
          };
        }}
      />
      <Field label={`Layer ${here.layer}, expert ${letter(here.head)}`}>
        <select
          disabled={!can}
          value={now === undefined ? "own" : now === null ? "none" : now}
          onChange={(event) => {
            const { value } = event.currentTarget;
            set(here, value === "own" ? undefined : value === "none" ? null : Number(value));
          }}
        >
          <option value="own" selected={now === undefined}>as it is</option>
          <option value="none" selected={now === null}>forbidden</option>
          {Array.from({ length: stack.heads }, (_, expert) => expert)
            .filter((expert) => expert !== here.head)
            .map((expert) => (
              <option value={expert} selected={expert === now}>replaced by {letter(expert)}</option>
            ))}
        </select>
      </Field>
    </>
  );
}

/** An expert's letter, filled where the token went to it; crossed out if forbidden, or with the letter of another. */
function drawExpert(place: Ground, expert: number, chosen: boolean, instead: number | null | undefined): void {
  const { context, side, paint } = place;
  context.fillStyle = chosen ? paint.accent : paint.panel;
  context.fillRect(0, 0, side, side);
  drawFrame(place);
  context.font = `${side >= 32 ? 13 : 11}px ${paint.mono}`;
  context.fillStyle = chosen ? paint.accentInk : paint.ink;
  const text = typeof instead === "number" ? `${letter(expert)}\u2192${letter(instead)}` : letter(expert);
  context.fillText(text, side / 2, side / 2 + 1);
  if (instead === undefined) return;
  context.strokeStyle = paint.bad;
  context.lineWidth = 2.5;
  if (instead !== null) return context.strokeRect(2, 2, side - 4, side - 4);
  context.beginPath();
  context.moveTo(5, side - 5);
  context.lineTo(side - 5, 5);
  context.stroke();
}
