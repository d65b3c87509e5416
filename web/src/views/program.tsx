// A program compiled into a transformer: its graph, its heads, its residual stream by variables, and its proof.
import { useMemo, useState } from "preact/hooks";
import type { ViewProps } from "./props";
import { useAsk } from "../asking";
import { Awaited, Fault, Scroll, Title } from "../parts";
import type { Program, Run } from "../source";
import { Exercise } from "./program/exercise";
import { Graph } from "./program/graph";
import { Heads } from "./program/heads";
import { laidOut } from "./program/layout";
import { Outputs } from "./program/outputs";
import { Proof } from "./program/proof";
import { Coordinates, Variables } from "./program/stream";
import "./program.css";

/** The widest graph, in pixels, that leaves room for the heads beside it. */
const NARROW = 640;

export function ProgramView(props: ViewProps) {
  return props.state.exercise ? <Exercise {...props} /> : <Shown {...props} />;
}

function Shown({ source, store, state, card, run, busy }: ViewProps) {
  const asked = useAsk(source, "program", run && { run: run.run });
  const proved = useAsk(source, "proof", { model: card.name });
  const [lit, setLit] = useState<string | null>(null);
  // An answer belongs to the run that it was asked for: while another text is awaited, both stay.
  const [last, setLast] = useState<{ program: Program; run: Run } | null>(null);
  if (run && asked.answer && asked.of?.run === run.run && last?.program !== asked.answer) setLast({ program: asked.answer, run });
  const sources = JSON.stringify(last?.program.parts.map((part) => part.sources) ?? []);
  const shape = useMemo(() => (sources === "[]" ? null : laidOut(JSON.parse(sources))), [sources]);
  if (asked.refusal) return <Fault refusal={asked.refusal} />;
  if (!last) return <Awaited busy={busy || asked.busy} />;
  const { program, run: of } = last;
  const followed = Math.min(state.pin ?? of.tokens.length - 1, of.tokens.length - 1);
  const choose = (position: number) => store.set({ pin: position });
  const shared = { program, tokens: of.tokens, followed, choose, lit, light: setLit };
  return (
    <div class="program" data-busy={asked.busy || busy}>
      <Proof
        program={program}
        proof={proved.answer}
        refusal={proved.refusal}
        look={source.answers("run") ? (text, position) => store.set({ text, pin: position }, true) : null}
      />
      <Outputs {...shared} />
      <div class="sides" data-beside={shape !== null && shape.width <= NARROW}>
        {shape && <Graph {...shared} shape={shape} />}
        <div class="column">
          {card.code !== "" && <Code text={card.code} />}
          <Heads {...shared} />
          <Variables {...shared} />
        </div>
      </div>
      <Coordinates {...shared} />
    </div>
  );
}

function Code({ text }: { text: string }) {
  return (
    <section class="panel" aria-label="In Python">
      <Title title="In Python">What is compiled; the last line is the program.</Title>
      <Scroll label="In Python">
        <pre class="code">{text}</pre>
      </Scroll>
    </section>
  );
}
