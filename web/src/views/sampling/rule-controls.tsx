// The sliders of a sampling rule, each with a number field.
import { Exact, Slider } from "../../slider";
import type { State, Store } from "../../state";

interface RuleControlsProps {
  store: Store;
  state: State;
  /** The size of the vocabulary. */
  choices: number;
  /** Why the rule cannot be changed; null if it can. */
  fixed: string | null;
}

/** The largest k of the slider; the position after it is "all". */
const LONGEST = 64;

export function RuleControls({ store, state, choices, fixed }: RuleControlsProps) {
  const most = Math.max(2, Math.min(choices, LONGEST + 1));
  const all = state.topK === null || state.topK >= choices;
  const topK = all ? most : Math.min(state.topK!, most);
  const neutral = state.temperature === 1 && state.topK === null && state.topP === 1;
  return (
    <fieldset class="rule" disabled={fixed !== null}>
      <legend>Sampling rule</legend>
      <Slider
        label="Temperature"
        hint="Divides the logits: below 1 sharpens, above 1 flattens, 0 always takes the likeliest."
        {...{ min: 0, max: 3, step: 0.05 }}
        value={Math.min(state.temperature, 3)}
        said={state.temperature === 0 ? "0, the most likely" : String(state.temperature)}
        change={(temperature, step) => store.set({ temperature }, step)}
      >
        <Exact
          label="Temperature, exact"
          text={String(state.temperature)}
          low={0}
          high={100}
          change={(temperature) => store.set({ temperature: temperature ?? 1 }, true)}
        />
      </Slider>
      <Slider
        label="Top-k"
        hint="Only the k likeliest tokens keep a chance."
        {...{ min: 1, max: most, step: 1 }}
        value={topK}
        said={all ? "all tokens" : `the ${state.topK} most likely`}
        change={(value, step) => store.set({ topK: value >= most ? null : value }, step)}
      >
        <Exact
          label="Top-k, exact; empty for all"
          text={state.topK === null ? "" : String(state.topK)}
          placeholder="all"
          whole
          low={1}
          high={1_000_000}
          change={(value) => store.set({ topK: value }, true)}
        />
      </Slider>
      <Slider
        label="Top-p"
        hint="Only the smallest set of likeliest tokens that reaches this probability keeps a chance."
        {...{ min: 0, max: 1, step: 0.01 }}
        value={state.topP}
        said={`${Number((100 * state.topP).toPrecision(4))} %`}
        change={(topP, step) => store.set({ topP }, step)}
      >
        <Exact
          label="Top-p, exact"
          text={String(state.topP)}
          low={0}
          high={1}
          change={(topP) => store.set({ topP: topP ?? 1 }, true)}
        />
      </Slider>
      <button type="button" disabled={neutral} onClick={() => store.set({ temperature: 1, topK: null, topP: 1 }, true)}>
        Without a rule
      </button>
      {fixed && <p class="quiet">{fixed}</p>}
    </fieldset>
  );
}
