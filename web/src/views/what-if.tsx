// What a model would answer without some heads, edges or experts, or with its residual stream steered; and what
// each head, layer and part does for the answer.
import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import type { ViewProps } from "./props";
import { useAsk, useAskInTurn, useSweep } from "../asking";
import { Awaited, Choice, Fault, Numbered, PositionField, TokenField, Title, Under, Versus, capital, focusAround, share, visible } from "../parts";
import type { Attention, HeadSweep, Refusal, Run, Source, WhatIf } from "../source";
import { UNCHANGED, isChanged } from "../state";
import "./what-if.css";
import { PlaceFields } from "./attention/controls";
import { panelWidth } from "./attention/head-cells";
import { signed } from "./attention/reading";
import { chosenStack, named, shown, within, wordsOf } from "./attention/stack";
import { headTiles } from "./attention/tiles";
import { ContributionBars } from "./what-if/contributions";
import { Edges } from "./what-if/edges";
import { answering, changesOf, headOf, isRemoved, toggleHead, type Change, type Edits } from "./what-if/edits";
import { effectsOf, type Effects } from "./what-if/effects";
import { ExpertSwaps } from "./what-if/expert-swaps";
import { Heads } from "./what-if/heads";
import { LensTable } from "./what-if/lens";
import { Outcomes } from "./what-if/outcomes";
import { Steering } from "./what-if/steering";
import { Strongest } from "./what-if/strongest";

/** Milliseconds after which a new text's details are asked for, so that its answer is painted first. */
const DETAILS = 40;
/** Positions in one answer to `lens`. */
const LENS_POSITIONS = 64;

export function WhatIfView(props: ViewProps) {
  const stack = props.run && chosenStack(props.run, props.state);
  if (!props.run || !stack) return <Awaited busy={props.busy} />;
  return <Asked {...props} run={props.run} stack={stack} />;
}

interface Shown extends Omit<ViewProps, "edits"> {
  run: Run;
  stack: Attention;
}

function Asked(props: Shown) {
  const { source, store, run, stack } = props;
  const { removed, forbidden, steer, swaps, place, target, other: subtracted } = props.state;
  const edits: Edits = { removed, forbidden, steer, swaps };
  const what = useAskInTurn(source, "whatif", { ask: run.ask, place, target, other: subtracted, ...edits, patch: null });
  const { answer } = what;
  // Nothing is subtracted from itself.
  const other = subtracted === (target ?? answer?.target) ? null : subtracted;
  const state = { ...props.state, other };
  const unseen = unseenOfOthers(what, run);
  const words = useMemo(() => new Map(run.attentions.map((each) => [each.part, wordsOf(run, each)])), [run]);
  const changes = changesOf(
    edits,
    run.attentions,
    ({ part, query, key }, side) => {
      const word = side === "query" ? words.get(part)?.queries[query] : words.get(part)?.keys[key];
      return `${shown(word ?? "", 12)} (${side === "query" ? query : key})`;
    },
    (id) => visible(answer?.outcomes.find((each) => each.id === id)?.name ?? `#${id}`),
  );
  const tools = answer ? toolsOf(answer, run) : [];
  const tool = tools.find(({ name }) => name === state.tool)?.name ?? "heads";
  const asked = { ask: run.ask, place, target, other };
  const sweep = useSweep(source, "sweep", answer?.offers.includes("sweep") ? asked : null, DETAILS);
  const effects = useMemo(() => sweep.answer && effectsOf(sweep.answer, stack), [sweep.answer, stack]);
  return (
    <div class="what-if">
      <Changes {...{ store, changes }} live={source.answers("whatif")}>
        {answer && !what.refusal && <p class="moved number" aria-hidden="true"><Moved answer={answer} busy={what.busy || unseen["data-foreign"]} /></p>}
      </Changes>
      {what.refusal && <Fault refusal={what.refusal} />}
      {what.refusal && !answer && source.answers("whatif") && (place ?? target ?? subtracted) !== null && <Likeliest {...{ store }} />}
      {!answer && !what.refusal && <Awaited busy />}
      {answer && (
        <div class="sides">
          <div class="doing">
            {tools.length > 1 && <Choice label="What to look at or change" chosen={tool} options={tools} choose={(tool) => store.set({ tool })} />}
            {tool === "heads" && <HeadsAndEdges {...props} {...{ edits, answer, effects }} busy={what.busy} key={stack.part} />}
            {tool === "steering" && <SteeringPanel {...props} {...{ edits, answer }} />}
            {tool === "experts" && <ExpertsPanel {...props} {...{ edits, answer }} />}
            {tool === "lens" && <LensPanel {...{ source, store, run, place, target, other }} at={answer.place} />}
          </div>
          <div class="results" {...unseen}>
            <Prediction {...props} {...{ state, answer }} busy={what.busy} />
            <Explained {...props} {...{ state, answer, sweep, effects }} />
          </div>
        </div>
      )}
    </div>
  );
}

interface ChangesProps {
  store: ViewProps["store"];
  changes: Change[];
  live: boolean;
  /** What they did, where the results are far below. */
  children: ComponentChildren;
}

function Changes({ store, changes, live, children }: ChangesProps) {
  const take = (event: { currentTarget: HTMLElement }, without: Change["without"]) => {
    focusAround(event);
    store.set(without, true);
  };
  return (
    <section class="changes" aria-label="Changes" tabIndex={-1} data-any={changes.length > 0}>
      {changes.length === 0 ? (
        <p class="quiet">
          {live
            ? "Nothing is changed yet. Click a head to remove it, a cell of its matrix to forbid the edge, or steer."
            : "Nothing is changed in this saved file, which holds only the changes that it was saved with."}
        </p>
      ) : (
        <>
          <ul aria-label="What is changed">
            {changes.map(({ text, without }) => (
              <li>
                <button type="button" class="change" disabled={!live} aria-label={`Take back: ${text}`} onClick={(event) => take(event, without)}>
                  {capital(text)} <span aria-hidden="true">{"\u00D7"}</span>
                </button>
              </li>
            ))}
          </ul>
          <button type="button" disabled={!live} onClick={(event) => take(event, UNCHANGED)}>
            Undo all
          </button>
          {children}
        </>
      )}
    </section>
  );
}

interface Answered extends Shown {
  answer: WhatIf;
}

type Tool = ViewProps["state"]["tool"];

/** What can be looked at or changed: one at a time, so that what it does to the answer stays beside it. */
function toolsOf(answer: WhatIf, run: Run): { name: Tool; title: string }[] {
  const offers = (what: WhatIf["offers"][number]) => answer.offers.includes(what);
  const tools: { name: Tool; title: string; offered: boolean }[] = [
    { name: "heads", title: "Heads and edges", offered: true },
    { name: "steering", title: "Steering", offered: offers("steer") && answering(run.attentions) !== null },
    { name: "experts", title: "Experts", offered: offers("experts") },
    { name: "lens", title: "Layers", offered: offers("lens") },
  ];
  return tools.filter(({ offered }) => offered);
}

interface HeadsAndEdgesProps extends Answered {
  edits: Edits;
  effects: Effects | null;
  busy: boolean;
}

const SHOWN = [
  { name: "effect", title: "Effect", hint: "What removing the head does" },
  { name: "attention", title: "Attention", hint: "The head's weights" },
] as const;

function HeadsAndEdges({ source, store, state, card, run, stack, edits, answer, effects, busy }: HeadsAndEdgesProps) {
  const [shows, setShows] = useState<(typeof SHOWN)[number]["name"]>("effect");
  const place = within({ layer: state.layer, head: state.head }, stack);
  const words = useMemo(() => wordsOf(run, stack), [run, stack]);
  const measured = useAsk(source, "measures", { run: run.run, part: stack.part }, DETAILS);
  const fits = measured.of?.run === run.run && measured.of.part === stack.part;
  const measures = fits ? measured.answer : null;
  const detected = useAsk(source, "detect", card.kind === "decoder" ? { model: card.name } : null).answer;
  const before = headTiles(source, run.run, stack, place);
  const changed = isChanged(edits) && source.answers("run");
  // After the answer, which would wait for it.
  const again = useAskInTurn(source, "run", changed && !busy ? { ...run.ask, changes: { ...edits, patch: null } } : null);
  const own = again.refusal === null && JSON.stringify({ ...again.of, changes: run.ask.changes }) === JSON.stringify(run.ask);
  const after = changed && again.answer && own ? headTiles(source, again.answer.run, stack, place) : null;
  const thumbnail = measures?.thumbnails[place.layer]?.[place.head];
  const can = source.answers("whatif");
  return (
    <>
      {run.attentions.length > 1 && (
        <Choice
          label="Stack"
          chosen={stack.part}
          options={run.attentions.map(({ part, label }) => ({ name: part, title: capital(label) }))}
          choose={(part) => store.set({ part, layer: 0, head: 0, window: null }, true)}
        />
      )}
      <div class="touching" style={{ "--heads-width": `${panelWidth(stack.heads)}px` }}>
        <section class="panel" aria-label="Remove heads">
          <Title title="Remove heads">Rows are layers, columns are heads.{can && " A click removes one."}</Title>
          {answer.offers.includes("sweep") && <Choice label="What is shown of each head" chosen={shows} options={[...SHOWN]} choose={setShows} />}
          <Heads {...{ store, edits, stack, measures, detected, place, can }} effects={shows === "effect" ? effects : null} />
        </section>
        <section class="panel" aria-label="Forbid edges">
          <div class="title row">
            <h2>Forbid edges of {named(place)}</h2>
            {can && (
              <button type="button" onClick={() => store.set(toggleHead(edits, headOf(stack.part, place)), true)}>
                {isRemoved(edits, headOf(stack.part, place)) ? "Bring this head back" : "Remove this head"}
              </button>
            )}
            <PlaceFields name="" {...{ stack, place }} choose={(next) => store.set({ part: stack.part, ...next }, true)} />
          </div>
          <Edges
            {...{ store, state, edits, before, after, words, can }}
            largest={Math.max(0, ...(thumbnail?.flat() ?? [])) || 1}
          />
        </section>
      </div>
    </>
  );
}

function SteeringPanel({ source, store, card, run, edits, answer }: Answered & { edits: Edits }) {
  const blocks = answering(run.attentions);
  return (
    <section class="panel" aria-label="Steer">
      <Title title="Steer">Adds a direction of the output to the residual stream of every token.</Title>
      <Steering
        {...{ source, store, edits, answer }}
        can={source.answers("whatif")}
        typed={isTyped(card)}
        model={run.ask.model}
        layers={blocks?.layers ?? 1}
      />
    </section>
  );
}

function ExpertsPanel({ source, store, run, edits, answer }: Answered & { edits: Edits }) {
  const experts = useAsk(source, "experts", { run: run.run });
  const can = source.answers("whatif");
  return (
    <section class="panel" aria-label="Swap experts">
      <Title title="Swap experts">Filled: chosen for token {answer.place}.{can && " A click forbids one."}</Title>
      {experts.answer && <ExpertSwaps {...{ store, edits, can }} experts={experts.answer} token={answer.place ?? 0} />}
      {!experts.answer && experts.busy && <Awaited busy />}
      <Refused {...{ source }} refusal={experts.refusal} />
    </section>
  );
}

function Moved({ answer, busy }: { answer: WhatIf; busy: boolean }) {
  if (busy) return <>{"Computing\u2026"}</>;
  if (answer.outcomes.length === 0 || answer.distance === 0) return <>Nothing has changed.</>;
  const top = (when: "before" | "after") => answer.outcomes.reduce((best, each) => (each[when] > best[when] ? each : best));
  const [before, after] = [top("before"), top("after")];
  return (
    <>
      {before.id === after.id ? "Still " : <><span class="word">{visible(before.name)}</span>{" becomes "}</>}
      <span class="word">{visible(after.name)}</span>; {share(answer.distance)} of the probability moved.
    </>
  );
}

function Prediction({ source, store, card, run, state, answer, busy }: Answered) {
  const last = run.tokens.length - 1;
  return (
    <section class="panel prediction" aria-label="Before and after" data-busy={busy}>
      <div class="title row">
        <div>
          <h2>{answer.kind === "class" ? "The class" : "The next token"}</h2>
          <p class="quiet" role="status">
            <Moved {...{ answer, busy }} />
          </p>
        </div>
        {answer.kind === "token" && answer.place !== null && last > 0 && (
          <PositionField
            label="After token"
            {...{ last }}
            value={state.place}
            placeholder={String(answer.place)}
            disabled={!source.answers("whatif")}
            change={(place) => store.set({ place }, "place")}
          />
        )}
      </div>
      <About {...{ source, store, state, card, run, answer }} />
      <Outcomes {...{ answer, busy }} choose={source.answers("whatif") ? (target) => store.set({ target }, true) : null} />
    </section>
  );
}

/** From a link: what would choose other outcomes is not there without an answer. */
export const Likeliest = ({ store }: Pick<ViewProps, "store">) => (
  <button type="button" onClick={() => store.set({ place: null, target: null, other: null }, true)}>
    Show the likeliest outcome
  </button>
);

/** Whether any token can be typed: texts of other models than decoders do not consist of what these generate. */
const isTyped = ({ kind }: ViewProps["card"]): boolean => kind === "decoder";

/** What all panels are about: a token or class, and the one that it is compared with. */
export function About({ source, store, state: { other }, card, run, answer, quiet = false }: Pick<Answered, "source" | "store" | "state" | "card" | "run" | "answer"> & { quiet?: boolean }) {
  const can = source.answers("whatif");
  const typed = isTyped(card) && can;
  const [one, versus] = [answer.target, other].map((id) => answer.outcomes.find((each) => each.id === id));
  const over = (when: "before" | "after") => Math.log((one?.[when] ?? 0) / (versus?.[when] ?? 0));
  const model = run.ask.model;
  return (
    <>
      <div class="about-fields">
        {typed && <TokenField label="Any token" {...{ source, model }} choose={(target) => store.set({ target }, true)} />}
        <Numbered
          label="Minus"
          class="word"
          disabled={!can}
          chosen={other}
          options={answer.outcomes.filter(({ id }) => id !== answer.target).map(({ id, name }) => ({ id, name: visible(name) }))}
          none="nothing"
          choose={(other) => store.set({ other }, true)}
        />
        {typed && <TokenField label="Minus any token" {...{ source, model }} choose={(other) => store.set({ other }, true)} />}
      </div>
      {!quiet && one && versus && (
        <p class="over">
          <span class="word">{visible(one.name)}</span> over <span class="word">{visible(versus.name)}</span>, log-odds:{" "}
          <span class="number">{signed(over("before"))}</span> before, <strong class="number">{signed(over("after"))}</strong> after
        </p>
      )}
    </>
  );
}

interface ExplainedProps extends Answered {
  sweep: ReturnType<typeof useSweep<"sweep">>;
  effects: Effects | null;
}

function Explained({ source, store, state, run, stack, answer, sweep, effects }: ExplainedProps) {
  const { place, target, other } = state;
  const asked = { ask: run.ask, place, target, other };
  const parts = useAsk(source, "contributions", answer.offers.includes("contributions") ? asked : null, DETAILS);
  const name = answer.outcomes.find(({ id }) => id === answer.target)?.name ?? "";
  return (
    <>
      {answer.offers.includes("sweep") && (
        <section class="panel alone" aria-label="What each head does" data-busy={sweep.busy && !sweep.answer}>
          <Title title={<>Each head alone, for <Versus name={sweep.answer?.name ?? name} other={sweep.answer?.other_name ?? null} /></>}>
            What the answer loses without the head, and without all that later parts make of it. Click one to see its attention.
          </Title>
          {sweep.answer && <Progress sweep={sweep.answer} />}
          {sweep.answer && effects && <Strongest {...{ store, stack, effects }} sweep={sweep.answer} />}
          {!sweep.answer && sweep.busy && <Awaited busy />}
          <Refused {...{ source }} refusal={sweep.refusal} />
        </section>
      )}
      {answer.offers.includes("contributions") && (
        <section class="panel" aria-label="What adds to the logit" data-busy={parts.busy}>
          <Title title={<>What adds to <Versus {...{ name }} other={parts.answer?.other_name ?? null} word="minus" /></>}>
            What each part of the unchanged model writes into the answer by itself. A part may write little, and matter to later ones.
          </Title>
          {parts.answer && <div {...unseenOfOthers(parts, run)}><ContributionBars contributions={parts.answer} /></div>}
          {!parts.answer && parts.busy && <Awaited busy />}
          <Refused {...{ source }} refusal={parts.refusal} />
        </section>
      )}
    </>
  );
}

/** An answer about another text, or to an earlier request than the refused one, keeps its place, so that nothing jumps, but is not shown. */
function unseenOfOthers({ of, refusal }: { of: { ask: Run["ask"] } | null; refusal: Refusal | null }, run: Run) {
  const foreign = refusal !== null || (of !== null && JSON.stringify(of.ask) !== JSON.stringify(run.ask));
  return { "data-foreign": foreign, "aria-busy": foreign };
}

/** How far a sweep is, and the time that is left; then how many heads stay estimated, as removing all would take long. */
function Progress({ sweep: { done, total, stacks } }: { sweep: HeadSweep }) {
  const begun = useRef({ at: performance.now(), done });
  if (done < begun.current.done) begun.current = { at: performance.now(), done };
  const made = done - begun.current.done;
  const left = made > 0 ? ((performance.now() - begun.current.at) / 1000 / made) * (total - done) : null;
  const guessed = stacks.flatMap(({ exact }) => exact.flat()).filter((sure) => !sure).length;
  if (done >= total && guessed === 0) return null;
  if (done >= total) return <p class="quiet">{`${guessed} heads, in the layers that seem to matter least, are estimated: the text is long.`}</p>;
  return (
    <Under label="Heads computed" {...{ done, total }}>
      {`${done} of ${total} heads computed${left === null ? "" : `, about ${Math.ceil(left)} s left`}.`}
    </Under>
  );
}

/** A saved file holds these answers only as far as they were shown when it was saved. */
function Refused({ source, refusal }: { source: Source; refusal: Refusal | null }) {
  if (!refusal) return null;
  return source.answers("whatif") ? <Fault refusal={refusal} /> : <p class="quiet">Not in this file: it was saved while another text, view or part was shown.</p>;
}

interface LensPanelProps extends Pick<Shown, "source" | "store" | "run">, Pick<ViewProps["state"], "place" | "target" | "other"> {
  /** The position of the answer; null for a classifier. */
  at: number | null;
}

function LensPanel({ source, store, run, place, target, other, at }: LensPanelProps) {
  const [turned, setFirst] = useState<number | null>(null);
  const own = LENS_POSITIONS * Math.floor((at ?? 0) / LENS_POSITIONS);
  const first = turned !== null && turned < run.tokens.length ? turned : own;
  const asked = useAsk(source, "lens", { ask: run.ask, place, target, first }, DETAILS);
  const lens = asked.answer;
  const second = useAsk(source, "lens", other === null ? null : { ask: run.ask, place, target: other, first }, DETAILS);
  const versus = other !== null && !second.busy && second.answer && lens && second.answer.first === lens.first ? second.answer : null;
  const can = source.answers("whatif") && at !== null;
  // Hundreds of cells, drawn again with another answer only.
  const table = useMemo(
    () =>
      lens && (
        <LensTable
          {...{ lens, versus }}
          place={at}
          total={lens.positions.length > 1 ? run.tokens.length : lens.positions.length}
          beyond={(position) => setFirst(LENS_POSITIONS * Math.floor(position / LENS_POSITIONS))}
          choose={can ? (place) => store.set({ place }, true) : null}
        />
      ),
    [lens, versus, at, can, store, run],
  );
  return (
    <section class="panel" aria-label="The logit lens" data-busy={asked.busy}>
      <Title title="What each layer already says">
        The output layer applied to the residual stream after every layer, without the changes.
      </Title>
      {table && <div {...unseenOfOthers(asked, run)}>{table}</div>}
      {!lens && !asked.refusal && <Awaited busy />}
      <Refused {...{ source }} refusal={asked.refusal} />
    </section>
  );
}
