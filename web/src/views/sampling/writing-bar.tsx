// Buttons for generation, and the generated tokens.
import type { Source } from "../../source";
import type { State, Store } from "../../state";
import { share, visible } from "../../parts";
import { Obeys } from "./candidates";
import type { Writing, Written } from "./writing";

interface WritingBarProps {
  source: Source;
  store: Store;
  state: State;
  writing: Writing;
}

/** How many generated tokens are shown. */
const SHOWN = 48;

export function WritingBar({ source, store, state, writing }: WritingBarProps) {
  const { written, busy } = writing;
  const none = !source.answers("steps");
  const seed = (value: number) => {
    if (Number.isSafeInteger(value) && value >= 0) store.set({ seed: value }, true);
  };
  return (
    <section class="writing" aria-label="Writing on">
      <div class="buttons">
        <button type="button" class="main" disabled={none} onClick={() => writing.write(1)}>
          Write one
        </button>
        {busy ? (
          <button type="button" onClick={writing.stop}>
            Stop
          </button>
        ) : (
          <button type="button" disabled={none} onClick={() => writing.write(10)}>
            Write ten
          </button>
        )}
        <button type="button" disabled={none || written.length === 0} onClick={writing.undo}>
          Undo a step
        </button>
        <button type="button" disabled={none || written.length === 0} onClick={writing.undoAll}>
          Undo all
        </button>
        <label class="seed">
          <span>Seed</span>
          <input
            type="number"
            min={0}
            max={Number.MAX_SAFE_INTEGER}
            step={1}
            disabled={none}
            value={state.seed}
            onInput={(event) => seed(event.currentTarget.valueAsNumber)}
          />
        </label>
        {none && <span class="quiet">A saved page cannot write: it has no model to ask.</span>}
      </div>
      <Trail text={state.text} written={written} />
    </section>
  );
}

function Trail({ text, written }: { text: string; written: Written[] }) {
  const shown = written.slice(-SHOWN);
  const begins = shown[0]?.from ?? text.length;
  const before = text.slice(Math.max(0, begins - 40), begins);
  const right = written.filter(({ step }) => step?.obeys === true).length;
  const judged = written.filter(({ step }) => typeof step?.obeys === "boolean").length;
  return (
    <div class="trail">
      <p class="line">
        <span class="given word quiet">
          {begins > 40 && "\u2026"}
          {before}
        </span>
        {shown.length === 0 && <span class="caret" aria-hidden="true" />}
        {shown.length > 0 && (
          <ol aria-label="Written tokens" start={written.length - shown.length + 1}>
            {shown.map(({ from, text: piece, step }) => (
              <li key={from} class="word" title={step ? `probability ${share(step.probability)}` : ""}>
                <span class="piece">{visible(piece.trim() || piece)}</span>
                <span class="below number">
                  {step ? share(step.probability) : "\u2013"}
                  <Obeys obeys={step?.obeys ?? null} />
                </span>
              </li>
            ))}
          </ol>
        )}
      </p>
      <p class="quiet count" role="status">
        {written.length === 0
          ? "Generated tokens appear here with their probability. The same seed gives the same tokens."
          : `${written.length} generated${judged > 0 ? `, ${right} of ${judged} obey the recurrence` : ""}.`}
      </p>
    </div>
  );
}
