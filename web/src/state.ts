// What the page shows, and the words of its address. Fields, types, bounds and defaults come from Python's
// glassformer/explorer/state.py by way of contract.json.
import { signal, type Signal } from "@preact/signals";
import contract from "./contract.json";
import type { ModelCard, Schemas, View } from "./source";

export type Place = Schemas["HeadPlace"];
/** The state as an address describes it: without a text or a view, it shows those of the model's card. */
export type Address = Schemas["State"];
export type State = Address & { text: string; view: View };

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
export const START = Object.fromEntries(Object.entries(FIELDS).map(([name, field]) => [name, field.default])) as Address;

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

/** The state in the words that differ from `START`. */
export function toWords(state: Address): Words {
  const words: Words = {};
  for (const [name, start] of Object.entries(START)) {
    const value = state[name as keyof Address];
    if (JSON.stringify(value) === JSON.stringify(start)) continue;
    words[name] = typeof value === "string" ? value : JSON.stringify(value);
  }
  return words;
}

/** The state that words describe. Unknown names and words that do not fit their field are ignored. */
export function fromWords(words: Words): Address {
  const state: Record<string, unknown> = { ...START };
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

/** The state with the model's own text and view where the address leaves them open. */
export function resolved(address: Address, card: ModelCard | null): State {
  return { ...address, text: address.text ?? card?.text ?? "", view: address.view ?? card?.views[0] ?? "attention" };
}

/** The fields of the view What if that change the model, at nothing. */
export const UNCHANGED = (({ removed, forbidden, steer, swaps }) => ({ removed, forbidden, steer, swaps }))(START);

/** The state with which a model is first shown. */
export function startOf(card: ModelCard): Partial<State> {
  const { source, order, versus, pin, window, cells, written, expertLayer, place, target, other } = START;
  return {
    ...{ source, order, versus, pin, window, cells, written, expertLayer, place, target, other },
    ...UNCHANGED,
    model: card.name,
    view: card.views[0] ?? "attention",
    text: card.text,
    // The weights with which such a model reads its source.
    part: card.kind === "encoder_decoder" ? "cross" : null,
    layer: card.layer,
    head: card.head,
  };
}

export function toHash(state: Address): string {
  return `#${new URLSearchParams(toWords(state)).toString()}`;
}

const wordsIn = (hash: string): Words => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));

const fromHash = (hash: string): Address => fromWords(wordsIn(hash));

export interface Store {
  readonly state: Signal<Address>;
  /**
   * Change some fields. `step`: add an entry to the browser's history, so that "back" undoes the change. If it names a field,
   * everything typed there shares one entry, until another step or until the field loses focus.
   */
  set(change: Partial<State>, step?: boolean | string): void;
}

/** The state of a page whose address follows it. */
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
      // The entry to which "back" returns has to hold the state just before this change.
      if (entry && due !== 0) write();
      state.value = { ...state.value, ...change };
      if (entry) {
        history.pushState(null, "", toHash(state.value));
        typing = typeof step === "string" ? step : null;
        return;
      }
      // Browsers limit changes of the address to some hundred in half a minute; hovering and sliders make more.
      clearTimeout(due);
      due = window.setTimeout(write, 150);
    },
  };
}

/** The state of a saved file: as saved, except for what its address says. Changes are not written to the address. */
export function asSaved(words: Words): Store {
  const read = () => fromWords({ ...words, ...wordsIn(location.hash) });
  const state = signal(read());
  addEventListener("hashchange", () => (state.value = read()));
  return { state, set: (change) => (state.value = { ...state.value, ...change }) };
}
