// Two texts of as many tokens, and what the second would say with one place of the residual stream as in the first.
import { useId } from "preact/hooks";
import type { ViewProps } from "./props";
import { useAsk, useAskInTurn, useSweep } from "../asking";
import { Awaited, Fault, Field, Title, Under, Versus, focusAround, share } from "../parts";
import type { Run, WhatIf } from "../source";
import { UNCHANGED } from "../state";
import "./patch.css";
import { shown } from "./attention/stack";
import { PatchTable, differing } from "./patch/table";
import { About, Likeliest } from "./what-if";
import { Outcomes } from "./what-if/outcomes";

export function TwoTextsView(props: ViewProps) {
  if (!props.run) return <Awaited busy={props.busy} />;
  if (!props.source.answers("patches")) return <p class="quiet">This file does not compute this view: open the model with {"\u2018"}glassformer explore{"\u2019"}.</p>;
  return <Shown {...props} run={props.run} />;
}

function Shown({ source, store, state, card, run }: ViewProps & { run: Run }) {
  const help = useId();
  const example = run.ask.text === card.text && card.second !== "" ? card.second : run.ask.text;
  const text = state.second ?? example;
  const asked = { ask: run.ask, place: null, target: state.target, other: state.other, ...UNCHANGED, patch: null };
  const first = useAsk(source, "whatif", asked).answer;
  const second = useAsk(source, "run", { ...run.ask, text }, source.typing);
  const fits = second.answer !== null && second.answer.ask.text === text && second.answer.tokens.length === run.tokens.length;
  const differ = fits && text !== run.ask.text;
  const target = state.target ?? first?.target ?? null;
  // What the second text would say, unless another one is chosen.
  const { answer: plain, refusal } = useAsk(source, "whatif", differ ? { ...asked, ask: { ...run.ask, text }, target } : null);
  const likeliest = plain?.outcomes.reduce((best, each) => (each.before > best.before ? each : best)).id ?? null;
  const wanted = state.other ?? likeliest;
  const other = wanted === target ? null : wanted;
  const sweep = useSweep(source, "patches", differ && plain ? { ask: run.ask, place: null, target, second: text, other } : null);
  const { spot } = state;
  const patch = differ && spot && { text: run.ask.text, ...spot };
  const one = useAskInTurn(source, "whatif", patch ? { ...asked, ask: { ...run.ask, text }, target, other, patch } : null);
  return (
    <div class="what-if patch">
      <section class="panel" aria-label="The second text" tabIndex={-1}>
        <Field label="Second text" wide>
          <textarea
            rows={1}
            value={text}
            spellcheck={false}
            aria-describedby={help}
            onKeyDown={(event) => card.words && event.key === "Enter" && event.preventDefault()}
            onInput={(event) => store.set({ second: event.currentTarget.value, spot: null }, "second")}
          />
        </Field>
        <p class="quiet" id={help} role="status">
          {second.refusal
            ? ""
            : text === run.ask.text
              ? "Change a word, such as one name for another, so that the answer changes and the number of tokens stays."
              : second.answer && second.answer.ask.text === text && !fits
                ? `${second.answer.tokens.length} tokens; the first text has ${run.tokens.length}. Change words one for one.`
                : `As many tokens as the first text, ${run.tokens.length}. ${card.kind === "decoder" ? "Next after it" : "Its class"}: ${second.answer?.said.headline.replace(/^next: /, "") ?? "\u2026"}`}
        </p>
        {text === run.ask.text && text === card.text && card.second !== "" && (
          <p class="samples">
            <span>Try</span>
            <button type="button" class="sample" onClick={(event) => (focusAround(event), store.set({ second: card.second, spot: null }, true))}>
              {card.second}
            </button>
          </p>
        )}
        {second.refusal && <Fault refusal={second.refusal} />}
      </section>
      {differ && refusal && <Fault refusal={refusal} />}
      {differ && refusal && source.answers("whatif") && (state.target ?? state.other) !== null && <Likeliest {...{ store }} />}
      {differ && plain && (
        <div class="sides">
          <section class="panel" aria-label="Each place from the first text" data-busy={sweep.busy && !sweep.answer}>
            <Title
              title={<>Where the difference is carried{sweep.answer && <>, for <Versus name={sweep.answer.name} other={sweep.answer.other_name} /></>}</>}
            >
              The second text is read with one place of the residual stream as in the first: after a layer, at a token. 100 brings the
              first text's log-odds, 0 changes nothing.
            </Title>
            <About {...{ source, store, card, run }} state={{ ...state, other }} answer={plain} quiet />
            {sweep.answer && sweep.answer.done < sweep.answer.total && (
              <Under label="Places so far" {...sweep.answer}>{`${sweep.answer.done} of ${sweep.answer.total} places`}</Under>
            )}
            {sweep.answer && <PatchTable patches={sweep.answer} spot={spot} choose={(next) => store.set({ spot: next }, true)} />}
            {!sweep.answer && sweep.busy && <Awaited busy />}
            {sweep.refusal && <Fault refusal={sweep.refusal} />}
          </section>
          <section class="panel" aria-label="What the place does" data-busy={one.busy}>
            {spot && one.answer && patch ? (
              <Effect answer={one.answer} busy={one.busy} words={[run.tokens, second.answer?.tokens ?? []]} spot={spot} />
            ) : (
              sweep.answer && differing(sweep.answer) && (
                <p class="quiet">Click a cell: the second text is read again with that place as in the first.</p>
              )
            )}
            {one.refusal && <Fault refusal={one.refusal} />}
            {one.refusal && <button type="button" onClick={() => store.set({ spot: null }, true)}>Choose no place</button>}
          </section>
        </div>
      )}
    </div>
  );
}

interface EffectProps {
  answer: WhatIf;
  busy: boolean;
  /** The tokens of the two texts. */
  words: [string[], string[]];
  spot: { layer: number; position: number };
}

function Effect({ answer, busy, words: [first, second], spot: { layer, position } }: EffectProps) {
  return (
    <>
      <div class="title">
        <h2>
          Second text, after layer {layer} at <span class="word">{shown(second[position] ?? "")}</span>
          <sub>{position}</sub> as for <span class="word">{shown(first[position] ?? "")}</span>
        </h2>
        <p class="quiet" role="status">
          {busy ? "Computing\u2026" : `${share(answer.distance)} of the probability moved. Before: the second text as it is.`}
        </p>
      </div>
      <Outcomes {...{ answer, busy }} choose={null} />
    </>
  );
}
