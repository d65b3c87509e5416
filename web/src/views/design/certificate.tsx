// The certificate of the weights: the verdict, its evidence, its figures, and a sequence on which they fail.
import type { Certificate as Message, Head } from "../../source";
import { Verdict, capital, short } from "../../parts";

export const WORDS = {
  holds: { mark: "\u2713", title: "Holds" },
  fails: { mark: "\u2717", title: "Fails" },
  undecided: { mark: "?", title: "Undecided" },
} as const;

interface CertificateProps {
  certificate: Message;
  head: Head;
  /** Whether the answer to other weights is awaited. */
  busy: boolean;
  /** Whether this is still the certificate of earlier weights. */
  stale: boolean;
  /** Show a sequence, following one of its letters. */
  look: ((sequence: string, letter: number) => void) | null;
}

export function Certificate({ certificate, head, busy, stale, look }: CertificateProps) {
  const { verdict } = certificate;
  const failure = verdict === "undecided" ? certificate.undecided : certificate.counterexample;
  const words = WORDS[verdict];
  const figures: [name: string, value: string, hint: string][] = [
    [
      "Correct outputs",
      `${count(certificate.num_right)} of ${count(certificate.num_outputs)}`,
      "Among the sequences that were run",
    ],
    ["Largest error", short(certificate.largest_error), "The largest difference between an output and the expected one"],
    [
      "Margin",
      certificate.margin === null ? "none" : short(certificate.margin),
      "In the worst case, the best wanted key's score minus the best other key's",
    ],
    [
      "Bound on the error",
      certificate.bound === null ? "none known" : short(certificate.bound),
      "No sequence can have a larger error: this follows from the scores and values of all pairs of positions",
    ],
  ];
  return (
    <section class="certificate panel" data-verdict={verdict} data-busy={busy} data-stale={stale} aria-label="Certificate">
      <Verdict mark={words.mark} title={words.title}>
        <p>{verdict === "fails" && `${why(certificate)}. `}{ground(certificate)}</p>
      </Verdict>
      <dl>
        {figures.map(([name, value, hint]) => (
          <div title={hint}>
            <dt>{name}</dt>
            <dd class="number">{value}</dd>
          </div>
        ))}
      </dl>
      <p class="task">
        <strong>{sentence(head.summary)}</strong>
        <span class="quiet">
          What has to hold, for {certificate.covers}: {certificate.criterion}.
        </span>
      </p>
      {failure && (
        <div class="counterexample">
          <span>
            {verdict === "undecided" ? "Rounding decides" : "Counterexample"}{" "}
            <span class="sequence word">
              {[...failure.sequence].map((letter, at) => (at === failure.position ? <mark>{letter}</mark> : letter))}
            </span>
            : at @{failure.position} the head gives <code>{vector(failure.output)}</code>, expected{" "}
            <code>{vector(failure.target)}</code>
            {verdict === "undecided" && certificate.rounding !== null && (
              <>
                ; computed in another order it may be off by <code>{short(certificate.rounding)}</code>
              </>
            )}
          </span>
          {look && (
            <button type="button" onClick={() => look(failure.sequence, failure.position)}>
              Show {failure.sequence}
            </button>
          )}
        </div>
      )}
    </section>
  );
}

/** What a refuted certificate lacks. */
function why({ num_right, num_outputs, largest_error, criterion }: Message): string {
  const lacks =
    num_right < num_outputs
      ? `${count(num_outputs - num_right)} of ${count(num_outputs)} outputs are wrong`
      : `Each output reads right, but one is off by ${short(largest_error)}`;
  return `${lacks}. Required: ${criterion}`;
}

type Ground = Pick<Message, "verdict" | "rests_on" | "num_checked" | "num_possible">;

/** What a verdict is based on, in words. */
export function ground(certificate: Ground): string {
  const [run, all] = [count(certificate.num_checked), count(certificate.num_possible)];
  if (certificate.verdict === "fails") return `Refuted by the counterexample; ${run} of ${all} sequences were run`;
  const outcome = certificate.verdict === "holds" ? "Proved" : "Neither proved nor refuted";
  switch (certificate.rests_on) {
    case "every sequence":
      return `${outcome} by every sequence: ${run} of ${all} run`;
    case "the listed examples":
      return `${outcome} by all ${run} listed examples; others were not run`;
    case "the bound":
      return `${outcome} by the bound for all ${all} sequences; ${run} of them were also run`;
    default:
      return `${outcome}: ${run} of ${all} sequences were run`;
  }
}

export const count = (number: number): string => (number < 1e12 ? number.toLocaleString("en") : number.toExponential(2));
const vector = (numbers: number[]): string => numbers.map((each) => short(each)).join(" ");
const sentence = (text: string): string => {
  const first = capital(text);
  return /[.!?]$/.test(first) ? first : `${first}.`;
};
