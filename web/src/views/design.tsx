// A hand-designed head: every weight can be edited; outputs and verdict follow while typing.
import { useMemo, useState } from "preact/hooks";
import type { ViewProps } from "./props";
import { useAsk } from "../asking";
import { Fault } from "../parts";
import type { Head, Refusal } from "../source";
import { Certificate } from "./design/certificate";
import { Flow } from "./design/flow";
import { Sequence, Story } from "./design/following";
import { useHistory } from "./design/history";
import { Toolbar } from "./design/toolbar";
import { designed, typed, type Edited, type Weights } from "./design/weights";
import "./design.css";

export function DesignView(props: ViewProps) {
  const { answer, refusal } = useAsk(props.source, "head", { model: props.card.name });
  const design = useMemo(() => (answer ? designed(answer, props.state.exercise) : null), [answer, props.state.exercise]);
  if (refusal) return <Fault refusal={refusal} />;
  // The answer is still another model's.
  if (!answer || !design || !props.edits) return <p class="quiet">Reading the design{"\u2026"}</p>;
  return <Design {...props} edits={props.edits} head={props.state.exercise ? { ...answer, why: {} } : answer} design={design} />;
}

type DesignProps = ViewProps & { edits: Edited; head: Head; design: Weights };

function Design({ source, store, state, card, run, edits, head, design }: DesignProps) {
  const history = useHistory(store, card.name, state.cells);
  const [hovered, setHovered] = useState<number | null>(null);
  const [refused, setRefused] = useState<Refusal | null>(null);
  const can = source.answers("check");
  const asked = { model: card.name, weights: edits.weights, text: state.text };
  const { answer: check, refusal, busy } = useAsk(source, "check", asked, source.typing);
  const first = head.has_cls ? 1 : 0;
  const judge = check?.certificate;
  const last = (check?.tokens.length ?? 1) - 1;
  const names = (check?.tokens ?? []).map((_, at) => (at < first ? "@CLS" : `@${at - first}`));
  const chosen = Math.min(state.pin ?? first, last);
  // The text stays that of the chosen position: a longer text would move the rows under the pointer.
  const followed = Math.min(hovered ?? chosen, last);
  const choose = (position: number) => store.set({ pin: position });

  const undo = (event: KeyboardEvent) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key !== "z" && key !== "y") return;
    event.preventDefault();
    if (key === "y" || event.shiftKey) history.redo();
    else history.undo();
  };
  return (
    <div class="design" onKeyDown={undo}>
      {judge && (
        <Certificate
          certificate={judge}
          head={head}
          busy={busy}
          stale={refusal !== null}
          look={can ? (sequence, letter) => store.set({ text: sequence, pin: letter + first }, true) : null}
        />
      )}
      {/* Errors in the text alone are shown above, by the page. */}
      {refusal && (edits.differs || run?.ask.text === state.text) && <Fault refusal={refusal} />}
      {refused && <Fault refusal={refused} />}
      {edits.faults.size > 0 && (
        <p class="stale" role="status">
          {edits.faults.size === 1 ? "A cell holds" : `${edits.faults.size} cells hold`} no number:{" "}
          {state.exercise ? "0" : "the design's"} is used.
        </p>
      )}
      <Toolbar
        history={history}
        design={design}
        weights={edits.weights}
        changes={edits.changed.size}
        resized={edits.resized}
        faults={edits.faults.size}
        live={can}
        exercise={state.exercise ? card.name : null}
        refuse={setRefused}
      />
      {check && (
        <>
          <Sequence {...{ check, names, first, choose }} followed={chosen} />
          <Story {...{ check, names, first }} followed={chosen} />
          <Flow
            {...{ head, check, edits, names, first, followed, busy, choose }}
            stale={refusal !== null}
            cells={state.cells}
            readOnly={!can}
            hover={setHovered}
            type={(changes, typing) => history.change(typed(edits.base, state.cells, changes), typing)}
            settle={history.settle}
          />
          <p class="hints">
            {can && (
              <span>
                Arrow keys move between cells, typing replaces, F2 edits, Enter moves down, Tab to the right, Esc reverts,
                Ctrl+Z undoes. A block from a spreadsheet can be pasted.
              </span>
            )}
            <span class="signs">
              <i data-sign="minus" /> below 0 <i data-sign="plus" /> above 0 <i data-sign="edited" /> edited
            </span>
          </p>
        </>
      )}
    </div>
  );
}
