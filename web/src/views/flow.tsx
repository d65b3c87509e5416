// The whole computation of a language model for a text: what heads and feed-forward networks add to the logit of the answer.
import { useMemo, useRef, useState } from "preact/hooks";
import type { ViewProps } from "./props";
import { useAsk } from "../asking";
import { Awaited, share, visible } from "../parts";
import type { Refusal, Run, Source } from "../source";
import { UNCHANGED } from "../state";
import "./flow.css";
import { chosenStack } from "./attention/stack";
import { Diagram } from "./flow/diagram";
import { inWords, piecesOf, type Piece } from "./flow/layout";
import { NetworkPanel } from "./flow/network";
import { Likeliest } from "./what-if";

/** Heads that are shown alone, and answers that can be chosen. */
const [HEADS, ANSWERS] = [10, 5];

export function FlowView(props: ViewProps) {
  if (!props.run) return <Awaited busy={props.busy} />;
  return <Shown {...props} run={props.run} />;
}

function Shown({ source, store, state, run, told }: ViewProps & { run: Run }) {
  const root = useRef<HTMLDivElement>(null);
  const [chosen, setChosen] = useState<number | null>(null);
  const { place, target } = state;
  const about = { ask: run.ask, place, target, other: null };
  const parts = useAsk(source, "contributions", about);
  const what = useAsk(source, "whatif", { ...about, ...UNCHANGED, patch: null });
  const isOwn = ({ of }: { of: { ask: Run["ask"] } | null }) => JSON.stringify(of?.ask) === JSON.stringify(run.ask);
  const answer = parts.answer && parts.refusal === null && isOwn(parts) ? parts.answer : null;
  const outcomes = what.answer && isOwn(what) ? what.answer.outcomes.slice(0, ANSWERS) : [];
  const pieces = useMemo(() => (answer ? piecesOf(answer.parts, HEADS) : []), [answer]);
  const stack = chosenStack(run, state);
  const at = Math.min(place ?? run.place ?? Infinity, run.tokens.length - 1);
  const name = answer?.name ?? run.said.classes[0]?.[0] ?? "";
  const network = answer && pieces.find(({ kind, layer }) => kind === "network" && layer === chosen);
  const open = (piece: Piece) => {
    if (piece.kind === "network") return setChosen(piece.layer);
    store.set({ view: "attention", part: stack!.part, layer: piece.layer!, head: piece.head!, pin: at, key: null }, true);
  };
  const close = () => {
    root.current?.querySelector<HTMLElement>('[aria-pressed="true"].part')?.focus();
    setChosen(null);
  };
  if (parts.refusal) return <Missing {...{ source, store, state }} refusal={parts.refusal} />;
  return (
    <div class="flow logit" ref={root} data-busy={parts.busy}>
      {told && told !== "looking" && !told.head && <p class="quiet">No head stands out for this text, so all parts are shown.</p>}
      <p class="sentence" role="status">{answer ? inWords(visible(name), answer.total, pieces) : "Computing what each part adds\u2026"}</p>
      <div class="sides" data-two={network !== null && network !== undefined}>
        <section class="panel" aria-label="What adds to the answer">
          <div class="answers" role="group" aria-label="The next token">
            <span class="quiet">After <span class="word">{visible(run.tokens[at] ?? "")}</span>:</span>
            {outcomes.map(({ id, name, before }) => (
              <button type="button" aria-pressed={id === (answer?.target ?? target)} disabled={!source.answers("contributions")} onClick={() => store.set({ target: id }, true)}>
                <span class="word">{visible(name)}</span> <span class="number">{share(before)}</span>
              </button>
            ))}
          </div>
          {stack && <Diagram {...{ source, run, pieces, name, chosen, open }} part={stack.part} place={at} total={answer?.total ?? 0} />}
          <p class="legend quiet">
            <span><i data-sign="plus" /> raises the logit</span> <span><i data-sign="minus" /> lowers it; as wide as what it adds</span>{" "}
            <span>Left: heads (29.1 is layer 29, head 1), and the tokens that the strongest read. Right: MLPs. A click opens one.</span>{" "}
            <span>A part that adds little by itself may matter to later ones: What if removes it.</span>
          </p>
        </section>
        {network && <NetworkPanel {...{ source, run, close }} place={at} target={answer.target} piece={network} key={network.layer} />}
      </div>
    </div>
  );
}

/** Instead of the view, for a model or a request without such a sum. */
function Missing({ source, store, state, refusal }: Pick<ViewProps, "store" | "state"> & { source: Source; refusal: Refusal }) {
  const live = source.answers("contributions");
  return (
    <div class="flow logit" role="status">
      <p>
        {live
          ? `What each part adds to the logit cannot be computed here: got ${refusal.got}; this view needs ${refusal.expected}.`
          : "Not in this file: it was saved while another text or position was shown."}
      </p>
      <p class="ways">
        {live && (state.place ?? state.target) !== null && <Likeliest {...{ store }} />}
        <button type="button" onClick={() => store.set({ view: "attention" }, true)}>Show attention</button>
      </p>
    </div>
  );
}
