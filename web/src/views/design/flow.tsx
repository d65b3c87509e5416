// The head as a diagram: tokens on the left; keys, queries and values under the matrices that make them.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { useWidth } from "../../measuring";
import { Bar, percent } from "../../parts";
import type { Check, Head, Numbers } from "../../source";
import { rightAt } from "./following";
import { Grid, type GridProps } from "./grid";
import { NumberTable, type TableProps } from "./table";
import { brief, sizesOf, type Edited, type Name } from "./weights";
import "./flow.css";

/** Pixels from one cell to the next, as in flow.css. */
const CELL = 27;

interface FlowProps {
  head: Head;
  check: Check;
  edits: Edited;
  cells: Record<string, string>;
  names: string[];
  first: number;
  followed: number;
  readOnly: boolean;
  busy: boolean;
  /** Whether the numbers are still those of earlier weights. */
  stale: boolean;
  type: GridProps["type"];
  settle: () => void;
  choose: (position: number) => void;
  hover: (position: number | null) => void;
}

export function Flow(props: FlowProps) {
  const { head, check, edits, names, followed, first, busy, choose, hover } = props;
  const { qk, pos } = sizesOf(edits.weights);
  const places = check.tokens.map((token, at) => (names[at] === `@${token}` ? token : `${token}${names[at]}`));
  const weights = check.weights.cells[followed] ?? [];
  const scores = check.scores.cells[followed] ?? [];
  const best = weights.indexOf(Math.max(...weights));
  const usedBy = (position: number) =>
    new Set((check.inputs.cells[position] ?? []).flatMap((value, input) => (value === 0 ? [] : [input])));
  const inputs = inputNames(head, check, edits);
  const columns: Record<Name, string[]> = {
    Km: numbered(qk),
    Qm: numbered(qk),
    Vm: check.V.columns,
    pos: inputs.slice(inputs.length - pos),
  };
  const rows: Record<Name, string[]> = { Km: inputs, Qm: inputs, Vm: inputs, pos: positionNames(head, edits) };
  const sheet = (name: Name, used: Set<number>) => {
    const matrix = edits.weights[name];
    const base = edits.base[name];
    if (!matrix || !base) return null;
    return (
      <>
        <p class="formula name">
          {name} {!props.readOnly && <span class="quiet">type to change</span>}
        </p>
        <Grid
          name={name}
          rows={rows[name]}
          columns={columns[name]}
          matrix={matrix}
          base={base}
          cells={props.cells}
          changed={edits.changed}
          faults={edits.faults}
          used={used}
          readOnly={props.readOnly}
          type={props.type}
          settle={props.settle}
        />
      </>
    );
  };
  const computed = (label: string, { columns, cells }: Numbers, more: Partial<TableProps> = {}) => (
    <NumberTable label={label} rows={places} columns={columns} matrix={cells} row={followed} {...{ choose, hover }} {...more} />
  );
  // The width of the four columns: cells, row names, scores and shares, and gaps.
  const need = CELL * (check.inputs.columns.length + 2 * qk + check.V.columns.length) + 4 * 46 + 140 + 3 * 20;
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  return (
    <div ref={box} class="flow" data-wide={width >= need} data-busy={busy} data-stale={props.stale}>
      <div class="stages">
        <Column
          title="In"
          formula={pos > 0 ? "x = letter, then its row of pos" : "x = letter"}
          why={
            pos > 0
              ? (head.why.pos ?? "A row of pos is added to each letter, so that the head can distinguish positions.")
              : "Each letter is a row of its own; this head does not know places."
          }
          above={sheet("pos", new Set([followed]))}
          indent={CELL * (inputs.length - pos)}
          below={computed("x, the inputs", check.inputs)}
        />
        <Column
          title="Query: what a position looks for"
          formula="Q = x Qm"
          why={head.why.Qm}
          above={sheet("Qm", usedBy(followed))}
          below={computed("Q, the queries", check.Q)}
        />
        <Column
          title="Key: what it is matched by"
          formula="K = x Km"
          why={head.why.Km}
          above={sheet("Km", usedBy(best))}
          below={computed("K, the keys", check.K, {
            row: null,
            extra: [{ head: "score", cell: (key) => <span class="number">{brief(scores[key] ?? 0)}</span> }],
          })}
        />
        <Column
          title="Value: what it passes on"
          formula="V = x Vm"
          why={head.why.Vm}
          above={sheet("Vm", usedBy(best))}
          below={computed("V, the values", check.V, {
            row: null,
            extra: [{ head: "read by", cell: (key) => <Share share={weights[key] ?? 0} /> }],
          })}
        />
      </div>
      <div class="chain">
        <Step title="Scores" formula={`Q K\u1D40 / \u221A${qk}`}>
          {computed("Scores: a row for each query, a column for each key", { ...check.scores, columns: places })}
        </Step>
        <Arrow text="softmax of each row" />
        <Step title="Weights" formula="rows add up to 1">
          {computed("Attention weights: a row for each query, a column for each key", { ...check.weights, columns: places }, { most: 1 })}
        </Step>
        <Arrow text="times V" />
        <Step title="Out" formula="and what is expected">
          {computed("Outputs, targets and what they say", check.outputs, {
            extra: [
              { head: "wanted", cell: (at) => <code>{at < first ? "" : check.targets.cells[at - first]?.map(brief).join(" ")}</code> },
              { head: "reads", cell: (at) => <Reads check={check} judged={at - first} /> },
            ],
          })}
        </Step>
      </div>
    </div>
  );
}

function Column(props: {
  title: string;
  /** The horizontal offset of the upper matrix, in pixels. */
  indent?: number;
  formula: string;
  why: string | undefined;
  above: ComponentChildren;
  below: ComponentChildren;
}) {
  return (
    <section class="stage" aria-label={props.title} style={{ "--above-x": `${props.indent ?? 0}px` }}>
      <header>
        <h3>{props.title}</h3>
        <p class="why">{props.why}</p>
      </header>
      <div class="above">{props.above}</div>
      <div class="below">
        <p class="formula">
          <span aria-hidden="true">{"\u2193"}</span> {props.formula}
        </p>
        {props.below}
      </div>
    </section>
  );
}

function Step({ title, formula, children }: { title: string; formula: string; children: ComponentChildren }) {
  return (
    <section class="chain-step" aria-label={title}>
      <h3>
        {title} <span class="quiet">{formula}</span>
      </h3>
      {children}
    </section>
  );
}

function Arrow({ text }: { text: string }) {
  return (
    <div class="chain-arrow" aria-hidden="true">
      <span>{text}</span>
      <i />
    </div>
  );
}

function Share({ share }: { share: number }) {
  return (
    <span class="read-by">
      <Bar share={share} />
      <span class="number">{percent(share)}</span>
    </span>
  );
}

function Reads({ check, judged }: { check: Check; judged: number }) {
  if (judged < 0) return <span class="quiet">not judged</span>;
  const right = rightAt(check, judged);
  return (
    <span class={right ? "good" : "wrong"}>
      {right ? "\u2713" : "\u2717"} {check.reads[judged]}
      {!right && <span class="hidden">, wrong</span>}
    </span>
  );
}

const numbered = (count: number): string[] => Array.from({ length: count }, (_, at) => String(at));

/** The names of the rows of Km, Qm and Vm, also while the answer for other sizes is awaited. */
function inputNames(head: Head, check: Check, edits: Edited): string[] {
  const rows = edits.weights.Km.length;
  const { pos } = sizesOf(edits.weights);
  if (check.inputs.columns.length === rows) return check.inputs.columns;
  if (head.inputs.length === rows) return head.inputs;
  return [...head.inputs.slice(0, rows - pos), ...numbered(pos).map((at) => `p${at}`)];
}

function positionNames(head: Head, edits: Edited): string[] {
  return numbered(edits.weights.pos?.length ?? 0).map((at) => {
    if (head.has_cls && at === "0") return "@CLS";
    return `@${Number(at) - (head.has_cls ? 1 : 0)}`;
  });
}
