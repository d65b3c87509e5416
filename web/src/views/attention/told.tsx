// The sentence about the head that stands out for a text.
import { percent, short, visible } from "../../parts";
import type { Run, Source } from "../../source";
import { UNCHANGED, type Store } from "../../state";
import { Word } from "./reading";
import { named } from "./stack";
import { LEAST, type Telling, type Told } from "./telling";

interface ToldProps {
  source: Source;
  store: Store;
  run: Run;
  told: Told | "looking";
}

export function ToldSentence({ source, store, run, told }: ToldProps) {
  const looking = told === "looking";
  return (
    <div class="told" aria-live="polite" data-busy={looking}>
      {looking && <p class="quiet">{"Looking for a head that stands out for this text\u2026"}</p>}
      {!looking && told.head && <Found {...{ source, store, run, told }} head={told.head} />}
      {!looking && !told.head && <p>{nothingIn(told)}</p>}
    </div>
  );
}

function Found({ source, store, run, told, head }: ToldProps & { told: Told; head: Telling }) {
  const { layer, pin, key, weight, added } = head;
  const part = run.attentions[0]!.part;
  const remove = () => store.set({ ...UNCHANGED, view: "whatif", removed: [{ part, layer, head: head.head }] }, true);
  const word = (place: number) => <Word text={run.tokens[place] ?? ""} place={place} />;
  const does =
    added === null || told.answer === null ? (
      "It is an induction head: it looks for what followed the same token before."
    ) : (
      <>
        It adds {short(added, 2)} to the logit of <span class="token">{visible(told.answer)}</span>, the most among heads
        with {percent(LEAST.weight, 0)} or more of their weight on one earlier token. Flow shows all that adds to it.
      </>
    );
  return (
    <>
      <p>
        <strong>
          Layer {layer} head {head.head} at {word(pin)} reads {word(key)} with {percent(weight, 0)} of its weight.
        </strong>{" "}
        {does}
      </p>
      {source.answers("whatif") && (
        <button type="button" aria-label={`Remove ${named(head)} in What if`} onClick={remove}>
          Remove it in What if
        </button>
      )}
    </>
  );
}

function nothingIn({ answer }: Told): string {
  const reads = `reads a token between the first and the last with ${percent(LEAST.weight, 0)} of its weight or more`;
  if (answer === null) return `No head stands out for this text: no induction head ${reads}. Choose one among the thumbnails.`;
  return `No head stands out for this text: none that ${reads} adds ${LEAST.added} or more to the logit of \u201C${visible(answer)}\u201D. Choose one among the thumbnails.`;
}
