// What the model reads: its text, ready examples, and what it says of it.
import { useId } from "preact/hooks";
import type { ModelCard, Run, Source } from "./source";
import type { State, Store } from "./state";
import { percent } from "./parts";

interface ReadingProps {
  source: Source;
  store: Store;
  state: State;
  card: ModelCard;
  run: Run | null;
  busy: boolean;
}

export function Reading({ source, store, state, card, run, busy }: ReadingProps) {
  const help = useId();
  const long = state.text.length > 120;
  // The run is of the design, not of the numbers that somebody has put in its place.
  const edited = state.view === "design" && Object.keys(state.cells).length > 0;
  const set = (text: string) => store.set({ text, pin: null, window: null, written: [] });
  const field = {
    value: state.text,
    readOnly: !source.live,
    spellcheck: false,
    "aria-describedby": help,
    onInput: (event: { currentTarget: { value: string } }) => set(event.currentTarget.value),
  };
  return (
    <section class="reading" aria-label="What the model reads">
      <p class="about">{card.about}</p>
      <div class="line">
        <label class="field wide">
          <span>{card.kind === "encoder_decoder" ? "Question" : "Text"}</span>
          {long ? <textarea rows={4} {...field} /> : <input type="text" {...field} />}
        </label>
        <output class="said" aria-live="polite" data-busy={busy}>
          {edited ? "" : (run?.said.headline ?? (busy ? "Reading\u2026" : ""))}
        </output>
      </div>
      <div class="hints">
        <span id={help}>{card.input_help}</span>
        {source.live && card.samples.length > 0 && (
          <span class="samples">
            Try:{" "}
            {card.samples.map((sample) => (
              <button type="button" class="sample" onClick={() => set(sample)}>
                {sample === "" ? "nothing" : sample.length > 48 ? `${sample.slice(0, 45)}\u2026` : sample}
              </button>
            ))}
          </span>
        )}
      </div>
      {run && run.said.classes.length > 1 && (
        <ul class="classes" aria-label="Probabilities">
          {run.said.classes.slice(0, 6).map(([name, share]) => (
            <li>
              <span>{name}</span>
              <meter min={0} max={1} value={share} aria-label={name} />
              <span class="number">{percent(share)}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
