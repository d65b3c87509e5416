// A program to be written by the reader: a text with a blank, and whether it gives what the task asks for on every sequence.
import { useAsk } from "../../asking";
import { download } from "../../header";
import { Fault, Title, Verdict } from "../../parts";
import { WORDS, ground } from "../design/certificate";
import type { ViewProps } from "../props";
import { Outputs } from "./outputs";
import { Counterexample } from "./proof";

/** What was expected where something else was found, which may look the same. */
const told = (wanted: string, found: string | undefined): string =>
  wanted === found ? `${wanted} (one is a token, the other a number)` : wanted;

export function Exercise({ source, store, state, card, run }: ViewProps) {
  const program = state.attempt ?? card.blank;
  const can = source.answers("attempt");
  const asked = { model: card.name, program, text: run?.ask.text ?? card.text };
  const { answer, of, refusal, busy } = useAsk(source, "attempt", asked, source.typing);
  // A verdict stands only beside the text that it is about.
  const judged = refusal === null && of?.program === program ? answer : null;
  const failure = judged?.counterexample;
  const fault = (can ? refusal : null) ?? judged?.fault;
  const verdict = judged?.verdict ?? (refusal ? "undecided" : "open");
  const words = verdict === "open" ? { mark: "\u00B7", title: "Judging\u2026" } : WORDS[verdict];
  let basis = "Running sequences, the shortest first";
  if (fault && !failure) basis = "Nothing is proved or refuted before the program has a value for every text";
  else if (judged) basis = ground(judged);
  else if (!can) basis = `This file does not judge programs: open it with \u2018glassformer explore ${card.name}\u2019, or download your answer for \u2018glassformer course grade\u2019`;
  const write = (attempt: string | null) => store.set({ attempt }, attempt === null || "attempt");
  const save = () => {
    const answered = { lab: "page", exercise: card.name, answer: program };
    download(new Blob([`${JSON.stringify(answered, null, 2)}\n`], { type: "application/json" }), `${card.name}.json`);
  };
  return (
    <div class="program" data-busy={busy}>
      <section class="proof panel" data-verdict={verdict} aria-label="Certificate">
        <Verdict mark={words.mark} title={words.title}>
          <p>{basis}</p>
        </Verdict>
        {failure && <Counterexample failure={{ ...failure, wanted: told(failure.wanted, failure.found) }} of="the program" look={(text, pin) => store.set({ text, pin }, true)} />}
      </section>
      <section class="panel" aria-label="Your program">
        <Title title="Your program">
          Write what is missing in place of <code>___</code>, or all of it in your own way, so that it gives what the model
          says, for every text. The last line is the program.
        </Title>
        <textarea
          aria-label="Your program"
          rows={Math.max(6, program.split("\n").length + 1)}
          spellcheck={false}
          autocapitalize="off"
          value={program}
          onInput={(event) => write(event.currentTarget.value)}
        />
        <p class="hints">
          <code>tokens indices everything</code> <code>select(keys, queries, operator.eq)</code>{" "}
          <code>selector_width(selector)</code> <code>aggregate(selector, values, default)</code>{" "}
          <code>pick(selector, values, default)</code> <code>{"+ - * / // % == != < <= > >= & | ~"}</code>
        </p>
        <div class="bar tools" role="group" aria-label="Answer">
          <button type="button" disabled={state.attempt === null} onClick={() => write(null)}>
            Start again
          </button>
          <button type="button" onClick={save} title="A file that 'glassformer course grade' reads">
            Download {card.name}.json
          </button>
        </div>
      </section>
      {fault && <Fault refusal={fault} />}
      {judged?.outputs && (
        <Outputs
          program={{ ...judged, outputs: judged.outputs, definition: judged.definition?.map((wanted, at) => told(wanted, judged.outputs?.[at])) ?? null }}
          tokens={judged.tokens}
          followed={Math.min(state.pin ?? Infinity, judged.tokens.length - 1)}
          choose={(pin) => store.set({ pin })}
        />
      )}
    </div>
  );
}
