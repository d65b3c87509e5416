// What the page shows, and the words of its address. Fields, types, bounds and defaults come from Python's
// glassformer/explorer/state.py by way of contract.json.
import { signal, type Signal } from "@preact/signals";
import contract from "./contract.json";
import type * as messages from "./messages";
import type { ModelCard, View } from "./source";
import { stepOf } from "./tours";

export type Place = messages.HeadPlace;
/** The state as an address describes it: without a text or a view, it shows those of the model's card. */
export type Address = messages.State & {
  /** The tour that is under way, and its step, from 1. No part of what a saved page holds. */
  tour: string;
  step: number;
};
/** The state that is shown. */
export type State = Omit<Address, "layer" | "head"> & Place & { text: string; view: View };

export type Words = Record<string, string>;

/** The part of JSON Schema that contract.json uses. */
interface Schema {
  type?: string;
  $ref?: string;
  anyOf?: Schema[];
  enum?: unknown[];
  minimum?: number;
  maximum?: number;
  exclusiveMaximum?: number;
  maxLength?: number;
  maxItems?: number;
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  default?: unknown;
}

const { $defs: DEFINITIONS, properties: FIELDS } = contract.State as { $defs: Record<string, Schema>; properties: Record<string, Schema> };

/** Every field at its default. */
export const START = {
  ...Object.fromEntries(Object.entries(FIELDS).map(([name, field]) => [name, field.default])),
  ...{ tour: "", step: 1 },
} as Address;

/** Whether a value is valid under a schema of contract.json. */
export function fits(value: unknown, schema: Schema): boolean {
  if (schema.$ref) return fits(value, DEFINITIONS[schema.$ref.replace("#/$defs/", "")] as Schema);
  if (schema.anyOf) return schema.anyOf.some((each) => fits(value, each));
  if (schema.enum) return schema.enum.includes(value);
  switch (schema.type) {
    case "null":
      return value === null;
    case "boolean":
      return typeof value === "boolean";
    case "string":
      // Length in code points; half a surrogate pair is not text.
      return typeof value === "string" && !/\p{Cs}/u.test(value) && [...value].length <= (schema.maxLength ?? Infinity);
    case "integer":
    case "number":
      return (
        (schema.type === "integer" ? Number.isInteger(value) : Number.isFinite(value)) &&
        (value as number) >= (schema.minimum ?? -Infinity) &&
        (value as number) <= (schema.maximum ?? Infinity) &&
        (value as number) < (schema.exclusiveMaximum ?? Infinity)
      );
    case "array":
      return Array.isArray(value) && value.length <= (schema.maxItems ?? Infinity) && value.every((each) => fits(each, schema.items ?? {}));
    case "object": {
      if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
      const others = schema.additionalProperties;
      return (
        (schema.required ?? []).every((name) => Object.hasOwn(value, name)) &&
        Object.entries(value).every(([name, each]) => {
          if (schema.properties && Object.hasOwn(schema.properties, name)) return fits(each, schema.properties[name] as Schema);
          return typeof others === "object" && fits(name, { type: "string" }) && fits(each, others);
        })
      );
    }
    default:
      return false;
  }
}

/** The state in the words that differ from `from`. */
export function toWords(state: Address, from = START): Words {
  const words: Words = {};
  for (const name of Object.keys(FIELDS) as (keyof Address)[]) {
    const value = state[name];
    if (JSON.stringify(value) === JSON.stringify(from[name])) continue;
    words[name] = typeof value === "string" ? value : JSON.stringify(value);
  }
  return words;
}

/** The state that words describe. Unknown names and words that do not fit their field are ignored. */
export function fromWords(words: Words, from = START): Address {
  const state: Record<string, unknown> = { ...from };
  for (const [name, field] of Object.entries(FIELDS)) {
    if (!Object.hasOwn(words, name)) continue;
    try {
      const value: unknown = contract.PLAIN.includes(name) ? words[name] : JSON.parse(words[name] as string);
      if (fits(value, field)) state[name] = value;
    } catch {
      // Not JSON.
    }
  }
  return state as Address;
}

/** The model that an address names, or the first where it names none; null where it is not among them. */
export function cardOf(address: Address, models: ModelCard[]): ModelCard | null {
  return (address.model === "" ? models[0] : models.find(({ name }) => name === address.model)) ?? null;
}

/** The view of an address that names none: the model's first but Flow, which is shown where no head stands out. */
export const firstView = (card: ModelCard | null): View => card?.views.find((view) => view !== "flow") ?? "attention";

/** Whether an address leaves open which head is shown, and what is pinned. */
export const isOpen = ({ layer, head, pin, key, versus, pinned, tour }: Address): boolean =>
  [layer, head, pin, key, versus].every((each) => each === null) && pinned.length === 0 && tour === "";

/** Whether an address leaves open which view is shown: one that says how attention is drawn shows attention. */
export const isViewOpen = ({ view, shape, window }: Address): boolean => view === null && shape === START.shape && window === null;

/** The state with the model's own text, view and head where the address leaves them open. */
export function resolved(address: Address, card: ModelCard | null): State {
  const { layer, head } = address;
  const place = isOpen(address) ? { layer: card?.layer ?? 0, head: card?.head ?? 0 } : { layer: layer ?? 0, head: head ?? 0 };
  return { ...address, ...place, text: address.text ?? card?.text ?? "", view: address.view ?? firstView(card) };
}

/** The fields of the view What if that change the model, at nothing. */
export const UNCHANGED = (({ removed, forbidden, steer, swaps }) => ({ removed, forbidden, steer, swaps }))(START);

/** Whether a state changes the model in the view What if. */
export function isChanged({ removed, forbidden, steer, swaps }: typeof UNCHANGED): boolean {
  return JSON.stringify({ removed, forbidden, steer, swaps }) !== JSON.stringify(UNCHANGED);
}

/** The fields that name places of what is read, at nothing: in another text or source they would name others, or none. */
export const UNPLACED = (({ pin, key, window, place, forbidden, spot }) => ({ pin, key, window, place, forbidden, spot }))(START);

/** The state with which a model is first shown. */
export function startOf(card: ModelCard): Partial<Address> {
  const { source, order, exercise, attempt, versus, pinned, cells, written, expertLayer, target, other, second, tour, step } = START;
  return {
    ...{ source, order, exercise, attempt, versus, pinned, cells, written, expertLayer, target, other, second, tour, step },
    ...UNCHANGED,
    ...UNPLACED,
    model: card.name,
    view: card.views[0] ?? "attention",
    text: card.text,
    part: null,
    layer: null,
    head: null,
  };
}

/** The state with which a step of a tour begins; null where there is no such step. */
export function startOfStep(tour: string, step: number): Address | null {
  const found = stepOf(tour, step);
  return found && { ...START, ...found.step.state, tour, step };
}

/** An address holds what differs from the state that `words` describe; in a tour, from the beginning of its step. */
export function toHash(state: Address, words: Words = {}): string {
  const from = startOfStep(state.tour, state.step);
  const own = from ? { tour: state.tour, step: String(state.step), ...toWords(state, from) } : toWords(state, fromWords(words));
  return `#${new URLSearchParams(own).toString()}`;
}

const wordsIn = (hash: string): Words => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));

/** What an address describes; what it leaves open about the model of `words` is as there, or as its tour has it. */
export function fromHash(hash: string, words: Words = {}): Address {
  const own = wordsIn(hash);
  const from = startOfStep(own.tour ?? "", Number(own.step ?? 1));
  return from ? fromWords(own, from) : fromWords((own.model ?? words.model) === words.model ? { ...words, ...own } : own);
}

export interface Store {
  readonly state: Signal<Address>;
  /** The address of the start page; null where there is none. */
  readonly home: string | null;
  /** Whether the model writes on: its text is read when that is done. */
  readonly writing: Signal<boolean>;
  /** The part of the page's address that opens it in this state; null where the page has no address. */
  readonly link: (() => string) | null;
  /**
   * Change some fields. `step`: add an entry to the browser's history, so that "back" undoes the change. If it names a field,
   * everything typed there shares one entry, until another step or until the field loses focus.
   */
  set(change: Partial<Address>, step?: boolean | string): void;
}

/**
 * The state of a page whose address follows it.
 *
 * @param file Of a saved file: its own state, and the models that have a page beside it, where they are opened.
 */
export function inAddress(file: { words: Words; pages: readonly string[] } | null = null): Store {
  const { words, pages } = file ?? { words: {}, pages: [] };
  const hashOf = (address: Address) => toHash(address, words);
  const state = signal(fromHash(location.hash, words));
  let due = 0;
  let typing: string | null = null;
  const change = (address: Address): boolean => {
    const elsewhere = pages.includes(address.model) && address.model !== words.model;
    if (elsewhere) location.assign(`${address.model}.html${toHash(address)}`);
    else state.value = address;
    return !elsewhere;
  };
  const record = (how: "pushState" | "replaceState") => {
    try {
      history[how](null, "", hashOf(state.value));
    } catch {
      // A file within another page may have no history.
    }
  };
  const write = () => {
    clearTimeout(due);
    due = 0;
    record("replaceState");
  };
  change(state.value);
  addEventListener("hashchange", () => {
    typing = null;
    if (location.hash !== hashOf(state.value)) change(fromHash(location.hash, words));
  });
  addEventListener("focusout", () => (typing = null));
  return {
    state,
    writing: signal(false),
    home: !file ? "#" : pages.length > 0 ? "index.html" : null,
    link: () => hashOf(state.value),
    set(fields, step = false) {
      const entry = typeof step === "string" ? step !== typing : step;
      // The entry to which "back" returns has to hold the state just before this change.
      if (entry && due !== 0) write();
      if (!change({ ...state.value, ...fields })) return;
      if (entry) {
        record("pushState");
        typing = typeof step === "string" ? step : null;
        return;
      }
      // Browsers limit changes of the address to some hundred in half a minute; hovering and sliders make more.
      clearTimeout(due);
      due = window.setTimeout(write, 150);
    },
  };
}
