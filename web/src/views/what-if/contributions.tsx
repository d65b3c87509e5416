// The parts whose sum is the chosen logit, or the difference of two, as bars on both sides of zero.
import { useState } from "preact/hooks";
import type { Contribution, Contributions } from "../../source";
import { signed } from "../attention/reading";
import { letter } from "../experts/names";

const FIRST = 6;

export function ContributionBars({ contributions }: { contributions: Contributions }) {
  const [all, setAll] = useState(false);
  const parts = [...contributions.parts].sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
  const shown = all ? contributions.parts : parts.slice(0, FIRST);
  const rest = all ? [] : parts.slice(FIRST);
  const others = rest.reduce((sum, { value }) => sum + value, 0);
  const most = Math.max(1e-9, Math.abs(others), ...shown.map(({ value }) => Math.abs(value)));
  return (
    <div class="contributions">
      <ol aria-label="Parts of the logit">
        {shown.map((part) => (
          <Row name={named(part)} value={part.value} most={most} />
        ))}
        {rest.length > 0 && <Row name={`${rest.length} smaller ones`} value={others} most={most} quiet />}
        <li class="total">
          <span>Sum</span>
          <span class="number">{inHundredths(contributions.total)}</span>
        </li>
      </ol>
      {parts.length > FIRST && (
        <button type="button" onClick={() => setAll(!all)}>
          {all ? "Show the largest" : `Show all ${parts.length} in the model's order`}
        </button>
      )}
    </div>
  );
}

function Row({ name, value, most, quiet }: { name: string; value: number; most: number; quiet?: boolean }) {
  const width = (50 * Math.abs(value)) / most;
  return (
    <li>
      <span class={quiet ? "quiet" : ""}>{name}</span>
      <span class="signed-bar" aria-hidden="true">
        <i data-sign={value < 0 ? "minus" : "plus"} style={{ width: `${width}%`, left: `${value < 0 ? 50 - width : 50}%` }} />
      </span>
      <span class="number">{signed(value)}</span>
    </li>
  );
}

/** With two decimals, as most parts have, also from 10 on. */
export const inHundredths = (value: number): string => `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toFixed(2)}`;

/** A part's name as elsewhere on the page, where experts are letters. */
const named = ({ name, kind, layer, number }: Contribution): string =>
  kind === "expert" && number !== null
    ? `layer ${layer}, expert ${letter(number)}`
    : name.replace(/^(layer \d+) /, "$1, ").replace("cross-attention ", "cross ").replace(/\bffn$/, "MLP");
