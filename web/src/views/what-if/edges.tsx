// The matrix of the chosen head; a click on a cell forbids the query to read the key, or allows it again.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { screenDensity, useWidth } from "../../measuring";
import { Choice } from "../../parts";
import type { State, Store } from "../../state";
import { marginsFor } from "../attention/axes";
import { usePaint } from "../attention/colours";
import { Legend } from "../attention/legend";
import { CellMap } from "../attention/map";
import { Refusals, Zoom } from "../attention/matrix";
import { CellReadout } from "../attention/reading";
import { roomAbove, useShared } from "../attention/shared";
import { named, sees, type Words } from "../attention/stack";
import { Difference, type HeadTiles } from "../attention/tiles";
import { boxFor, levelFor, whole, type Cell } from "../attention/viewport";
import { edgesOf, headOf, MOST, toggleEdge, type Edits, type Scope } from "./edits";

interface EdgesProps {
  store: Store;
  state: State;
  edits: Edits;
  before: HeadTiles;
  /** With the changes; null without any, and where they cannot be computed. */
  after: HeadTiles | null;
  words: Words;
  largest: number;
  can: boolean;
}

const SCOPES: { name: Scope; title: string; hint: string }[] = [
  { name: "head", title: "This head", hint: "Only in the head that is shown" },
  { name: "layer", title: "Its layer", hint: "In every head of the layer that is shown" },
  { name: "stack", title: "Every layer", hint: "In every head of every layer" },
];

const SEEN = [
  { name: "after", title: "After the changes" },
  { name: "before", title: "Before" },
  { name: "difference", title: "Difference" },
] as const;

export function Edges({ store, state, edits, before, after, words, largest, can }: EdgesProps) {
  const [wanted, setSeen] = useState<(typeof SEEN)[number]["name"]>("after");
  const [scope, setScope] = useState<Scope>("head");
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const paint = usePaint(frame);
  const difference = useMemo(() => (after ? new Difference(after, before) : null), [after, before]);
  useEffect(() => difference?.follow(), [difference]);
  const shows = after ? wanted : "before";
  const tiles = shows === "difference" && difference ? difference : shows === "after" && after ? after : before;
  const { stack, place } = before;
  const kind = shows === "difference" ? "difference" : "weights";
  const root = state.root ?? stack.keys > 64;
  const end = Math.max(largest, largestOf(after));
  const head = headOf(stack.part, place);
  const margins = useMemo(() => marginsFor(words, width), [words, width < 480]);
  const box = useMemo(() => {
    if (width === 0) return null;
    return boxFor(stack.queries, stack.keys, { width: width - margins.left - 2, height: roomAbove(300, 620) - margins.top - 2 });
  }, [stack, width, margins]);
  const shared = useShared(store, state, box);
  const crossed = useMemo(() => edgesOf(edits, head), [edits.forbidden, stack.part, place.layer, place.head]);
  const press = (cell: Cell) => {
    const there = crossed.some((each) => each.query === cell.query && each.key === cell.key);
    // The model's own mask forbids the others.
    if (!can || !sees(stack, place.layer, cell.query, cell.key) || (!there && edits.forbidden.length >= MOST)) return;
    store.set(toggleEdge(edits, head, cell, scope), true);
  };
  const cut = box && levelFor(shared.view.value ?? whole(box), box, screenDensity()) > 0;
  return (
    <div class="edges" ref={frame}>
      {after && <Choice label="Which attention is shown" chosen={shows} options={[...SEEN]} choose={setSeen} />}
      {can && (
        <div class="scopes">
          <span class="quiet">A click forbids it in</span>
          <Choice label="Where a click forbids it" chosen={scope} options={SCOPES} choose={setScope} />
        </div>
      )}
      {box && paint && (
        <CellMap
          {...{ words, paint, shared, box, margins, crossed, press }}
          largest={end}
          cells={tiles}
          {...{ kind, root }}
          pin={null}
          release={() => false}
          does="forbids or allows its query to read its key"
          name={`${named(place)}, ${stack.label}, ${stack.queries} queries by ${stack.keys} keys`}
        />
      )}
      {box && <Zoom {...{ shared, box }} />}
      {cut && <p class="quiet">Zoom in to choose single cells.</p>}
      <CellReadout
        hover={shared.hover}
        pin={null}
        one={after ?? before}
        other={after && before}
        said={["after", "before"]}
        words={words}
        layers={[place.layer, place.layer]}
      />
      {paint && after && <Legend {...{ kind, root, paint }} largest={end} label={kind === "difference" ? "After minus before" : "Weight"} hatched={false} />}
      <Refusals one={before} other={after} />
    </div>
  );
}

/** The largest weight of a head's first tile, as far as it has arrived. */
function largestOf(tiles: HeadTiles | null): number {
  void tiles?.version.value;
  return tiles?.tile({ level: 0, row: 0, column: 0 })?.reduce((most, weight) => Math.max(most, weight), 0) ?? 0;
}
