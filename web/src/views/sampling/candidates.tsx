// The candidates for the next token: a bar for each before and after the rule, and the cumulative probability,
// which decides top-p.
import { scaleLinear } from "d3-scale";
import { useEffect, useRef, useState } from "preact/hooks";
import { percent, share, short, visible } from "../../parts";
import "./candidates.css";
import type { Cut, Distribution, Ranked, Rule } from "./rule";

interface CandidatesProps {
  distribution: Distribution;
  rule: Rule;
  /** Tokens beyond the list, and their total probability before the rule. */
  rest: number;
  restPlain: number;
  busy: boolean;
  /** Append a candidate; null: nothing can be appended. */
  choose: ((candidate: Ranked) => void) | null;
}

const FIRST = 16;
const ROW = 30;

const CUTS: Record<Cut, string> = {
  temperature: "cut by temperature",
  "top-k": "cut by top-k",
  "top-p": "cut by top-p",
};

export function Candidates({ distribution, rule, rest, restPlain, busy, choose }: CandidatesProps) {
  const [all, setAll] = useState(false);
  const [at, setAt] = useState(0);
  const [hovered, setHovered] = useState<number | null>(null);
  const list = useRef<HTMLDivElement>(null);
  const shown = all ? distribution.candidates : distribution.candidates.slice(0, FIRST);
  const current = Math.min(at, shown.length - 1);
  const inspected = shown[hovered ?? current];
  const most = Math.max(...shown.map(({ plain, final }) => Math.max(plain, final)), 1e-9);
  const scale = scaleLinear([0, most], [0, 100]).nice(4);
  useEffect(() => setAt(0), [distribution.candidates[0]?.id, distribution.candidates.length]);
  const move = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: current + 1, ArrowUp: current - 1, Home: 0, End: shown.length - 1 };
    const next = steps[event.key];
    if (next === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const rank = Math.max(0, Math.min(shown.length - 1, next));
    setAt(rank);
    list.current?.querySelectorAll<HTMLElement>(".candidate")[rank]?.focus();
  };
  return (
    <div class="candidates" data-busy={busy}>
      <div class="heads" aria-hidden="true">
        <span>Token</span>
        <Axis scale={scale} />
        <span class="chance">Before</span>
        <span class="chance after">After</span>
        <span class="sum">
          <span>0</span>
          <span>Sum</span>
          <span>1</span>
        </span>
      </div>
      <div
        class="rows"
        role="group"
        aria-label="Candidates for the next token, the most likely first"
        onKeyDown={move}
        onPointerLeave={() => setHovered(null)}
        ref={list}
      >
        {shown.map((candidate) => (
          <button
            type="button"
            // Keyed by rank, so that rows stay in place: Chromium does not restyle elements that are moved and changed at once.
            key={candidate.rank}
            class="candidate"
            data-kept={candidate.kept}
            data-inspected={candidate === inspected}
            aria-label={inWords(candidate)}
            aria-disabled={choose === null}
            tabIndex={candidate.rank === current ? 0 : -1}
            onFocus={() => setAt(candidate.rank)}
            onPointerEnter={() => setHovered(candidate.rank)}
            onClick={() => choose?.(candidate)}
          >
            <span class="token word">
              <span class="text">{visible(candidate.token)}</span>
              <Obeys obeys={candidate.obeys} />
            </span>
            <span class="bars">
              <span class="before" style={{ width: `${scale(candidate.plain)}%` }} />
              <span class="after" style={{ width: `${scale(candidate.final)}%` }} />
            </span>
            <span class="chance number">{share(candidate.plain)}</span>
            <span class="chance number after">{candidate.cut ? <em>{candidate.cut}</em> : share(candidate.final)}</span>
            <span class="sum" />
          </button>
        ))}
        <Reached candidates={shown} rule={rule} />
        <Ranks count={shown.length} rule={rule} />
      </div>
      {(rest > 0 || shown.length < distribution.candidates.length) && (
        <p class="rest quiet">
          {shown.length < distribution.candidates.length && (
            <button type="button" onClick={() => setAll(true)}>
              Show {distribution.candidates.length - shown.length} more
            </button>
          )}
          {rest > 0 && `${rest.toLocaleString("en")} further tokens had ${share(restPlain)} together before the rule.`}
        </p>
      )}
      <output class="details number" aria-live="off">
        {inspected && <Details candidate={inspected} choose={choose !== null} />}
      </output>
    </div>
  );
}

function Axis({ scale }: { scale: ReturnType<typeof scaleLinear<number>> }) {
  const ticks = scale.ticks(4);
  return (
    <span class="axis number">
      {ticks.map((tick) => (
        <span style={{ left: `${scale(tick)}%` }}>{Math.round(100 * tick * 10) / 10} %</span>
      ))}
    </span>
  );
}

/** The cumulative probability as a staircase over the rows, and the threshold of top-p. */
function Reached({ candidates, rule }: { candidates: Ranked[]; rule: Rule }) {
  const height = candidates.length * ROW;
  const inside = candidates.filter(({ rank }) => rule.topK === null || rank < rule.topK);
  let before = 0;
  const stairs = inside
    .map(({ rank, reached }) => {
      const step = `L${100 * before},${rank * ROW}L${100 * reached},${rank * ROW}L${100 * reached},${(rank + 1) * ROW}`;
      before = reached;
      return step;
    })
    .join("");
  return (
    <svg class="reached" viewBox={`0 0 100 ${height}`} preserveAspectRatio="none" aria-hidden="true">
      <path class="area" d={`M0,0${stairs}L0,${inside.length * ROW}Z`} />
      <path class="stairs" d={`M0,0${stairs}`} />
      {rule.topP < 1 && <line class="limit" x1={100 * rule.topP} x2={100 * rule.topP} y1={0} y2={height} />}
    </svg>
  );
}

/** The line under the last rank that top-k keeps. */
function Ranks({ count, rule }: { count: number; rule: Rule }) {
  if (rule.topK === null || rule.topK >= count) return null;
  return (
    <div class="ranks" style={{ top: `${rule.topK * ROW}px` }} aria-hidden="true">
      <span>top-k {rule.topK}</span>
    </div>
  );
}

function Details({ candidate, choose }: { candidate: Ranked; choose: boolean }) {
  return (
    <>
      <strong class="word">{visible(candidate.token)}</strong>
      <span>rank {candidate.rank + 1}</span>
      <span>logit {short(candidate.logit, 4)}</span>
      <span>{percent(candidate.plain, 2)} before</span>
      <span>{percent(candidate.tempered, 2)} with temperature</span>
      <span>{candidate.cut ? CUTS[candidate.cut] : `${percent(candidate.final, 2)} after`}</span>
      {candidate.obeys !== null && <span>{candidate.obeys ? "obeys the rule" : "breaks the rule"}</span>}
      {choose && <span class="quiet">Click or Enter writes it.</span>}
    </>
  );
}

export function Obeys({ obeys }: { obeys: boolean | null }) {
  if (obeys === null) return null;
  return (
    <span class="obeys" data-obeys={obeys} title={obeys ? "Obeys the rule" : "Breaks the rule"}>
      {obeys ? "\u2713" : "\u2717"}
    </span>
  );
}

function inWords(candidate: Ranked): string {
  const parts = [
    `${visible(candidate.token)}`,
    `${share(candidate.plain)} before the rule`,
    candidate.cut ? CUTS[candidate.cut] : `${share(candidate.final)} after it`,
  ];
  if (candidate.obeys !== null) parts.push(candidate.obeys ? "obeys the recurrence" : "breaks the recurrence");
  return parts.join(", ");
}
