// What a canvas needs from the page: its size, the screen's pixel density, and the colours of its element.
import { useEffect, useState } from "preact/hooks";
import type { RefObject } from "preact";
import { effect } from "@preact/signals";

/** The width of an element as it changes; 0 before the element is mounted. */
export function useWidth(element: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const place = element.current;
    if (!place) return;
    const measure = () => setWidth(Math.floor(place.clientWidth));
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(place);
    return () => watch.disconnect();
  }, [element]);
  return width;
}

/** Canvas pixels per CSS pixel: at most three, since more are not visible and cost time. */
export const screenDensity = (): number => Math.min(3, globalThis.devicePixelRatio ?? 1);

/** A blank canvas of `width` by `height` CSS pixels; null while it is not mounted or has no size. */
export function blank(canvas: HTMLCanvasElement | null, width: number, height: number, density: number) {
  const context = canvas?.getContext("2d") ?? null;
  if (!canvas || !context || width === 0) return null;
  const [across, down] = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Draws in the next frame, and again after a signal that `follow` reads has changed. Returns a function that stops it. */
export function drawing(follow: () => void, draw: () => void): () => void {
  let due = 0;
  const painted = () => {
    due = 0;
    draw();
  };
  const stop = effect(() => {
    follow();
    due ||= requestAnimationFrame(painted);
  });
  return () => {
    stop();
    cancelAnimationFrame(due);
  };
}

/** The values of colour properties of the style sheet ("--NAME") within an element. */
export function coloursIn(element: Element, names: readonly string[]): string[] {
  const probe = document.createElement("span");
  probe.hidden = true;
  // A custom property may hold light-dark(), which is resolved only in a colour property.
  for (const name of names) probe.appendChild(document.createElement("span")).style.color = `var(--${name})`;
  element.append(probe);
  // All are read after all are written, since each reading after a change computes the page's styles.
  const colours = [...probe.children].map((each) => getComputedStyle(each).color);
  probe.remove();
  return colours;
}

/** Call `changed` whenever the page's colours around an element change. Returns a function that stops it. */
export function followColours(element: Element, changed: () => void): () => void {
  const prefers = matchMedia("(prefers-color-scheme: dark)");
  prefers.addEventListener("change", changed);
  const page = element.closest(".glassformer");
  const watch = new MutationObserver(changed);
  if (page) watch.observe(page, { attributes: true, attributeFilter: ["data-shade"] });
  return () => {
    prefers.removeEventListener("change", changed);
    watch.disconnect();
  };
}

/** The width of a frame around an element. */
const EDGE = 3;

/** Scroll sideways, and only if needed, until an element is visible. `covered`: pixels that stay covered at the left. */
export function scrollAcross(scroller: Element | null, element: HTMLElement | null, covered = 0): void {
  if (!scroller || !element) return;
  const [frame, box] = [scroller.getBoundingClientRect(), element.getBoundingClientRect()];
  if (box.left < frame.left + covered) scroller.scrollLeft += box.left - frame.left - covered;
  else if (box.right + EDGE > frame.right) scroller.scrollLeft += box.right + EDGE - frame.right;
}
