// Wheel, pinch, drag and keyboard on a heat map.
import { useEffect, useRef } from "preact/hooks";
import type { RefObject } from "preact";
import type { Signal } from "@preact/signals";
import { arrowOf } from "./selection";
import { cellAt, cellOf, clamped, isWhole, moved, showing, whole, zoomed, type Box, type Cell, type View } from "./viewport";

export interface Handled {
  box: Box;
  /** The box's offset within the element. */
  left: number;
  top: number;
  view: Signal<View | null>;
  hover: Signal<Cell | null>;
  /** Called by a click on a cell, and by Enter. */
  press: (cell: Cell) => void;
  /** Called by Escape; returns whether there was something to let go of. */
  release: () => boolean;
}

/** Milliseconds after a wheel event elsewhere during which the page keeps scrolling over a map. */
const SCROLLING_MS = 300;
const STEP = 1.5;

export function zoomBy({ box, view, hover }: Pick<Handled, "box" | "view" | "hover">, factor: number): void {
  const now = view.value ?? whole(box);
  const cell = cellOf(now, box);
  // Buttons and keys zoom to the hovered cell, if there is one.
  const at = hover.value;
  const x = at ? (at.key + 0.5 - now.key) * cell.width : box.width / 2;
  const y = at ? (at.query + 0.5 - now.query) * cell.height : box.height / 2;
  view.value = zoomed(now, box, factor, x, y);
}

export function useGestures(element: RefObject<HTMLElement | null>, handled: Handled): (event: KeyboardEvent) => void {
  const latest = useRef(handled);
  latest.current = handled;
  useEffect(() => {
    const place = element.current;
    if (!place) return;
    const pointers = new Map<number, { x: number; y: number }>();
    let dragged = 0;
    let scrolledElsewhere = -Infinity;
    const local = (event: { clientX: number; clientY: number }) => {
      const frame = place.getBoundingClientRect();
      return { x: event.clientX - frame.left - latest.current.left, y: event.clientY - frame.top - latest.current.top };
    };
    const current = () => latest.current.view.value ?? whole(latest.current.box);
    const point = (event: PointerEvent) => {
      const { x, y } = local(event);
      latest.current.hover.value = cellAt(current(), latest.current.box, x, y);
    };
    const down = (event: PointerEvent) => {
      if (event.button !== 0) return;
      if (pointers.size === 0) dragged = 0;
      pointers.set(event.pointerId, local(event));
      place.setPointerCapture(event.pointerId);
    };
    const move = (event: PointerEvent) => {
      const { box, view } = latest.current;
      const before = pointers.get(event.pointerId);
      if (!before) return point(event);
      const now = local(event);
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, each]) => each);
      pointers.set(event.pointerId, now);
      const other = others[0];
      dragged += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      if (other) {
        const apart = (one: { x: number; y: number }) => Math.max(10, Math.hypot(one.x - other.x, one.y - other.y));
        const middle = { x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 };
        const turned = zoomed(current(), box, apart(now) / apart(before), middle.x, middle.y);
        view.value = moved(turned, box, (now.x - before.x) / 2, (now.y - before.y) / 2);
      } else if (dragged > 4 && !isWhole(current(), box)) {
        view.value = moved(current(), box, now.x - before.x, now.y - before.y);
      } else {
        point(event);
      }
    };
    const up = (event: PointerEvent) => {
      const there = pointers.delete(event.pointerId);
      if (!there || dragged > 4 || pointers.size > 0 || event.type === "pointercancel") return;
      const { x, y } = local(event);
      const cell = cellAt(current(), latest.current.box, x, y);
      latest.current.hover.value = cell;
      if (cell) latest.current.press(cell);
    };
    const leave = (event: PointerEvent) => {
      // After a touch ends, the touched cell stays selected.
      if (pointers.size === 0 && event.pointerType === "mouse") latest.current.hover.value = null;
    };
    const wheel = (event: WheelEvent) => {
      const { box, view } = latest.current;
      if (event.timeStamp - scrolledElsewhere < SCROLLING_MS && !event.ctrlKey) return;
      const now = current();
      const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
      if (event.shiftKey) {
        event.preventDefault();
        view.value = moved(now, box, -(event.deltaX || event.deltaY) * unit, 0);
        return;
      }
      const { x, y } = local(event);
      const speed = event.ctrlKey ? 0.01 : 0.002;
      const next = zoomed(now, box, 2 ** (-event.deltaY * unit * speed), x, y);
      // A map that cannot be zoomed further lets the page scroll.
      if (next.size === now.size && !event.ctrlKey) return;
      event.preventDefault();
      view.value = next;
    };
    const elsewhere = (event: WheelEvent) => {
      if (!place.contains(event.target as Node)) scrolledElsewhere = event.timeStamp;
    };
    const gone = new AbortController();
    const { signal } = gone;
    place.addEventListener("pointerdown", down, { signal });
    place.addEventListener("pointermove", move, { signal });
    place.addEventListener("pointerup", up, { signal });
    place.addEventListener("pointercancel", up, { signal });
    place.addEventListener("pointerleave", leave, { signal });
    place.addEventListener("wheel", wheel, { signal, passive: false });
    document.addEventListener("wheel", elsewhere, { signal, passive: true });
    return () => gone.abort();
  }, [element]);
  return (event) => keyed(event, latest.current);
}

/** Arrows move from cell to cell, with Shift the view moves; + and - zoom, Home shows all, Enter presses, Escape lets go. */
function keyed(event: KeyboardEvent, handled: Handled): void {
  const { box, view, hover, press, release } = handled;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const now = view.value ?? whole(box);
  const arrow = arrowOf(event);
  if (arrow && event.shiftKey) {
    view.value = moved(now, box, (-arrow[1] * box.width) / 4, (-arrow[0] * box.height) / 4);
  } else if (arrow) {
    const from = hover.value ?? { query: Math.ceil(now.query), key: Math.ceil(now.key) };
    const step = hover.value ? arrow : [0, 0];
    const held = (place: number, count: number) => Math.min(count - 1, Math.max(0, place));
    const next = { query: held(from.query + (step[0] ?? 0), box.queries), key: held(from.key + (step[1] ?? 0), box.keys) };
    hover.value = next;
    if (view.value) view.value = showing(now, box, next);
  } else if (event.key === "PageDown" || event.key === "PageUp") {
    view.value = moved(now, box, 0, (event.key === "PageDown" ? -0.9 : 0.9) * box.height);
  } else if (event.key === "+" || event.key === "=") {
    zoomBy(handled, STEP);
  } else if (event.key === "-") {
    zoomBy(handled, 1 / STEP);
  } else if (event.key === "Home" || event.key === "0") {
    view.value = clamped(whole(box), box);
  } else if (event.key === "Enter" || event.key === " ") {
    if (!hover.value) return;
    press(hover.value);
  } else if (event.key === "Escape") {
    const hovered = hover.value !== null;
    hover.value = null;
    if (!release() && !hovered) return;
  } else {
    return;
  }
  event.preventDefault();
}
