// A hand-designed head with the state's edits, for all views.
import { useMemo, useRef } from "preact/hooks";
import { useAsk } from "../../asking";
import type { ModelCard, Source } from "../../source";
import { designed, edited, numbersIn, type Cells, type Edited } from "./weights";

/** Null until the design has arrived, and for other models. */
export function useEdited(source: Source, card: ModelCard | null, { cells, exercise }: { cells: Cells; exercise: boolean }): Edited | null {
  const model = card?.kind === "head" ? card.name : null;
  const { answer, of } = useAsk(source, "head", model === null ? null : { model });
  const design = useMemo(() => (answer && of?.model === model ? designed(answer, exercise) : null), [answer, of, model, exercise]);
  const last = useRef<{ model: string | null; numbers: Map<string, number> }>({ model, numbers: new Map() });
  if (last.current.model !== model) last.current = { model, numbers: new Map() };
  const edits = useMemo(() => design && edited(design, cells, last.current.numbers), [design, cells]);
  if (edits && edits.faults.size === 0) last.current.numbers = new Map(numbersIn(edits.weights, edits.changed));
  // Without weights in its request, a run is that of the design.
  return edits && exercise ? { ...edits, differs: true } : edits;
}
