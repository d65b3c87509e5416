// One query through all layers: the mean of its heads, one head, or each head.
import { useMemo, useRef, useState } from "preact/hooks";
import type { Signal } from "@preact/signals";
import { useAsk } from "../../asking";
import { useWidth } from "../../measuring";
import { Choice, Fault, percent, short } from "../../parts";
import type { Attention, Run, Source } from "../../source";
import type { Place, State, Store } from "../../state";
import { usePaint } from "./colours";
import { Legend } from "./legend";
import { selectionOf, type Selection } from "./selection";
import { Word } from "./reading";
import { most, shown, sinkShare, type Words } from "./stack";
import { NUMBERS, Strip, titleRoom, type Spot } from "./strip";
import { TokenText } from "./text";

interface LayersProps {
  source: Source;
  store: Store;
  state: State;
  run: Run;
  stack: Attention;
  place: Place;
  words: Words;
  root: boolean;
  /** Whether these are shares of what is passed on, not weights. */
  passed: boolean;
  selection: Signal<Selection | null>;
  pin: number | null;
  setPin: (pin: number | null) => void;
}

const ROW = 28;
/** Milliseconds that a token must be hovered. */
const REST_MS = 80;

export function Layers({ source, store, state, run, stack, place, words, root, passed, selection, pin, setPin }: LayersProps) {
  const frame = useRef<HTMLDivElement>(null);
  const room = useRef<HTMLDivElement>(null);
  const width = useWidth(room);
  const paint = usePaint(frame);
  const [spot, setSpot] = useState<(Spot & { head: number }) | null>(null);
  // A saved file holds one query.
  const now = selectionOf(source.answers("rows") ? selection.value : null, pin);
  const query = now?.side === "query" ? now.place : Math.max(0, stack.queries - 1);
  const asked = { run: run.run, part: stack.part, query, layer: null, head: null, passed };
  const { answer, of, refusal, busy } = useAsk(source, "rows", asked, REST_MS);
  const numbers = of?.run === run.run && of.part === stack.part ? answer : null;
  // While another query is awaited, these are still the previous query's numbers.
  const shownQuery = (numbers && of?.query) ?? query;
  const panels = useMemo(
    () => (numbers ? panelsOf(numbers, stack, state.across, place.head) : []),
    [numbers, stack, state.across, place.head],
  );
  const largest = useMemo(() => Math.max(1e-6, ...panels.flatMap((each) => each.rows.map((row) => row.reduce((a, b) => Math.max(a, b), 0)))), [panels]);
  const [single, reads] = [panels.length === 1, passed ? "gets" : "reads"];
  const columns = single || width < 480 ? 1 : width < 760 ? 2 : 3;
  const each = single ? width : Math.floor((width - 16 * (columns - 1)) / columns);
  const here = spot ? panels.find((panel) => panel.head === spot.head)?.rows[spot.layer] : undefined;
  return (
    <div class="layers" ref={frame} data-busy={busy}>
      <TokenText
        words={words.queries}
        label="Queries: choose the one to follow"
        active={query}
        pin={pin}
        ground={null}
        seen={null}
        look={(at) => (selection.value = at === null ? null : { side: "query", place: at })}
        choose={(at) => setPin(at === pin ? null : at)}
      />
      <div class="layers-bar">
        {stack.heads > 1 && (
          <Choice
            label="Heads"
            chosen={state.across}
            options={[
              { name: "average", title: "Mean of heads" },
              { name: "chosen", title: `Head ${place.head}` },
              { name: "all", title: "Every head" },
            ]}
            choose={(across) => store.set({ across }, true)}
          />
        )}
        <output class="readout" aria-live="polite">
          {spot && here ? (
            <>
              <span>
                Layer {spot.layer}
                {spot.head >= 0 && `, head ${spot.head}`}: <Word text={words.queries[shownQuery] ?? ""} place={shownQuery} />{" "}
                <span class="verb">{passed ? "gets from" : reads}</span> <Word text={words.keys[spot.key] ?? ""} place={spot.key} />
              </span>
              <strong class="number">{short(here[spot.key] ?? 0)}</strong>
            </>
          ) : (
            <span>
              What <Word text={words.queries[shownQuery] ?? ""} place={shownQuery} /> {reads} in each of {stack.layers} layers
            </span>
          )}
        </output>
      </div>
      {refusal && <Fault refusal={refusal} />}
      <div class={single ? "strips one" : "strips"}>
        <div ref={room} class="strip-room" style={{ gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))` }}>
          {paint &&
            width > 0 &&
            panels.map((panel) => (
              <figure>
                {!single && <figcaption data-chosen={panel.head === place.head}>Head {panel.head}</figcaption>}
                <Strip
                  rows={panel.rows}
                  name={`${panel.title}: what ${shown(words.queries[shownQuery] ?? "")} ${reads}, by layer`}
                  high={single ? ROW : Math.max(6, Math.min(14, Math.floor(160 / stack.layers)))}
                  width={each}
                  query={shownQuery}
                  words={words.keys}
                  labelled={single}
                  chosen={single || panel.head === place.head ? place.layer : null}
                  look={(at) => setSpot(at && { ...at, head: panel.head })}
                  {...{ stack, largest, root, paint }}
                />
              </figure>
            ))}
        </div>
        {single && panels[0] && (
          <Tops
            rows={panels[0].rows}
            top={titleRoom(words.keys, (width - NUMBERS) / stack.keys)}
            {...{ stack, words, place, passed }}
            choose={(layer) => store.set({ layer }, true)}
          />
        )}
      </div>
      {paint && numbers && <Legend kind="weights" label={passed ? "Share of weight \u00D7 size of value" : "Weight"} hatched={stack.causal} {...{ largest, root, paint }} />}
    </div>
  );
}

interface TopsProps {
  rows: Float32Array[];
  stack: Attention;
  words: Words;
  place: Place;
  passed: boolean;
  top: number;
  choose: (layer: number) => void;
}

/** The most read key of each layer, beside its row. */
function Tops({ rows, stack, words, place, passed, top, choose }: TopsProps) {
  return (
    <ol class="tops" style={{ paddingTop: `${top}px` }} aria-label="What each layer reads most">
      {rows.map((row, layer) => (
        <li style={{ height: `${ROW}px` }}>
          <button type="button" aria-pressed={layer === place.layer} onClick={() => choose(layer)}>
            Layer {layer}
          </button>
          <span class="tops-words">
            {most(row, 3).map(({ key, weight }) => (
              <span>
                <Word text={words.keys[key] ?? ""} place={key} /> <span class="number quiet">{percent(weight, 0)}</span>
              </span>
            ))}
            {stack.sinks && !passed && <span class="quiet number">sink {percent(sinkShare(row), 0)}</span>}
          </span>
        </li>
      ))}
    </ol>
  );
}

interface Panel {
  /** -1: the mean of all. */
  head: number;
  title: string;
  rows: Float32Array[];
}

function panelsOf(numbers: Float32Array, stack: Attention, across: State["across"], head: number): Panel[] {
  const row = (layer: number, of: number): Float32Array => {
    const at = (layer * stack.heads + of) * stack.keys;
    return numbers.subarray(at, at + stack.keys);
  };
  const layers = Array.from({ length: stack.layers }, (_, layer) => layer);
  const one = (of: number): Panel => ({ head: of, title: `Head ${of}`, rows: layers.map((layer) => row(layer, of)) });
  if (across === "all" && stack.heads > 1) return Array.from({ length: stack.heads }, (_, of) => one(of));
  if (across === "chosen" || stack.heads === 1) return [one(head)];
  const rows = layers.map((layer) => {
    const mean = new Float32Array(stack.keys);
    for (let of = 0; of < stack.heads; of += 1) {
      row(layer, of).forEach((weight, key) => (mean[key] = (mean[key] ?? 0) + weight / stack.heads));
    }
    return mean;
  });
  return [{ head: -1, title: "Mean of heads", rows }];
}
