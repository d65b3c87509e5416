// The lines and text displays, which show one token at a time, for one head or for two side by side.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import type { Signal } from "@preact/signals";
import { Bar, capital, percent } from "../../parts";
import type { Place } from "../../state";
import { usePaint } from "./colours";
import { Legend } from "./legend";
import { Lines } from "./lines";
import { selectionOf, type Selection } from "./selection";
import { PinnedCaption, Refusals, amountOf } from "./matrix";
import { Reads, Word } from "./reading";
import { most, named, type Words } from "./stack";
import type { HeadTiles } from "./tiles";
import { WordsShape } from "./words";

interface TokensProps {
  shape: "lines" | "words";
  one: HeadTiles;
  other: HeadTiles | null;
  pinned: HeadTiles[];
  choose: (place: Place) => void;
  unpin: (place: Place) => void;
  note: ComponentChildren;
  words: Words;
  largest: number;
  root: boolean;
  selection: Signal<Selection | null>;
  pin: number | null;
  pinnedKey: number | null;
  setPin: (pin: number | null, side?: Selection["side"]) => void;
}

export function Tokens(props: TokensProps) {
  const { shape, one, other, pinned, choose, unpin, note, words, largest, root, selection, setPin } = props;
  // A text without a query has no colours.
  const pin = props.pin ?? (shape === "words" ? words.queries.length - 1 : null);
  const frame = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const Shape = shape === "lines" ? Lines : WordsShape;
  const pinnedKey = shape === "lines" ? props.pinnedKey : null;
  const now = selectionOf(selection.value, pin, pinnedKey);
  const heads = [one, ...(other ? [other] : []), ...pinned];
  const several = heads.length > 1;
  return (
    <div class="tokens" ref={frame}>
      <div class={several ? "token-shapes two" : "token-shapes"}>
        {heads.map((tiles) => (
          <figure key={tiles === one ? "one" : tiles === other ? "other" : `${tiles.place.layer}.${tiles.place.head}`}>
            {pinned.includes(tiles) ? (
              <PinnedCaption {...{ choose, unpin }} place={tiles.place} />
            ) : (
              several && <figcaption>{capital(named(tiles.place))}</figcaption>
            )}
            <Shape {...{ tiles, words, largest, root, selection, pin, pinnedKey, setPin }} />
          </figure>
        ))}
      </div>
      <div class="beside">
        <Refusals one={one} other={other} />
        {shape === "lines" && <p class="quiet small">The wider and darker a line, the larger its weight.</p>}
        {paint && (
          <Legend
            kind="weights"
            label={amountOf(one)}
            hatched={false}
            {...{ largest, root, paint }}
          />
        )}
        {note}
        <div class="watched" aria-live="polite">
          {!now && <p class="quiet">Point at a token to see what it reads; click it to pin it.</p>}
          {now?.side === "query" &&
            heads.map((tiles) => (
              <Reads tiles={tiles} query={now.place} words={words} {...(several ? { place: tiles.place, count: 4 } : {})} />
            ))}
          {now?.side === "key" && heads.map((tiles) => <ReadBy {...{ tiles, words, several }} place={now.place} />)}
        </div>
      </div>
    </div>
  );
}

/** The queries with the largest weights on a key. */
function ReadBy({ tiles, place, words, several }: { tiles: HeadTiles; place: number; words: Words; several: boolean }) {
  void tiles.version.value;
  const column = tiles.column(place);
  const best = column ? most(column, 6) : [];
  return (
    <section class="reads by" aria-label="What reads the key most">
      <h3>
        <Word text={words.keys[place] ?? ""} place={place} /> is read most by{several && `, in ${named(tiles.place)}`}
      </h3>
      {!column && <p class="quiet">Its readers are farther away than what is loaded: scroll to them.</p>}
      <ol>
        {best.map(({ key: query, weight }) => (
          <li>
            <Word text={words.queries[query] ?? ""} place={query} />
            <Bar share={weight / (best[0]?.weight ?? 1)} />
            <span class="number">{percent(weight)}</span>
          </li>
        ))}
        {column && best.length === 0 && <li class="quiet">nothing</li>}
      </ol>
    </section>
  );
}
