// The model's text, samples, and its answer.
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ModelCard, Run, Source } from "./source";
import { UNPLACED, isChanged, type State, type Store } from "./state";
import { Bar, Field, share } from "./parts";

/** Characters of a description that a narrow screen shows whole. */
const TWO_LINES = 90;
const ZEROS = "A head of zeros. Type numbers until it is proved right for every sequence.";

interface ReadingProps {
  source: Source;
  store: Store;
  state: State;
  card: ModelCard;
  run: Run | null;
  busy: boolean;
  /** Whether the answer is to an earlier text. */
  stale: boolean;
}

export function Reading({ source, store, state, card, run, busy, stale }: ReadingProps) {
  const help = useId();
  const can = source.answers("run");
  const about = state.exercise && card.kind === "head" ? ZEROS : card.about;
  const [all, setAll] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const grow = () => {
    if (!area.current) return;
    area.current.style.height = "auto";
    area.current.style.height = `${area.current.scrollHeight + 2}px`;
  };
  useLayoutEffect(grow, [state.text]);
  useLayoutEffect(() => {
    addEventListener("resize", grow);
    return () => removeEventListener("resize", grow);
  }, []);
  const set = (text: string, step: boolean | string) => store.set({ ...UNPLACED, text, written: [] }, step);
  const field = {
    value: state.text,
    readOnly: !can,
    spellcheck: false,
    "aria-describedby": help,
    // A small vocabulary has no newline.
    onKeyDown: (event: KeyboardEvent) => card.words && event.key === "Enter" && event.preventDefault(),
    onInput: (event: { currentTarget: { value: string } }) => set(event.currentTarget.value, "text"),
  };
  return (
    <section class="reading" aria-label="What the model reads">
      <p class="about" data-all={all || about.length <= TWO_LINES}>{about.replaceAll(" %", "\u00A0%")}</p>
      {about.length > TWO_LINES && (
        <button type="button" class="more" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "Less" : "More about this model"}
        </button>
      )}
      <div class="line">
        <Field label={card.kind === "encoder_decoder" ? "Question" : "Text"} wide>
          <textarea rows={1} ref={area} {...field} />
        </Field>
        <output class="said" aria-live="polite" data-busy={busy} data-stale={stale}>
          {run?.said.headline ?? (busy ? "Reading\u2026" : "")}
          {run && state.view === "whatif" && isChanged(state) && " (without the changes)"}
        </output>
      </div>
      <div class="hints">
        <span id={help}>{can ? card.input_help : ""}</span>
        {can && card.samples.length > 0 && (
          <span class="samples">
            <span>Try</span>
            {card.samples.map((sample) => (
              <button type="button" class="sample" title={sample.length > 30 ? sample.slice(0, 300) : undefined} onClick={() => set(sample, sample !== state.text)}>
                {sample === "" ? "nothing" : sample.length > 30 ? `${sample.slice(0, 28).trimEnd()}\u2026` : sample}
              </button>
            ))}
          </span>
        )}
      </div>
      {run && run.said.classes.length > 1 && (
        <ul class="classes" aria-label="Probabilities" data-stale={stale}>
          {run.said.classes.slice(0, 6).map(([name, chance]) => (
            <li>
              <span>{name}</span>
              <Bar share={chance} />
              <span class="number">{share(chance)}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
