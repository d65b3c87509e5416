// The tokens in a row and, below each, its experts in every layer. Only the visible part is drawn.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { visible } from "../../parts";
import type { Experts } from "../../source";
import { Overview } from "./overview";
import { colour, letter, shared } from "./names";

interface StripProps {
  experts: Experts;
  tokens: string[];
  /** The followed token, and the chosen layer. */
  token: number;
  layer: number;
  pinned: boolean;
  choose: (token: number, layer?: number) => void;
  hover: (token: number | null, layer: number | null) => void;
}

const ROW = 30;
const MARGIN = 6;

export function Strip({ experts, tokens, token, layer, pinned, choose, hover }: StripProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ left: 0, width: 0 });
  const width = columnWidth(tokens, seen.width);
  const look = () => {
    const place = scroller.current;
    if (place) setSeen({ left: place.scrollLeft, width: place.clientWidth });
  };
  useLayoutEffect(() => {
    const place = scroller.current;
    if (!place) return;
    look();
    const observer = new ResizeObserver(look);
    observer.observe(place);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    // With another text or model, scroll to the followed token.
    reveal(scroller.current, token, width);
  }, [tokens.length, width]);
  const first = Math.max(0, Math.floor(seen.left / width) - MARGIN);
  const last = Math.min(tokens.length, Math.ceil((seen.left + seen.width) / width) + MARGIN);
  const drawn = Array.from({ length: Math.max(0, last - first) }, (_, at) => first + at);
  const page = Math.max(1, Math.floor(seen.width / width) - 1);
  const key = (event: KeyboardEvent) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
      PageUp: [-page, 0],
      PageDown: [page, 0],
      Home: [-tokens.length, 0],
      End: [tokens.length, 0],
    };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(tokens.length - 1, token + step[0]));
    choose(to, Math.max(0, Math.min(experts.layers.length - 1, layer + step[1])));
    reveal(scroller.current, to, width);
  };
  return (
    <div class="strip">
      <div class="names" aria-hidden="true">
        <span class="word">&nbsp;</span>
        {experts.layers.map((each, at) => (
          <span data-chosen={at === layer}>Layer {each.layer}</span>
        ))}
      </div>
      <div
        class="scroller"
        ref={scroller}
        role="slider"
        tabIndex={0}
        aria-label="Token to follow; up and down change the layer"
        aria-valuemin={0}
        aria-valuemax={tokens.length - 1}
        aria-valuenow={token}
        aria-valuetext={inWords(experts, tokens, token, layer)}
        onKeyDown={key}
        onScroll={look}
        onPointerLeave={() => hover(null, null)}
      >
        <div class="all" style={{ width: `${tokens.length * width}px`, height: `${(experts.layers.length + 1) * ROW}px` }}>
          {drawn.map((place) => (
            <div
              key={place}
              class="place"
              data-token={place}
              data-followed={place === token}
              data-pinned={pinned && place === token}
              style={{ left: `${place * width}px`, width: `${width}px` }}
              aria-hidden="true"
            >
              <span class="word">{visible(tokens[place] ?? "")}</span>
              {experts.layers.map((each, at) => (
                <Cell
                  choices={each.choices[place] ?? []}
                  shares={each.shares[place] ?? []}
                  chosen={place === token && at === layer}
                  enter={() => hover(place, at)}
                  click={() => choose(place, at)}
                />
              ))}
            </div>
          ))}
        </div>
      </div>
      {tokens.length * width > seen.width && seen.width > 0 && (
        <Overview
          {...{ experts, count: tokens.length, token }}
          from={seen.left / width}
          to={(seen.left + seen.width) / width}
          go={(middle) => {
            if (scroller.current) scroller.current.scrollLeft = middle * width - seen.width / 2;
          }}
        />
      )}
    </div>
  );
}

interface CellProps {
  choices: number[];
  shares: number[];
  chosen: boolean;
  enter: () => void;
  click: () => void;
}

/** A cell with each chosen expert's routing weight as a bar, named by the first. */
function Cell({ choices, shares, chosen, enter, click }: CellProps) {
  return (
    <span
      class="cell"
      data-expert={choices[0] === undefined ? "" : letter(choices[0])}
      data-chosen={chosen}
      title={shared(choices, shares)}
      style={{ "--own": colour(choices[0] ?? 0) }}
      onPointerEnter={enter}
      onClick={click}
    >
      <b>{choices[0] === undefined ? "" : letter(choices[0])}</b>
      <span class="others">
        {choices.slice(1).map((expert, at) => (
          <i style={{ width: `${100 * (shares[at + 1] ?? 0)}%`, "--own": colour(expert) }} />
        ))}
      </span>
    </span>
  );
}

function inWords(experts: Experts, tokens: string[], token: number, layer: number): string {
  const there = experts.layers[layer];
  const where = `token ${token}, ${visible(tokens[token] ?? "")}, layer ${layer}`;
  return there ? `${where}: ${shared(there.choices[token] ?? [], there.shares[token] ?? [])}` : where;
}

/** One width for all columns, which fits nine words in ten, so that positions follow without measuring; more where there is space. */
function columnWidth(tokens: string[], room: number): number {
  const lengths = tokens.map((token) => token.length).sort((one, other) => one - other);
  const usual = lengths[Math.floor(0.9 * (lengths.length - 1))] ?? 1;
  return Math.max(30, Math.min(96, 12 + 8.5 * usual), Math.min(48, Math.floor(room / tokens.length)));
}

function reveal(scroller: HTMLElement | null, token: number, width: number): void {
  if (!scroller) return;
  const begins = token * width;
  if (begins < scroller.scrollLeft) scroller.scrollLeft = begins - width;
  else if (begins + width > scroller.scrollLeft + scroller.clientWidth) {
    scroller.scrollLeft = begins + 2 * width - scroller.clientWidth;
  }
}
