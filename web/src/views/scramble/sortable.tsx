// The source in the order in which it is read: cards to drag by pointer, touch or keyboard.
import type { RefObject } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { percent } from "../../parts";
import { Bar, PITCH, Shares } from "./card";
import { moved } from "./orders";
import type { Reading } from "./weights";

interface SortableProps {
  units: string[];
  order: number[];
  reading: Reading | null;
  readOnly: boolean;
  /** Shows an order while a card is dragged; null when the card is put back. */
  preview: (order: number[] | null) => void;
  drop: (order: number[]) => void;
}

/** A dragged card: the order before, its position there, and how far a pointer has moved it. */
interface Carried {
  before: number[];
  from: number;
  at: number;
  pointer: { id: number; y: number; by: number } | null;
}

export function Sortable({ units, order, reading, readOnly, preview, drop }: SortableProps) {
  const help = useId();
  const list = useRef<HTMLOListElement>(null);
  const [carried, setCarried] = useState<Carried | null>(null);
  const [stop, setStop] = useState(0);
  const [announcement, announce] = useState("");
  const count = order.length;
  const name = (place: number): string => units[order[place] ?? 0] ?? "";
  const buttonAt = (place: number) => list.current?.querySelectorAll<HTMLButtonElement>(".card")[place];
  const within = (place: number): number => Math.min(Math.max(place, 0), count - 1);
  useGliding(list, order, carried?.pointer ? carried.at : null);

  const carry = (next: Carried) => {
    setCarried(next);
    setStop(next.at);
    preview(moved(next.before, next.from, next.at));
  };
  const letGo = () => {
    if (!carried) return;
    setCarried(null);
    if (carried.at === carried.from) preview(null);
    else drop(moved(carried.before, carried.from, carried.at));
    announce(`${name(carried.at)} dropped at place ${carried.at + 1} of ${count}.`);
  };
  const takeBack = () => {
    if (!carried) return;
    setCarried(null);
    setStop(carried.from);
    preview(null);
    announce(`${name(carried.at)} is back at place ${carried.from + 1}.`);
    requestAnimationFrame(() => buttonAt(carried.from)?.focus());
  };

  const press = (event: KeyboardEvent) => {
    const place = [...(list.current?.querySelectorAll(".card") ?? [])].indexOf(event.target as Element);
    if (place < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const goals: Record<string, number> = {
      ArrowUp: place - 1,
      ArrowLeft: place - 1,
      ArrowDown: place + 1,
      ArrowRight: place + 1,
      Home: 0,
      End: count - 1,
    };
    const goal = goals[event.key];
    if (goal !== undefined) {
      event.preventDefault();
      const to = within(goal);
      if (carried && !carried.pointer) {
        carry({ ...carried, at: to });
        announce(`${name(place)} at place ${to + 1} of ${count}.`);
      }
      setStop(to);
      buttonAt(to)?.focus();
    } else if (event.key === " " || event.key === "Enter") {
      event.preventDefault();
      if (readOnly) return;
      if (carried) letGo();
      else {
        setCarried({ before: order, from: place, at: place, pointer: null });
        announce(`${name(place)} lifted from place ${place + 1} of ${count}. Arrow keys move it, Space drops, Escape cancels.`);
      }
    } else if (event.key === "Escape" && carried) {
      event.preventDefault();
      takeBack();
    }
  };

  const down = (event: PointerEvent, place: number) => {
    if (readOnly || event.button !== 0 || !list.current) return;
    // A touch on the card scrolls the page; on its handle it drags.
    if (event.pointerType === "touch" && !(event.target as Element).closest(".grip")) return;
    if (carried) letGo();
    list.current.setPointerCapture(event.pointerId);
    setStop(place);
    setCarried({ before: order, from: place, at: place, pointer: { id: event.pointerId, y: event.clientY, by: 0 } });
  };
  const move = (event: PointerEvent) => {
    if (carried?.pointer?.id !== event.pointerId) return;
    const by = event.clientY - carried.pointer.y;
    carry({ ...carried, at: within(carried.from + Math.round(by / PITCH)), pointer: { ...carried.pointer, by } });
  };
  const up = (event: PointerEvent) => {
    if (carried?.pointer?.id === event.pointerId) letGo();
  };
  const left = (event: FocusEvent) => {
    if (carried && !carried.pointer && !list.current?.contains(event.relatedTarget as Node | null)) letGo();
  };

  return (
    <>
      <ol
        ref={list}
        class="cards"
        aria-label="The order in which the model reads"
        onKeyDown={press}
        onPointerMove={move}
        onPointerUp={up}
        onPointerCancel={(event) => carried?.pointer?.id === event.pointerId && takeBack()}
        onFocusOut={left}
      >
        {order.map((unit, place) => {
          const lifted = carried?.at === place;
          const by = lifted && carried.pointer ? carried.pointer.by - (carried.at - carried.from) * PITCH : 0;
          const share = reading ? `, read ${percent(reading.mean[unit] ?? 0, 0)}` : "";
          return (
            <li>
              <button
                type="button"
                class="card"
                tabIndex={place === Math.min(stop, count - 1) ? 0 : -1}
                aria-label={`${units[unit]}, place ${place + 1} of ${count}${share}`}
                aria-roledescription="card that can be moved"
                aria-describedby={help}
                aria-disabled={readOnly}
                data-unit={unit}
                data-lifted={lifted}
                data-dragged={lifted && carried.pointer !== null}
                style={by === 0 ? {} : { transform: `translateY(${by}px)` }}
                onPointerDown={(event) => down(event, place)}
                onFocus={() => setStop(place)}
              >
                <Bar reading={reading} unit={unit} />
                <span class="grip" aria-hidden="true">
                  {"\u2807"}
                </span>
                <span class="word">{units[unit]}</span>
                <Shares reading={reading} unit={unit} />
              </button>
            </li>
          );
        })}
      </ol>
      <p id={help} class="hidden">
        Press Space to lift a card, the arrow keys to move it, Space to drop it, Escape to put it back.
      </p>
      <p class="hidden" aria-live="assertive">
        {announcement}
      </p>
    </>
  );
}

/** Cards that change places are animated, except the one that a pointer holds. */
function useGliding(list: RefObject<HTMLOListElement | null>, order: number[], held: number | null): void {
  const last = useRef(order);
  useLayoutEffect(() => {
    const before = last.current;
    last.current = order;
    if (before.length !== order.length || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    list.current?.querySelectorAll<HTMLElement>(".card").forEach((card, place) => {
      const from = before.indexOf(order[place] as number);
      if (from < 0 || from === place || place === held) return;
      const begin = { transform: `translateY(${(from - place) * PITCH}px)` };
      card.animate([begin, { transform: "none" }], { duration: 200, easing: "ease-out" });
    });
  }, [order.join()]);
}
