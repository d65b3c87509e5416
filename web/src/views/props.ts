// What every view is given.
import type { ModelCard, Run, Source } from "../source";
import type { State, Store } from "../state";
import type { Told } from "./attention/telling";
import type { Edited } from "./design/weights";

export interface ViewProps {
  source: Source;
  store: Store;
  state: State;
  card: ModelCard;
  /** The model's answer to the text. Null before the first answer; while one is awaited, the answer to the text before. */
  run: Run | null;
  /** The head that stands out for the text, where the address leaves open which one is shown; otherwise null. */
  told: Told | "looking" | null;
  /** Whether an answer is awaited. */
  busy: boolean;
  /** The weights of a hand-designed head with the edits; null until its design has arrived, and for other models. */
  edits: Edited | null;
}
