// One position's computation in words.
import { Mark, Positions, percent, short } from "../../parts";
import type { Check } from "../../source";

interface FollowingProps {
  check: Check;
  names: string[];
  followed: number;
  /** The first position whose output is judged. */
  first: number;
  choose: (position: number) => void;
}

/** The sequence as buttons. The pressed position is marked in every table. */
export function Sequence({ check, names, followed, first, choose }: FollowingProps) {
  return (
    <Positions>
      {check.tokens.map((token, position) => {
        const right = position >= first ? rightAt(check, position - first) : null;
        const verdict = right === null ? "" : right ? ", correct" : ", wrong";
        return (
          <button
            type="button"
            aria-pressed={position === followed}
            aria-label={`${token} at ${names[position]}${verdict}`}
            onClick={() => choose(position)}
          >
            <span class="word">{token}</span>
            <small>{names[position]}</small>
            <Mark right={right} />
          </button>
        );
      })}
    </Positions>
  );
}

export function Story({ check, names, followed, first }: Omit<FollowingProps, "choose">) {
  const weights = check.weights.cells[followed] ?? [];
  const scores = check.scores.cells[followed] ?? [];
  const order = weights.map((_, key) => key).sort((a, b) => (weights[b] ?? 0) - (weights[a] ?? 0));
  const main = order.filter((key) => (weights[key] ?? 0) >= 0.005).slice(0, 4);
  const rest = order.length - main.length;
  const kept = main.reduce((sum, key) => sum + (weights[key] ?? 0), 0);
  const output = check.outputs.cells[followed] ?? [];
  const judged = followed - first;
  const right = judged >= 0 ? rightAt(check, judged) : null;
  const targets = check.targets.cells[judged] ?? [];
  const off = Math.max(0, ...output.map((value, at) => Math.abs(value - (targets[at] ?? value))));
  const word = (position: number) => (
    <>
      <b class="word">{check.tokens[position]}</b>
      <small>{names[position]}</small>
    </>
  );
  return (
    <p class="story">
      {word(followed)} compares its query with every key. {main.length === 1 ? "The best match is " : "It matches "}
      {main.map((key, at) => (
        <>
          {at > 0 && (at === main.length - 1 ? " and " : ", ")}
          {word(key)} (score {short(scores[key] ?? 0)})
        </>
      ))}
      . Softmax turns the scores into weights:{" "}
      {main.map((key, at) => (
        <>
          {at > 0 && ", "}
          {percent(weights[key] ?? 0)} {word(key)}
        </>
      ))}
      {rest > 0 && `, ${kept > 0.98 ? "almost nothing" : percent(1 - kept)} for the rest`}. The values, weighted by these, add up to{" "}
      <code>{output.map((value) => short(value)).join(" ")}</code>
      {right === null ? (
        <>, which is not judged.</>
      ) : (
        <>
          , which reads <b>{check.reads[judged]}</b>:{" "}
          <b class={right ? "good" : "wrong"}>{right ? "\u2713 as expected" : `\u2717 expected ${check.wanted[judged]}`}</b>
          {off > 0 && `, with an error of ${short(off)}`}.
        </>
      )}
    </p>
  );
}

/** Whether a judged output is correct. */
export function rightAt(check: Check, judged: number): boolean {
  return check.right[judged] === true;
}
