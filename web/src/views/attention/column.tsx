// A column of words that mounts only those in view; a listbox with one tab stop.
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Signal } from "@preact/signals";
import { steppedTo } from "./selection";
import { shown } from "./stack";

export const ROW = 26;

interface ColumnProps {
  words: string[];
  label: string;
  side: "query" | "key";
  /** The scroll offset in pixels. */
  scroll: Signal<number>;
  height: number;
  /** The selected word on this side. */
  active: number | null;
  pin: number | null;
  /** Background and text colour of a word. */
  ground: (place: number) => { background: string; color: string } | null;
  /** Words masked for the selected one are drawn in a quiet colour. */
  quiet: (place: number) => boolean;
  look: (place: number | null) => void;
  choose: (place: number) => void;
}

export function Column(props: ColumnProps) {
  const { words, label, side, scroll, height, active, pin, ground, quiet, look, choose } = props;
  const name = useId();
  const list = useRef<HTMLDivElement>(null);
  const [cursor, setCursor] = useState(0);
  const top = scroll.value;
  const first = Math.max(0, Math.floor(top / ROW) - 4);
  const end = Math.min(words.length, Math.ceil((top + height) / ROW) + 4);
  const here = Math.min(cursor, words.length - 1);
  useLayoutEffect(() => {
    if (list.current && Math.abs(list.current.scrollTop - top) >= 1) list.current.scrollTop = top;
  }, [top, height]);
  const go = (next: number) => {
    setCursor(next);
    if (next * ROW < top) scroll.value = next * ROW;
    else if ((next + 1) * ROW > top + height) scroll.value = (next + 1) * ROW - height;
    look(next);
  };
  const keys = (event: KeyboardEvent) => {
    const next = steppedTo(event, here, words.length, Math.floor(height / ROW));
    if (next !== null) go(next);
    else if (event.key === "Enter" || event.key === " ") choose(here);
    else if (event.key === "Escape") look(null);
    else return;
    event.preventDefault();
  };
  const placeOf = (event: Event): number | null => {
    const option = (event.target as HTMLElement).closest<HTMLElement>("[data-place]");
    return option ? Number(option.dataset.place) : null;
  };
  return (
    <div
      ref={list}
      class={`column column-${side}`}
      role="listbox"
      aria-label={label}
      tabIndex={0}
      aria-activedescendant={`${name}-${here}`}
      style={{ height: `${height}px` }}
      onScroll={(event) => (scroll.value = event.currentTarget.scrollTop)}
      onKeyDown={keys}
      onFocus={(event) => event.currentTarget.matches(":focus-visible") && go(here)}
      onBlur={() => look(null)}
      onPointerOver={(event) => look(placeOf(event))}
      onPointerLeave={(event) => event.pointerType === "mouse" && look(null)}
      onClick={(event) => {
        const place = placeOf(event);
        if (place === null) return;
        setCursor(place);
        choose(place);
      }}
    >
      <div class="column-all" style={{ height: `${words.length * ROW}px` }} role="presentation">
        {words.slice(first, end).map((word, at) => {
          const place = first + at;
          return (
            <div
              key={place}
              id={`${name}-${place}`}
              role="option"
              class="column-word"
              data-place={place}
              data-active={place === active}
              data-quiet={quiet(place)}
              aria-selected={place === pin}
              aria-posinset={place + 1}
              aria-setsize={words.length}
              title={`${word} (${place})`}
              style={{ top: `${place * ROW}px`, height: `${ROW}px` }}
            >
              <span style={ground(place) ?? { background: "", color: "" }}>{shown(word, 18)}</span>
            </div>
          );
        })}
      </div>
    </div>
  );
}
