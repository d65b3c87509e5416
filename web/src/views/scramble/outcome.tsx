// What another order changed: the answer, the logits compared with rounding, and the same for all orders.
import { scaleLog } from "d3-scale";
import { Verdict, short } from "../../parts";
import type { Run, Scrambled } from "../../source";

interface OutcomeProps {
  /** The model's answer to the source before it was edited; null if it was not. */
  original: Run | null;
  given: Run | null;
  now: Run | null;
  changed: Scrambled | null;
  /** Whether the order differs from the given one. */
  reordered: boolean;
  /** The largest change of a unit's cross-attention weight. */
  weights: number | null;
  busy: boolean;
}

const WORDS = {
  none: ["\u21C5", "Does the order matter?", "Drag a card, or shuffle, and compare the answers."],
  holds: ["=", "Nothing moved", "The answer is the same up to rounding errors."],
  fails: ["\u2260", "The answer moved", "In this order the model computes something else."],
  differs: ["\u2260", "The logits moved", "In this order logits differ by more than rounding; the likeliest tokens stay."],
} as const;

export function Outcome({ original, given, now, changed, reordered, weights, busy }: OutcomeProps) {
  const verdict = !reordered || !changed ? "none" : changed.holds ? "holds" : "fails";
  const [mark, title, explanation] = WORDS[verdict === "fails" && changed?.changed_tokens === 0 ? "differs" : verdict];
  const edited = original !== null && given !== null;
  const differs = edited && original.said.words.join(" ") !== given.said.words.join(" ");
  return (
    <section class="outcome panel" data-verdict={verdict} data-busy={busy} aria-label="What the order changes">
      <Verdict mark={mark} title={title}>
        <p class="quiet">{explanation}</p>
      </Verdict>
      <dl class="answers">
        {edited && (
          <div>
            <dt>Before your edits</dt>
            <dd>{original.said.headline}</dd>
          </div>
        )}
        <div>
          <dt>As given</dt>
          <dd>
            {given?.said.headline ?? (busy ? "\u2026" : "\u2013")}
            {differs && <small>the words differ, and so does the answer</small>}
          </dd>
        </div>
        <div>
          <dt>In your order</dt>
          <dd>{now?.said.headline ?? (busy ? "\u2026" : "\u2013")}</dd>
        </div>
      </dl>
      {reordered && changed && (
        <div class="change">
          <dl>
            <div>
              <dt>Largest change of a logit</dt>
              <dd class="number">{short(changed.largest_change, 2)}</dd>
            </div>
            <div>
              <dt>Tokens changed</dt>
              <dd class="number">{changed.changed_tokens}</dd>
            </div>
            {weights !== null && (
              <div>
                <dt>Largest change of a weight</dt>
                <dd class="number">{short(weights, 2)}</dd>
              </div>
            )}
          </dl>
          <Gauge change={changed.largest_change} allowed={changed.tolerance} />
        </div>
      )}
    </section>
  );
}

const [LEAST, MOST] = [1e-9, 10];

/** A change on a logarithmic scale, with the range of rounding errors. */
function Gauge({ change, allowed }: { change: number; allowed: number }) {
  const at = scaleLog().domain([LEAST, MOST]).range([0, 100]).clamp(true);
  const label = `A change of ${short(change, 2)}; up to ${short(allowed, 2)} is rounding`;
  return (
    <div class="gauge" role="img" aria-label={label}>
      <div class="track">
        <i class="allowed" style={{ width: `${at(allowed)}%` }} />
        <i class="change-at" data-beyond={change > allowed} style={{ left: `${change === 0 ? 0 : at(change)}%` }} />
      </div>
      <div class="ticks" aria-hidden="true">
        <span style={{ left: "0%" }}>0</span>
        <span style={{ left: `${at(allowed)}%` }}>{short(allowed, 2)} rounding</span>
        <span style={{ left: "100%" }}>10</span>
      </div>
    </div>
  );
}

interface EveryProps {
  found: Scrambled;
  count: number;
  show: ((order: number[]) => void) | null;
}

export function EveryOrder({ found, count, show }: EveryProps) {
  const which = found.exhaustive ? `All ${found.orders} orders` : `${found.orders} orders, drawn at random,`;
  return (
    <section class="every panel" data-verdict={found.holds ? "holds" : "fails"} aria-label="Every order">
      <Verdict
        mark={found.holds ? "\u2713" : "\u2717"}
        title={found.holds ? `No order${found.exhaustive ? "" : " that was read"} changes anything` : `Some orders change the ${found.changed_tokens > 0 ? "answer" : "logits"}`}
        action={
          show &&
          found.largest_change > 0 && (
            <button type="button" onClick={() => show(found.worst)}>
              Show that order
            </button>
          )
        }
      >
        <p>
          {which} of {count} cards were read.{" "}
          {found.changed_tokens === 0 ? "No token changed." : `${found.changed_tokens} tokens changed.`} The largest
          change of a logit is <b class="number">{short(found.largest_change, 2)}</b>.
        </p>
      </Verdict>
      <Gauge change={found.largest_change} allowed={found.tolerance} />
    </section>
  );
}
