// What a canvas has to know of the page: the room that it has, how dense the screen is, and the colours where it stands.
import { useEffect, useState } from "preact/hooks";
import type { RefObject } from "preact";

/** The width of an element, followed as it changes; 0 before it is on the page. */
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

/** Points of a canvas in a pixel of the page. More than three are not seen, and cost. */
export const screenDensity = (): number => Math.min(3, globalThis.devicePixelRatio ?? 1);

/** A blank canvas of `width` by `height` pixels of the page; null while there is none, or no room for it. */
export function blank(canvas: HTMLCanvasElement | null, width: number, height: number, density: number) {
  const context = canvas?.getContext("2d") ?? null;
  if (!canvas || !context || width === 0) return null;
  const [across, down] = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** The colours that properties of the style sheet ("--NAME") come to within an element. */
export function coloursIn(element: Element, names: readonly string[]): string[] {
  const probe = document.createElement("span");
  probe.hidden = true;
  element.append(probe);
  const style = getComputedStyle(probe);
  // A property of its own may hold light-dark(), which only a real colour resolves.
  const colours = names.map((name) => {
    probe.style.color = `var(--${name})`;
    return style.color;
  });
  probe.remove();
  return colours;
}

/** Call `told` whenever the page's colours around an element change. Returns what ends it. */
export function followColours(element: Element, told: () => void): () => void {
  const prefers = matchMedia("(prefers-color-scheme: dark)");
  prefers.addEventListener("change", told);
  const page = element.closest(".glassformer");
  const watch = new MutationObserver(told);
  if (page) watch.observe(page, { attributes: true, attributeFilter: ["data-shade"] });
  return () => {
    prefers.removeEventListener("change", told);
    watch.disconnect();
  };
}
