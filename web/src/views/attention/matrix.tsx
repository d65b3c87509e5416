// The matrix of one head, or of two heads and their difference.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { screenDensity, useWidth } from "../../measuring";
import { Fault, capital, focusAround } from "../../parts";
import type { Place, State, Store } from "../../state";
import { marginsFor } from "./axes";
import { usePaint } from "./colours";
import { zoomBy } from "./gestures";
import { Legend } from "./legend";
import { CellMap, type Shared } from "./map";
import { Overview } from "./overview";
import { CellReadout, Reads } from "./reading";
import { roomAbove, useShared } from "./shared";
import { named, type Words } from "./stack";
import { Difference, type HeadTiles } from "./tiles";
import { boxFor, clamped, isWhole, levelFor, whole, type Box, type Cell } from "./viewport";

interface MatrixProps {
  store: Store;
  state: State;
  one: HeadTiles;
  other: HeadTiles | null;
  /** More heads, without differences. */
  pinned: HeadTiles[];
  choose: (place: Place) => void;
  unpin: (place: Place) => void;
  /** What is to be said of the first head. */
  note: ComponentChildren;
  words: Words;
  /** The weight at the end of the colour scale. */
  largest: number;
  root: boolean;
  pin: number | null;
  setPin: (pin: number | null) => void;
}

/** The smallest width of maps side by side. */
const LEAST = 280;
const GAP = 16;
/** The width of the panel beside a single map, with the gap. */
const BESIDE = 300;

export function Matrix({ store, state, one, other, pinned, choose, unpin, note, words, largest, root, pin, setPin }: MatrixProps) {
  const place = useRef<HTMLDivElement>(null);
  const width = useWidth(place);
  const paint = usePaint(place);
  const { stack } = one;
  const several = other !== null || pinned.length > 0;
  const maps = (other ? 3 : 1) + pinned.length;
  const beside = several ? Math.max(1, Math.min(3, maps, Math.floor((width + GAP) / (LEAST + GAP)))) : 1;
  const wide = !several && width >= 2 * BESIDE;
  const across = wide ? width - BESIDE : Math.floor((width - GAP * (beside - 1)) / beside);
  const margins = useMemo(() => marginsFor(words, across), [words, across < 480]);
  const box = useMemo(() => {
    if (width === 0) return null;
    const room = { width: across - margins.left - 2, height: roomAbove(360, 720) - margins.top - 2 };
    return boxFor(stack.queries, stack.keys, room);
  }, [stack, across, width === 0, margins]);
  const shared = useShared(store, state, box);
  const difference = useMemo(() => (other ? new Difference(one, other) : null), [one, other]);
  useEffect(() => difference?.follow(), [difference]);
  const layers: [number, number] = [one.layer, (other ?? one).layer];
  const about = `${stack.label}, ${stack.queries} queries by ${stack.keys} keys`;
  const press = ({ query }: Cell) => setPin(query === pin ? null : query);
  const release = () => (setPin(null), pin !== null);
  const does = "pins the query of the cell";
  const common = box && paint && { words, root, paint, shared, pin, press, release, does, box, margins };
  return (
    <div class={several ? "matrix several" : wide ? "matrix wide" : "matrix"} ref={place}>
      <div class="maps" style={{ gridTemplateColumns: several ? `repeat(${beside}, minmax(0, 1fr))` : "max-content" }}>
        {common &&
          [one, ...(other ? [other] : [])].map((tiles) => (
            <figure>
              {several && <figcaption>{capital(named(tiles.place))}</figcaption>}
              <CellMap {...common} cells={tiles} kind="weights" largest={largest} name={`${named(tiles.place)}, ${about}`} />
            </figure>
          ))}
        {common && other && difference && (
          <figure>
            <figcaption>First minus second</figcaption>
            <CellMap {...common} cells={difference} kind="difference" largest={largest} name={`Difference, ${about}`} />
          </figure>
        )}
        {common &&
          pinned.map((tiles) => (
            <figure key={`${tiles.place.layer}.${tiles.place.head}`}>
              <PinnedCaption {...{ choose, unpin }} place={tiles.place} />
              <CellMap {...common} cells={tiles} kind="weights" largest={largest} name={`${named(tiles.place)}, ${about}`} />
            </figure>
          ))}
      </div>
      <div class="beside">
        <div class="cell-details">
          {box && <Zoom {...{ shared, box }} />}
          <CellReadout hover={shared.hover} pin={pin} {...{ one, other, words, layers }} />
          <Refusals one={one} other={other} />
        </div>
        {paint && (
          <div class="legends">
            <Legend kind="weights" label={amountOf(one)} hatched={stack.causal} {...{ largest, root, paint }} />
            {other && <Legend kind="difference" label="Difference" hatched={false} {...{ largest, root, paint }} />}
          </div>
        )}
        {box && paint && Math.max(stack.queries, stack.keys) > 48 && (
          <div class="whole">
            <Overview tiles={one} {...{ box, largest, root, paint, shared }} />
            <Seen {...{ shared, box }} />
          </div>
        )}
        {note}
        <Watched {...{ shared, pin, words }} heads={[one, ...(other ? [other] : []), ...pinned]} />
      </div>
    </div>
  );
}

export function Zoom({ shared, box }: { shared: Shared; box: Box }) {
  const view = clamped(shared.view.value ?? whole(box), box);
  // All cells have their largest size already.
  if (clamped({ ...view, size: 0 }, box).size >= whole(box).size) return null;
  return (
    <div class="zoom" role="group" aria-label="Zoom">
      <button type="button" aria-label="Zoom in" onClick={() => zoomBy({ box, ...shared }, 2)}>
        +
      </button>
      <button type="button" aria-label="Zoom out" disabled={isWhole(view, box)} onClick={() => zoomBy({ box, ...shared }, 0.5)}>
        {"\u2212"}
      </button>
      <button type="button" disabled={isWhole(view, box)} onClick={() => (shared.view.value = null)}>
        Show all
      </button>
    </div>
  );
}

/** The visible part, and whether a pixel stands for several cells. */
function Seen({ shared, box }: { shared: Shared; box: Box }) {
  const view = clamped(shared.view.value ?? whole(box), box);
  const grain = 2 ** levelFor(view, box, screenDensity());
  const first = (place: number) => Math.max(0, Math.floor(place));
  const last = (place: number, size: number, count: number) => Math.min(count - 1, Math.ceil(place + size) - 1);
  return (
    <p class="quiet number">
      Queries {first(view.query)} to {last(view.query, box.queries * (view.size / whole(box).size), box.queries)},<br />
      keys {first(view.key)} to {last(view.key, box.keys * (view.size / whole(box).size), box.keys)}.
      {grain > 1 && (
        <>
          <br />A pixel is the largest of {grain} {"\u00D7"} {grain}.
        </>
      )}
    </p>
  );
}

/** What the colours stand for. */
export const amountOf = ({ passed }: HeadTiles): string => (passed ? "Share of weight \u00D7 size of value" : "Weight");

interface PinnedCaptionProps {
  place: Place;
  choose: (place: Place) => void;
  unpin: (place: Place) => void;
}

/** The name of a pinned head, which chooses it, and a button that unpins it. */
export function PinnedCaption({ place, choose, unpin }: PinnedCaptionProps) {
  return (
    <figcaption class="pinned">
      <button type="button" onClick={(event) => (focusAround(event), choose(place))}>
        {capital(named(place))}
      </button>
      <button type="button" aria-label={`Unpin ${named(place)}`} onClick={(event) => (focusAround(event), unpin(place))}>
        {"\u00D7"}
      </button>
    </figcaption>
  );
}

interface WatchedProps {
  shared: Shared;
  pin: number | null;
  heads: HeadTiles[];
  words: Words;
}

/** The keys that the hovered or pinned query reads most. */
function Watched({ shared, pin, heads, words }: WatchedProps) {
  const query = shared.hover.value?.query ?? pin;
  return (
    <div class="watched">
      {heads.map((tiles) => (
        <Reads tiles={tiles} query={query} words={words} {...(heads.length > 1 ? { place: tiles.place, count: 4 } : {})} />
      ))}
    </div>
  );
}

export function Refusals({ one, other }: { one: HeadTiles; other: HeadTiles | null }) {
  void one.version.value;
  void other?.version.value;
  const refusal = one.refusal ?? other?.refusal ?? null;
  return refusal ? <Fault refusal={refusal} /> : null;
}
