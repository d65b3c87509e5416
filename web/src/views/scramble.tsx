// An encoder-decoder's source in another order, compared with the given order: the answer and its cross-attention weights.
import { useState } from "preact/hooks";
import type { ViewProps } from "./props";
import { useAsk } from "../asking";
import { Choice, Fault, focusAround } from "../parts";
import { UNPLACED } from "../state";
import { Given } from "./scramble/given";
import { asStored, orderOf, shuffled, straight, suggestion, without } from "./scramble/orders";
import { EveryOrder, Outcome } from "./scramble/outcome";
import { Sortable } from "./scramble/sortable";
import { Ties } from "./scramble/ties";
import { largestChange, layersOf, useReading } from "./scramble/weights";
import "./scramble.css";

export function ScrambleView({ source, store, state, card, run }: ViewProps) {
  const own = card.source ?? [];
  const units = state.source ?? own;
  const settledOrder = orderOf(state.order, units.length);
  const [preview, setPreview] = useState<number[] | null>(null);
  const order = preview && preview.length === units.length ? preview : settledOrder;
  const reordered = asStored(settledOrder) !== null;
  const ask = { model: card.name, text: state.text, source: units };

  const given = useAsk(source, "run", { ...ask, order: null, weights: null, changes: null }, source.typing);
  const can = source.answers("scramble");
  const edited = state.source !== null && can;
  const original = useAsk(source, "run", edited ? { ...ask, source: own, order: null, weights: null, changes: null } : null, source.typing);
  const one = useAsk(source, "scramble", reordered ? { ...ask, order: settledOrder } : null, source.typing);
  const [tried, setTried] = useState("");
  const trying = tried === JSON.stringify(ask);
  const every = useAsk(source, "scramble", trying ? { ...ask, order: null } : null);

  const same = (read: string[] | null | undefined, wanted: string[]) => JSON.stringify(read) === JSON.stringify(wanted);
  const before = given.answer && same(given.answer.source, units) ? given.answer : null;
  const inOrder = settledOrder.map((unit) => units[unit] ?? "");
  const after = run && same(run.source, inOrder) ? run : null;
  const layers = Math.max(layersOf(before), layersOf(after));
  const { reading: readBefore, busy: awaiting } = useReading(source, before, straight(units.length), state.layer);
  const { reading: readAfter, busy: waiting } = useReading(source, after, settledOrder, state.layer);
  const busy = given.busy || one.busy || every.busy || awaiting || waiting;

  const change = (next: string[], nextOrder: number[], step: boolean | string = true) =>
    store.set({ source: same(own, next) ? null : next, order: asStored(nextOrder), ...UNPLACED }, step);
  const reorder = (next: number[]) => {
    setPreview(null);
    store.set({ order: asStored(next), ...UNPLACED }, true);
  };
  const add = () => change([...units, suggestion(units, card.words ?? null)], [...settledOrder, units.length]);
  const refusal = given.refusal === null ? (one.refusal ?? every.refusal) : null;
  return (
    <div class="scramble">
      <Outcome
        original={edited ? original.answer : null}
        given={before}
        now={after}
        changed={one.refusal ? null : one.answer}
        reordered={reordered}
        weights={readBefore && readAfter ? largestChange(readBefore, readAfter) : null}
        busy={busy}
      />
      {refusal && <Fault refusal={refusal} />}
      <div class="bar tools" role="group" aria-label="Order" tabIndex={-1}>
        <button type="button" class="main" disabled={!can || units.length < 2} onClick={() => reorder(shuffled(settledOrder))}>
          Shuffle
        </button>
        <button type="button" disabled={!can || !reordered} onClick={(event) => (focusAround(event), reorder(straight(units.length)))}>
          As it was
        </button>
        <button type="button" disabled={!can} onClick={() => setTried(JSON.stringify(ask))}>
          {trying && every.busy ? "Trying\u2026" : "Try every order"}
        </button>
        {layers > 1 && (
          <Choice
            label="Layer"
            chosen={String(Math.min(state.layer, layers - 1))}
            options={Array.from({ length: layers }, (_, at) => ({ name: String(at), title: `Layer ${at}` }))}
            choose={(layer) => store.set({ layer: Number(layer) })}
          />
        )}
        {!can && <p class="quiet">A saved page: the order cannot be changed.</p>}
      </div>
      {trying && every.answer && !every.refusal && !every.busy && (
        <EveryOrder found={every.answer} count={units.length} show={can ? reorder : null} />
      )}
      <section class="board panel" aria-label="The source in both orders">
        <header>
          <h3>As given</h3>
          <h3>
            In your order {can && <span class="quiet">drag the cards</span>}
          </h3>
        </header>
        <div class="lists">
          <Given
            units={units}
            own={own}
            words={card.words ?? null}
            reading={readBefore}
            readOnly={!can}
            change={(unit, text) => change(units.map((each, at) => (at === unit ? text : each)), settledOrder, `unit ${unit}`)}
            remove={(unit) => change(units.filter((_, at) => at !== unit), without(settledOrder, unit))}
          />
          <Ties order={order} reading={readAfter ?? readBefore} />
          <Sortable
            units={units}
            order={order}
            reading={readAfter}
            readOnly={!can || units.length < 2}
            preview={setPreview}
            drop={reorder}
          />
        </div>
        {can && (
          <div class="bar below" role="group" aria-label="Cards" tabIndex={-1}>
            <button type="button" onClick={add}>
              + Add {units.every((unit) => unit.includes("=")) ? "a fact" : "a word"}
            </button>
            <button
              type="button"
              disabled={state.source === null}
              onClick={(event) => (focusAround(event), store.set({ source: null, order: null, ...UNPLACED }, true))}
            >
              Back to the first source
            </button>
          </div>
        )}
        <p class="hints">
          <span>
            The bars show how much the answer reads of each card: the mean over {readBefore?.heads ?? "the"} heads of the
            cross-attention, which the squares show one by one. In another order the bars go with their cards.
          </span>
          {can && <span>By keyboard: Space lifts a card, arrows move it, Space drops it, Esc puts it back.</span>}
        </p>
      </section>
    </div>
  );
}
