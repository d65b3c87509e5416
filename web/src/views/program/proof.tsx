// The verdict on a compiled program, its size, and a text on which it fails.
import { Verdict, capital, short } from "../../parts";
import type { Program, ProgramFailure, Proof as Message, Refusal } from "../../source";
import { WORDS, count, ground } from "../design/certificate";

interface ProofProps {
  program: Program;
  proof: Message | null;
  refusal: Refusal | null;
  /** Show a text, following one of its positions. */
  look: ((text: string, position: number) => void) | null;
}

export function Proof({ program, proof, refusal, look }: ProofProps) {
  const layers = (program.stages.length - 2) / 2;
  const sizes: [name: string, value: string, hint: string][] = [
    ["Layers", count(layers), "Each has attention and, where functions are looked up, a ReLU network"],
    ["Heads", count(program.heads.length), "In all layers together"],
    ["Width", count(program.stream[0]?.[0]?.length ?? 0), "Coordinates of the residual stream"],
    ["Parameters", count(program.num_parameters), "All numbers in the weights, zeros among them"],
  ];
  if (proof) {
    const allowed = proof.allowed === null ? "any" : short(proof.allowed);
    sizes.push(
      ["Largest error", proof.largest_error === null ? "not finite" : short(proof.largest_error), `Among the sequences that were run; allowed: ${allowed}`],
      ["Bound on the error", proof.bound === null ? "none known" : short(proof.bound), "For any sequence, rounding included"],
    );
  }
  const failure = proof?.counterexample;
  return (
    <section class="proof panel" data-verdict={proof?.verdict ?? "open"} aria-label="Certificate">
      {proof ? (
        <Verdict mark={WORDS[proof.verdict].mark} title={WORDS[proof.verdict].title}>
          <p>
            {basis(proof)}, in {proof.dtype}
            {proof.reason && `: ${proof.reason}`}
          </p>
        </Verdict>
      ) : (
        <Verdict mark={"\u00B7"} title={refusal ? "Not verified" : "Verifying\u2026"}>
          <p>{refusal ? `${capital(refusal.got)}; expected ${refusal.expected}. ${refusal.fix}` : "Running sequences, the shortest first"}</p>
        </Verdict>
      )}
      <dl>
        {sizes.map(([name, value, hint]) => (
          <div title={hint}>
            <dt>{name}</dt>
            <dd class="number">{value}</dd>
          </div>
        ))}
      </dl>
      {failure && <Counterexample {...{ failure, look }} of="the transformer" />}
    </section>
  );
}

interface CounterexampleProps extends Pick<ProofProps, "look"> {
  failure: ProgramFailure;
  /** What fails. */
  of: string;
}

export function Counterexample({ failure: { text, position, found, wanted }, of, look }: CounterexampleProps) {
  return (
    <div class="counterexample">
      <span>
        Counterexample <code>{text}</code>: at position {position} {of} gives <code>{found}</code>, expected <code>{wanted}</code>
      </span>
      {look && (
        <button type="button" onClick={() => look(text, position)}>
          Show {text}
        </button>
      )}
    </div>
  );
}

/** What a verdict is based on; sequences that differ in tokens that are alike for the program are run once. */
function basis(proof: Message): string {
  if (proof.rests_on !== "every sequence" || proof.num_different === proof.num_possible) return ground(proof);
  return `${ground({ ...proof, num_possible: proof.num_different })} (${count(proof.num_possible)} with tokens that are alike)`;
}
