// A vector added to the residual stream after one block: its direction and its strength.
import { Numbered, TokenField, counted, share, short, visible } from "../../parts";
import { Exact, Slider } from "../../slider";
import type { Source, WhatIf } from "../../source";
import type { Store } from "../../state";
import type { Edits, Steer } from "./edits";

interface SteeringProps {
  source: Source;
  model: string;
  store: Store;
  edits: Edits;
  answer: WhatIf;
  layers: number;
  can: boolean;
  /** Whether any token can be typed. */
  typed: boolean;
}

/** The ends of the slider, in median lengths of the residual stream; the field takes up to the second. */
const [FAR, FARTHEST] = [1, 100];

/** The share of the layers after which it is steered at first: early ones make other things of a direction of the output. */
const LATE = 0.85;

export function Steering({ source, model, store, edits, answer, layers, can, typed }: SteeringProps) {
  const { outcomes, target, kind } = answer;
  const second = outcomes.find(({ id }) => id !== target)?.id ?? target;
  const steer: Steer = edits.steer ?? { layer: Math.floor(LATE * (layers - 1)), toward: second, away: null, strength: 0 };
  const aim = outcomes.find(({ id }) => id === steer.toward);
  const missed = steer.strength > 0 && aim !== undefined && aim.after < aim.before;
  const change = (next: Partial<Steer>, step: boolean) => store.set({ steer: { ...steer, ...next } }, step);
  const names = [...outcomes].sort((one, other) => (outcomes.length + answer.rest > 64 ? 0 : one.id - other.id));
  // Towards and away from the same one would be no direction.
  const but = (other: number | null) => names.filter(({ id }) => id !== other).map(({ id, name }) => ({ id, name: visible(name) }));
  return (
    <fieldset class="steering" disabled={!can}>
      <div class="fields">
        <Numbered label="Towards" class="word" chosen={steer.toward} options={but(steer.away)} choose={(toward) => change({ toward }, true)} />
        {can && typed && <TokenField label="Or any token" {...{ source, model }} choose={(toward) => toward !== steer.away && change({ toward }, true)} />}
        <Numbered
          label="Away from"
          class="word"
          chosen={steer.away}
          options={but(steer.toward)}
          none={`no ${kind}`}
          choose={(away) => change({ away }, true)}
        />
        {layers > 1 && (
          <Numbered label="After layer" chosen={steer.layer} options={counted(layers)} choose={(layer) => change({ layer }, true)} />
        )}
      </div>
      <Slider
        label="Strength"
        hint="In lengths of the residual stream, at its median position: at 1 the added vector is as long as the stream itself."
        {...{ min: -FAR, max: FAR, step: 0.01 }}
        value={Math.max(-FAR, Math.min(FAR, steer.strength))}
        said={`${short(steer.strength)} times the stream's length`}
        change={(strength, step) => change({ strength }, step)}
      >
        <Exact
          label="Strength, exact"
          text={String(steer.strength)}
          low={-FARTHEST}
          high={FARTHEST}
          change={(strength) => change({ strength: strength ?? 0 }, true)}
        />
      </Slider>
      {missed && (
        <p role="status">
          <span class="word">{visible(aim.name)}</span> falls from {share(aim.before)} to {share(aim.after)}: this is too strong or too early. Try less, or a
          later layer.
        </p>
      )}
    </fieldset>
  );
}
