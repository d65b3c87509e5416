// The next token: its distribution, the effect of temperature, top-k and top-p, and step-by-step generation.
import type { ViewProps } from "./props";
import { useAsk } from "../asking";
import { Awaited, Fault, share } from "../parts";
import type { Next } from "../source";
import "./sampling.css";
import { Candidates } from "./sampling/candidates";
import { distributionUnder, type Distribution, type Rule } from "./sampling/rule";
import { RuleControls } from "./sampling/rule-controls";
import { WritingBar } from "./sampling/writing-bar";
import { useWriting } from "./sampling/writing";

export function SamplingView({ source, store, state, card, busy }: ViewProps) {
  const rule: Rule = { temperature: state.temperature, topK: state.topK, topP: state.topP };
  const ask = { model: card.name, text: state.text, temperature: rule.temperature, top_k: rule.topK, top_p: rule.topP };
  const can = source.answers("next");
  // The run's forward pass serves this call, too.
  const next = useAsk(source, "next", busy && can ? null : ask, 30);
  const writing = useWriting(source, store, state);
  const answer = next.answer;
  // A saved page holds the answer to one rule. If that lists all candidates, other rules are computed from it.
  const enough = answer !== null && answer.rest === 0;
  const refused = next.refusal !== null && (can || !enough);
  const fixed = can || enough ? null : "This saved page holds the answer to one rule only.";
  const distribution = answer && distributionUnder(rule, answer);
  return (
    <div class="sampling">
      <WritingBar {...{ source, store, state, writing }} />
      {writing.refusal && <Fault refusal={writing.refusal} />}
      {refused && next.refusal && <Fault refusal={next.refusal} />}
      <div class="both">
        <section class="panel chart" aria-label="The next token">
          {answer && distribution && (
            <>
              <Summary {...{ answer, distribution }} />
              <Candidates
                {...{ distribution, rule }}
                rest={answer.rest}
                restPlain={answer.rest_plain}
                busy={(next.busy || (busy && can)) && !enough}
                choose={source.answers("steps") && !refused ? ({ id }) => void writing.write(1, id) : null}
              />
            </>
          )}
          {!answer && !refused && <Awaited busy={next.busy} />}
        </section>
        <section class="panel choosing" aria-label="How the next token is chosen">
          <RuleControls {...{ store, state, fixed }} choices={answer ? answer.candidates.length + answer.rest : 64} />
        </section>
        <aside class="panel notes" aria-label="What is shown">
          {answer?.rule && distribution && <Recurrence {...{ answer, distribution }} />}
          <Legend obeys={answer?.rule !== null} />
        </aside>
      </div>
    </div>
  );
}

function Summary({ answer, distribution }: { answer: Next; distribution: Distribution }) {
  const total = answer.candidates.length + answer.rest;
  return (
    <div class="summary" role="status">
      <h2>The next token</h2>
      <dl>
        <div>
          <dt>Kept</dt>
          <dd class="number">
            {distribution.kept.toLocaleString("en")} <span class="quiet">of {total.toLocaleString("en")}</span>
          </dd>
        </div>
        <div>
          <dt>Entropy</dt>
          <dd class="number">
            {distribution.entropy.toFixed(2)} bits
            {distribution.entropyBefore !== null && (
              <span class="quiet"> ({distribution.entropyBefore.toFixed(2)} before)</span>
            )}
          </dd>
        </div>
      </dl>
    </div>
  );
}

function Recurrence({ answer, distribution }: { answer: Next; distribution: Distribution }) {
  const obeying = distribution.candidates.filter(({ obeys }) => obeys);
  const [before, after] = (["plain", "final"] as const).map((when) => obeying.reduce((sum, each) => sum + each[when], 0)) as [number, number];
  return (
    <div class="recurrence">
      <h3>The rule of these numbers</h3>
      <p class="word">{answer.rule}</p>
      <p class="quiet">
        Tokens that obey it are marked {"\u2713"}: {share(before)} of the probability before the sampling rule, {share(after)}{" "}
        after it.
      </p>
    </div>
  );
}

function Legend({ obeys }: { obeys: boolean }) {
  return (
    <ul class="legend" aria-label="What the bars mean">
      <li>
        <i class="key before" /> before the rule
      </li>
      <li>
        <i class="key after" /> after it
      </li>
      <li>
        <i class="key cut" /> cut
      </li>
      <li>
        <i class="key stairs" /> cumulative probability
      </li>
      {obeys && <li>{"\u2713"} obeys the recurrence, {"\u2717"} breaks it</li>}
    </ul>
  );
}
