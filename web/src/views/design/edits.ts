// A hand-designed head with the state's edits, for all views.
import { useMemo } from "preact/hooks";
import { useAsk } from "../../asking";
import type { ModelCard, Source } from "../../source";
import { designed, edited, type Cells, type Edited } from "./weights";

/** Null until the design has arrived, and for other models. */
export function useEdited(source: Source, card: ModelCard | null, { cells, exercise }: { cells: Cells; exercise: boolean }): Edited | null {
  const model = card?.kind === "head" ? card.name : null;
  const { answer, of } = useAsk(source, "head", model === null ? null : { model });
  const design = useMemo(() => (answer && of?.model === model ? designed(answer, exercise) : null), [answer, of, model, exercise]);
  const edits = useMemo(() => design && edited(design, cells), [design, cells]);
  // Without weights in its request, a run is that of the design.
  return edits && exercise ? { ...edits, differs: true } : edits;
}
