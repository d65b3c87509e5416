// What is shown, as it stands in the address: whoever opens the same address sees the same thing.
import { signal, type Signal } from "@preact/signals";
import type { Part, View } from "./source";

export interface Place {
  layer: number;
  head: number;
}

export interface State {
  model: string;
  view: View;
  text: string;
  /** Things that an encoder-decoder's encoder reads; null: those of the model's card. */
  source: string[] | null;
  /** Their order; null: as they are. */
  order: number[] | null;
  part: Part | null;
  layer: number;
  head: number;
  /** A second head beside the first. */
  versus: Place | null;
  /** The query that stays chosen when nothing is hovered. */
  pin: number | null;
  /** How attention is drawn. */
  shape: "matrix" | "lines" | "words" | "layers" | "heads";
  /** Whether colours go by the square root of a weight, which shows small ones; null: where there are many keys. */
  root: boolean | null;
  /** What the grid of heads tells of each. */
  measure: "pictures" | "entropy" | "distance" | "sink";
  /** Which heads are shown where a query is followed over all layers. */
  across: "average" | "chosen" | "all";
  /** What part of the matrix is seen: the first query and key, and how many. Null: all of it. */
  window: { query: number; key: number; size: number } | null;
  /** Edited cells of a hand-designed head, "Km.2.3" to the number as typed. */
  cells: Record<string, string>;
  temperature: number;
  topK: number | null;
  topP: number;
  seed: number;
  /** Where in the text each token begins that was written here, in characters. */
  written: number[];
  /** Where expert choices are looked at. */
  expertLayer: number;
}

/** The state as an address tells it: one without a text or a view means those that the model's card begins with. */
export type Address = Omit<State, "text" | "view"> & { text: string | null; view: View | null };

export const START: Address = {
  model: "",
  view: null,
  text: null,
  source: null,
  order: null,
  part: null,
  layer: 0,
  head: 0,
  versus: null,
  pin: null,
  shape: "matrix",
  root: null,
  measure: "pictures",
  across: "average",
  window: null,
  cells: {},
  temperature: 1,
  topK: null,
  topP: 1,
  seed: 0,
  written: [],
  expertLayer: 0,
};

export type Words = Record<string, string>;

/** The state as the few words that differ from `START`. */
export function toWords(state: Address): Words {
  const words: Words = {};
  for (const key of Object.keys(START) as (keyof Address)[]) {
    const value = state[key];
    if (JSON.stringify(value) === JSON.stringify(START[key])) continue;
    words[key] = typeof value === "string" ? value : JSON.stringify(value);
  }
  return words;
}

/** The state that words tell. What makes no sense is passed over: an address may have been mistyped. */
export function fromWords(words: Words): Address {
  const state: Record<string, unknown> = { ...START };
  for (const [key, word] of Object.entries(words)) {
    if (!(key in START)) continue;
    if (key === "text" || key === "view" || typeof START[key as keyof State] === "string") {
      state[key] = word;
      continue;
    }
    try {
      const value: unknown = JSON.parse(word);
      if (fits(key as keyof State, value)) state[key] = value;
    } catch {
      // Not JSON: as if it were not there.
    }
  }
  if (!["attention", "design", "scramble", "sampling", "experts"].includes(state.view as string)) state.view = START.view;
  if (!["matrix", "lines", "words", "layers", "heads"].includes(state.shape as string)) state.shape = START.shape;
  if (!["pictures", "entropy", "distance", "sink"].includes(state.measure as string)) state.measure = START.measure;
  if (!["average", "chosen", "all"].includes(state.across as string)) state.across = START.across;
  return state as unknown as Address;
}

const isIndex = (value: unknown): boolean => Number.isInteger(value) && (value as number) >= 0;
const isOrder = (value: unknown): boolean =>
  Array.isArray(value) && value.every((each) => isIndex(each) && each < value.length) && new Set(value).size === value.length;
const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function fits(key: keyof State, value: unknown): boolean {
  switch (key) {
    case "source":
      return value === null || (Array.isArray(value) && value.every((each) => typeof each === "string"));
    case "written":
      return Array.isArray(value) && value.every(isIndex);
    case "order":
      return value === null || isOrder(value);
    case "part":
      return value === null || ["self", "encoder", "decoder", "cross"].includes(value as string);
    case "versus":
      return value === null || (isObject(value) && isIndex(value.layer) && isIndex(value.head));
    case "window":
      return value === null || (isObject(value) && isIndex(value.query) && isIndex(value.key) && isIndex(value.size));
    case "root":
      return value === null || typeof value === "boolean";
    case "pin":
    case "topK":
      return value === null || isIndex(value);
    case "cells":
      return isObject(value) && Object.values(value).every((each) => typeof each === "string");
    case "temperature":
    case "topP":
      return typeof value === "number" && Number.isFinite(value) && value >= 0;
    default:
      return isIndex(value);
  }
}

export function toHash(state: Address): string {
  return `#${new URLSearchParams(toWords(state)).toString()}`;
}

const wordsIn = (hash: string): Words => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));

const fromHash = (hash: string): Address => fromWords(wordsIn(hash));

export interface Store {
  readonly state: Signal<Address>;
  /**
   * Change some of it. `step`: a new entry in the browser's history, so that "back" undoes it. The name of a field: one
   * entry for all that is typed there, until something else is a step, or the field is left.
   */
  set(change: Partial<State>, step?: boolean | string): void;
}

/** A state that lives in the page's address. */
export function inAddress(): Store {
  const state = signal(fromHash(location.hash));
  let due = 0;
  let typing: string | null = null;
  const write = () => {
    clearTimeout(due);
    due = 0;
    history.replaceState(null, "", toHash(state.value));
  };
  addEventListener("hashchange", () => {
    typing = null;
    if (location.hash !== toHash(state.value)) state.value = fromHash(location.hash);
  });
  addEventListener("focusout", () => (typing = null));
  return {
    state,
    set(change, step = false) {
      const entry = typeof step === "string" ? step !== typing : step;
      // What "back" comes to is how things stood just before.
      if (entry && due !== 0) write();
      state.value = { ...state.value, ...change };
      if (entry) {
        history.pushState(null, "", toHash(state.value));
        typing = typeof step === "string" ? step : null;
        return;
      }
      // Browsers allow some hundred changes of the address in half a minute; hovering and sliders make more.
      clearTimeout(due);
      due = window.setTimeout(write, 150);
    },
  };
}

/** The state of a saved file: as it was saved, but for what the file's address says. It stays out of the address. */
export function asSaved(words: Words): Store {
  const read = () => fromWords({ ...words, ...wordsIn(location.hash) });
  const state = signal(read());
  addEventListener("hashchange", () => (state.value = read()));
  return { state, set: (change) => (state.value = { ...state.value, ...change }) };
}
