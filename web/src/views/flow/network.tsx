// What one feed-forward network adds: the tokens that it raises and lowers most, and the neurons with the largest effects.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useAsk } from "../../asking";
import { Awaited, Title, capital, visible } from "../../parts";
import type { Run, Source } from "../../source";
import { shown } from "../attention/stack";
import { added, nameOf, tenths, type Piece } from "./layout";

interface NetworkPanelProps {
  source: Source;
  run: Run;
  place: number;
  target: number;
  piece: Piece;
  close: () => void;
}

export function NetworkPanel({ source, run, place, target, piece, close }: NetworkPanelProps) {
  const panel = useRef<HTMLElement>(null);
  const layer = piece.layer!;
  const { answer, refusal, busy } = useAsk(source, "ffn", { ask: run.ask, place, target, layer });
  const found = answer?.layer === layer ? answer : null;
  // The panel may be below the diagram.
  useEffect(() => panel.current?.focus(), [layer]);
  const name = capital(nameOf(piece));
  return (
    <section class="panel network" ref={panel} tabIndex={-1} aria-label={name} data-busy={busy} onKeyDown={(event) => event.key === "Escape" && close()}>
      <div class="row">
        <Title title={name}>
          {found ? <>Adds <strong class="number">{added(found.value)}</strong> to the logit of <span class="word">{visible(found.name)}</span>.</> : "\u2026"}
        </Title>
        <button type="button" onClick={close}>Close</button>
      </div>
      {refusal && <p class="quiet">{source.answers("ffn") ? `${refusal.got}: expected ${refusal.expected}.` : "Not in this file: open the model with \u201Cglassformer explore\u201D."}</p>}
      {!found && !refusal && <Awaited busy />}
      {found && (
        <div class="added">
          <Values title="Raises most" rows={found.raised.map(({ name, value }) => [<span class="word">{shown(name, 14)}</span>, value])} />
          <Values title="Lowers most" rows={found.lowered.map(({ name, value }) => [<span class="word">{shown(name, 14)}</span>, value])} />
          {found.neurons && (
            <Values
              title="Strongest neurons"
              note="What each adds to this logit: its activation times its effect."
              rows={found.neurons.map(({ number, activation, value }) => [<>{number} <span class="quiet">is {tenths(activation)}</span></>, value])}
            />
          )}
        </div>
      )}
    </section>
  );
}

function Values({ title, note, rows }: { title: string; note?: string; rows: [ComponentChildren, number][] }) {
  return (
    <div>
      <h3>{title}</h3>
      {note && <p class="quiet">{note}</p>}
      <ol>
        {rows.map(([name, value]) => (
          <li>
            <span>{name}</span>
            <span class="number" data-sign={value < 0 ? "minus" : "plus"}>{added(value)}</span>
          </li>
        ))}
      </ol>
    </div>
  );
}
