// Colours of weights. In both themes 0 is close to the background, and lightness is monotonic.
import { useEffect, useState } from "preact/hooks";
import type { RefObject } from "preact";
import { interpolateRgb, piecewise } from "d3-interpolate";
import { interpolateBlues, interpolateRdBu } from "d3-scale-chromatic";
import { coloursIn, followColours } from "../../measuring";

const NIGHT = piecewise(interpolateRgb, ["#20272e", "#1f4a6b", "#2f79ab", "#6fb3dd", "#e4f3ff"]);
const NIGHT_SIGNED = piecewise(interpolateRgb, ["#9fd0ff", "#3f86bd", "#20272e", "#b4603a", "#ffc09a"]);

export type Kind = "weights" | "difference";

/** The colour of a share from 0 to 1, or from -1 to 1 for differences. */
export function colour(kind: Kind, dark: boolean, share: number): string {
  if (kind === "weights") return (dark ? NIGHT : interpolateBlues)(share);
  return dark ? NIGHT_SIGNED((share + 1) / 2) : interpolateRdBu((1 - share) / 2);
}

/** A value's share of the largest one. The square root separates small values better. */
export function share(value: number, largest: number, root: boolean): number {
  const part = largest > 0 ? Math.min(1, Math.abs(value) / largest) : 0;
  return (root ? Math.sqrt(part) : part) * (value < 0 ? -1 : 1);
}

const STEPS = 255;
interface Table {
  pixels: Uint32Array;
  styles: string[];
}
const tables = { weights: new Map<boolean, Table>(), difference: new Map<boolean, Table>() };

/** The colours as 32-bit pixels of `ImageData` and as CSS colours. */
export function table(kind: Kind, dark: boolean): Table {
  const there = tables[kind].get(dark);
  if (there) return there;
  const bytes = new Uint8ClampedArray(4 * (STEPS + 1));
  const styles: string[] = [];
  for (let step = 0; step <= STEPS; step += 1) {
    const style = colour(kind, dark, kind === "weights" ? step / STEPS : (2 * step) / STEPS - 1);
    const [red = 0, green = 0, blue = 0] = numbers(style);
    bytes.set([red, green, blue, 255], 4 * step);
    styles.push(`rgb(${red}, ${green}, ${blue})`);
  }
  const made = { pixels: new Uint32Array(bytes.buffer), styles };
  tables[kind].set(dark, made);
  return made;
}

/** The colour of a share in CSS; of NaN that of 0. */
export const styleOf = (kind: Kind, dark: boolean, part: number): string => table(kind, dark).styles[stepOf(kind, part || 0)]!;

export function stepOf(kind: Kind, part: number): number {
  return Math.round(STEPS * (kind === "weights" ? part : (part + 1) / 2));
}

function numbers(style: string): number[] {
  if (style.startsWith("#")) return [1, 3, 5].map((at) => parseInt(style.slice(at, at + 2), 16));
  return (style.match(/[\d.]+/g) ?? []).slice(0, 3).map((each) => Math.round(Number(each)));
}

function luminance(style: string): number {
  const [red = 0, green = 0, blue = 0] = numbers(style).map((each) => {
    const part = each / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

const letters = new Map<string, string>();

/** Black or white, whichever has more contrast with a colour. */
export function letterOn(style: string): string {
  const there = letters.get(style);
  if (there) return there;
  const light = luminance(style);
  const letter = (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) ? "#000000" : "#ffffff";
  letters.set(style, letter);
  return letter;
}

/** Colours and font of the style sheet, for a canvas. */
export interface Paint {
  dark: boolean;
  panel: string;
  ink: string;
  quiet: string;
  line: string;
  accent: string;
  accentInk: string;
  second: string;
  bad: string;
  mono: string;
}

const NAMES = ["panel", "ink", "quiet", "line", "accent", "accent-ink", "second", "bad"];

function readPaint(element: HTMLElement): Paint {
  const [panel = "", ink = "", quiet = "", line = "", accent = "", accentInk = "", second = "", bad = ""] = coloursIn(element, NAMES);
  const mono = getComputedStyle(element).getPropertyValue("--mono").trim() || "monospace";
  return { dark: luminance(panel) < 0.2, panel, ink, quiet, line, accent, accentInk, second, bad, mono };
}

/** The page's colours at `element`, updated when they change. Null before it is mounted. */
export function usePaint(element: RefObject<HTMLElement | null>): Paint | null {
  const [paint, setPaint] = useState<Paint | null>(null);
  useEffect(() => {
    const place = element.current;
    if (!place) return;
    const read = () => setPaint(readPaint(place));
    read();
    return followColours(place, read);
  }, [element]);
  return paint;
}
