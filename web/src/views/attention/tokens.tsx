// The lines and text displays, which show one token at a time, for one head or for two side by side.
import { useRef } from "preact/hooks";
import type { Signal } from "@preact/signals";
import { Bar, capital, percent } from "../../parts";
import { usePaint } from "./colours";
import { Legend } from "./legend";
import { Lines } from "./lines";
import { selectionOf, type Selection } from "./selection";
import { Refusals } from "./matrix";
import { Reads, Word } from "./reading";
import { most, named, type Words } from "./stack";
import type { HeadTiles } from "./tiles";
import { WordsShape } from "./words";

interface TokensProps {
  shape: "lines" | "words";
  one: HeadTiles;
  other: HeadTiles | null;
  words: Words;
  largest: number;
  root: boolean;
  selection: Signal<Selection | null>;
  pin: number | null;
  setPin: (pin: number | null) => void;
}

export function Tokens({ shape, one, other, words, largest, root, selection, pin, setPin }: TokensProps) {
  const frame = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const now = selectionOf(selection.value, pin);
  const Shape = shape === "lines" ? Lines : WordsShape;
  const heads = other ? [one, other] : [one];
  return (
    <div class="tokens" ref={frame}>
      <div class={other ? "token-shapes two" : "token-shapes"}>
        {heads.map((tiles) => (
          <figure key={tiles === one ? "one" : "other"}>
            {other && <figcaption>{capital(named(tiles.place))}</figcaption>}
            <Shape {...{ tiles, words, largest, root, selection, pin, setPin }} />
          </figure>
        ))}
      </div>
      <div class="beside">
        <Refusals one={one} other={other} />
        {shape === "lines" && <p class="quiet small">The wider and darker a line, the larger its weight.</p>}
        {paint && (
          <Legend
            kind="weights"
            label="Weight"
            hatched={false}
            {...{ largest, root, paint }}
          />
        )}
        <div class="watched" aria-live="polite">
          {!now && <p class="quiet">Point at a token to see what it reads; click it to pin it.</p>}
          {now?.side === "query" &&
            heads.map((tiles) => (
              <Reads tiles={tiles} query={now.place} words={words} {...(other ? { title: `in ${named(tiles.place)}`, count: 4 } : {})} />
            ))}
          {now?.side === "key" && heads.map((tiles) => <ReadBy tiles={tiles} place={now.place} words={words} />)}
        </div>
      </div>
    </div>
  );
}

/** The queries with the largest weights on a key. */
function ReadBy({ tiles, place, words }: { tiles: HeadTiles; place: number; words: Words }) {
  void tiles.version.value;
  const column = tiles.column(place);
  const best = column ? most(column, 6) : [];
  return (
    <section class="reads by" aria-label="What reads the key most">
      <h3>
        <Word text={words.keys[place] ?? ""} place={place} /> is read most by
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
