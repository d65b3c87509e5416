// Guided paths through the page: each step is a state, what to do in it, what that makes of the state, and what to see.
import TOURS from "../../src/glassformer/explorer/tours.json";
import type * as messages from "./messages";

type Fields = Partial<messages.State>;

export interface Step {
  state: Fields;
  do: string;
  /** What `do` changes. */
  then: Fields;
  see: string;
  /** The label of the panel that a small screen scrolls to. */
  at?: string;
}

export interface Tour {
  name: string;
  title: string;
  about: string;
  /** The command that brings its model, where that is not bundled. */
  needs?: string;
  steps: Step[];
}

export const tours = TOURS as Tour[];

/** The tour and the step that an address names; steps are counted from 1. Null: none, or an unknown one. */
export function stepOf(name: string, number: number): { tour: Tour; step: Step } | null {
  const tour = tours.find((each) => each.name === name);
  const step = tour?.steps[number - 1];
  return tour && step ? { tour, step } : null;
}
