// The next token's or the class's probabilities before and after the changes, as paired bars.
import { useRef, useState } from "preact/hooks";
import { share, visible } from "../../parts";
import type { WhatIf } from "../../source";
import { shownOutcomes } from "./edits";

interface OutcomesProps {
  answer: WhatIf;
  busy: boolean;
  /** Choose what the other panels are about; null: it cannot be chosen. */
  choose: ((id: number) => void) | null;
}

const FIRST = 6;

export function Outcomes({ answer, busy, choose }: OutcomesProps) {
  const [all, setAll] = useState(false);
  const list = useRef<HTMLDivElement>(null);
  const shown = shownOutcomes(answer, all ? answer.outcomes.length : FIRST);
  const most = Math.max(...shown.map(({ before, after }) => Math.max(before, after)), 1e-9);
  const width = (value: number) => ({ width: `${(100 * value) / most}%` });
  const current = Math.max(0, shown.findIndex(({ id }) => id === answer.target));
  const move = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: current + 1, ArrowUp: current - 1, Home: 0, End: shown.length - 1 };
    const next = shown[steps[event.key] ?? -1];
    if (!next || !choose || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    choose(next.id);
    list.current?.querySelectorAll<HTMLElement>(".outcome")[shown.indexOf(next)]?.focus();
  };
  const hidden = answer.outcomes.length - shown.length;
  return (
    <div class="outcomes" data-busy={busy}>
      <div class="heads-of" aria-hidden="true">
        <span>{answer.kind === "class" ? "Class" : "Token"}</span>
        <span />
        <span>Before</span>
        <span>After</span>
      </div>
      <div
        class="rows"
        role="radiogroup"
        aria-label={`${answer.kind === "class" ? "Classes" : "Next tokens"}, before and after`}
        onKeyDown={move}
        ref={list}
      >
        {shown.map(({ id, name, before, after }, rank) => (
          <button
            type="button"
            role="radio"
            key={rank}
            class="outcome"
            aria-checked={id === answer.target}
            aria-label={`${visible(name)}: ${share(before)} before, ${share(after)} after`}
            tabIndex={rank === current ? 0 : -1}
            aria-disabled={choose === null}
            onClick={() => choose?.(id)}
          >
            <span class="word">{visible(name)}</span>
            <span class="bars">
              <span class="before" style={width(before)} />
              <span class="after" style={width(after)} />
            </span>
            <span class="number quiet">{share(before)}</span>
            <span class="number">{share(after)}</span>
          </button>
        ))}
      </div>
      {(hidden > 0 || answer.rest > 0) && (
        <p class="quiet rest">
          {hidden > 0 && (
            <button type="button" onClick={() => setAll(true)}>
              Show {hidden} more
            </button>
          )}
          {answer.rest > 0 &&
            `${answer.rest.toLocaleString("en")} further ones: ${share(answer.rest_before)} before, ${share(answer.rest_after)} after.`}
        </p>
      )}
    </div>
  );
}
