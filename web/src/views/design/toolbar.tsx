// Undo, redo, reset, and saving and loading of weights.
import { useRef } from "preact/hooks";
import { download } from "../../header";
import type { Refusal } from "../../source";
import type { History } from "./history";
import { asFile, cellsOf, fromFile, MOST_BYTES, type Cells, type Weights } from "./weights";

interface ToolbarProps {
  history: History;
  design: Weights;
  weights: Weights;
  /** Cells that differ from the design. */
  changes: number;
  resized: boolean;
  /** Cells without a valid number. */
  faults: number;
  live: boolean;
  /** The name of the exercise, in which the head begins with zeros. */
  exercise: string | null;
  refuse: (refusal: Refusal | null) => void;
}

export function Toolbar({ history, design, weights, changes, resized, faults, live, exercise, refuse }: ToolbarProps) {
  const chooser = useRef<HTMLInputElement>(null);
  const change = (cells: Cells) => {
    refuse(null);
    history.change(cells);
  };
  const save = () => download(new Blob([asFile(weights, exercise)], { type: "application/json" }), "head.json");
  const load = async (file: File | undefined) => {
    if (!file) return;
    if (file.size > MOST_BYTES) {
      refuse({
        got: `A file of ${file.size.toLocaleString("en")} bytes`,
        expected: `at most ${MOST_BYTES.toLocaleString("en")}`,
        fix: "Choose a head.json.",
      });
      return;
    }
    const read = fromFile(await file.text(), design);
    if ("got" in read) refuse(read);
    else change(cellsOf(design, read));
  };
  const edits = changes === 0 ? (exercise ? "Nothing typed yet" : "As designed") : `${changes} ${changes === 1 ? "cell" : "cells"} edited`;
  return (
    <div class="bar tools" role="group" aria-label="Edits">
      <div class="choice">
        <button type="button" disabled={!history.canUndo} onClick={history.undo} title="Ctrl+Z">
          {"\u21B6"} Undo
        </button>
        <button type="button" disabled={!history.canRedo} onClick={history.redo} title="Ctrl+Shift+Z">
          {"\u21B7"} Redo
        </button>
      </div>
      <button type="button" disabled={(changes === 0 && !resized) || !live} onClick={() => change({})}>
        {exercise ? "Start again" : "Back to the design"}
      </button>
      <output class="edits">
        {edits}
        {resized && ", other sizes"}
      </output>
      <div class="files">
        <button
          type="button"
          onClick={save}
          disabled={faults > 0}
          title={faults > 0 ? "A cell holds no number" : "A file that 'glassformer verify' reads"}
        >
          Download head.json
        </button>
        <button type="button" disabled={!live} onClick={() => chooser.current?.click()}>
          {"Load\u2026"}
        </button>
        <input
          ref={chooser}
          type="file"
          accept=".json,application/json"
          hidden
          aria-label="Weights to load"
          onChange={(event) => {
            const input = event.currentTarget;
            void load(input.files?.[0]).finally(() => (input.value = ""));
          }}
        />
      </div>
      {!live && <p class="quiet">A saved page: the numbers cannot be edited.</p>}
    </div>
  );
}
