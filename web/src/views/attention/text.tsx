// Tokens as flowing text: a listbox with one tab stop, recoloured without mounting it again.
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { steppedTo } from "./selection";
import { revealed, shown } from "./stack";

export interface Ground {
  background: string;
  color: string;
}

interface TextProps {
  words: string[];
  label: string;
  active: number | null;
  pin: number | null;
  /** Background of a word. The same object as before is not drawn again. */
  ground: ((place: number) => Ground | null) | null;
  /** The words that are not masked. */
  seen: { first: number; end: number } | null;
  look: (place: number | null) => void;
  choose: (place: number) => void;
}

export function TokenText({ words, label, active, pin, ground, seen, look, choose }: TextProps) {
  const name = useId();
  const text = useRef<HTMLDivElement>(null);
  const drawn = useRef<(Ground | null)[]>([]);
  const [cursor, setCursor] = useState(0);
  const here = Math.min(cursor, words.length - 1);
  // Add no spaces where tokens include them.
  const spaced = useMemo(() => !words.some((word) => /^\s+\S|\S\s+$/.test(word)), [words]);
  const spans = useMemo(() => {
    drawn.current = [];
    return words.map((word, place) => (
      <span key={place} id={`${name}-${place}`} role="option" data-place={place} aria-selected="false">
        {inText(word)}
      </span>
    ));
  }, [words]);
  const options = () => (text.current?.children ?? []) as HTMLCollectionOf<HTMLElement>;

  useEffect(() => {
    const all = options();
    for (let place = 0; place < all.length; place += 1) {
      const next = ground?.(place) ?? null;
      if (drawn.current[place] === next) continue;
      drawn.current[place] = next;
      const span = all[place];
      if (!span) continue;
      span.style.background = next?.background ?? "";
      span.style.color = next?.color ?? "";
    }
  }, [ground, spans]);
  useEffect(() => {
    const all = options();
    for (let place = 0; place < all.length; place += 1) {
      const quiet = seen !== null && (place < seen.first || place >= seen.end);
      const span = all[place];
      if (span && (span.dataset.quiet === "true") !== quiet) span.dataset.quiet = String(quiet);
    }
  }, [seen?.first, seen?.end, spans]);
  useMark(options, "data-active", active, spans);
  useMark(options, "aria-selected", pin, spans);

  // Scroll this box only, not the page around it.
  const show = (place: number) => {
    const [box, span] = [text.current, options()[place]];
    if (!box || !span) return;
    const top = span.offsetTop - box.offsetTop;
    if (top < box.scrollTop || top + span.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = Math.max(0, top - box.clientHeight / 2);
    }
  };
  useEffect(() => {
    if (pin !== null) show(pin);
  }, [pin, spans]);

  const keys = (event: KeyboardEvent) => {
    const next = steppedTo(event, here, words.length, 10);
    if (next !== null) {
      setCursor(next);
      look(next);
      show(next);
    } else if (event.key === "Enter" || event.key === " ") choose(here);
    else if (event.key === "Escape") look(null);
    else return;
    event.preventDefault();
  };
  const placeOf = (event: Event): number | null => {
    const place = (event.target as HTMLElement).dataset.place;
    return place === undefined ? null : Number(place);
  };
  return (
    <div
      ref={text}
      class="token-text"
      data-spaced={spaced}
      role="listbox"
      aria-label={label}
      aria-orientation="horizontal"
      tabIndex={0}
      aria-activedescendant={`${name}-${here}`}
      onKeyDown={keys}
      onFocus={(event) => event.currentTarget.matches(":focus-visible") && look(here)}
      onBlur={() => look(null)}
      onPointerOver={(event) => {
        // Between two words the previous one stays selected, to avoid flicker.
        const place = placeOf(event);
        if (place !== null) look(place);
      }}
      onPointerLeave={(event) => event.pointerType === "mouse" && look(null)}
      onClick={(event) => {
        const place = placeOf(event);
        if (place === null) return;
        setCursor(place);
        choose(place);
      }}
    >
      {spans}
    </div>
  );
}

function useMark(options: () => HTMLCollectionOf<HTMLElement>, mark: string, place: number | null, spans: unknown): void {
  const last = useRef<Element | null>(null);
  useEffect(() => {
    last.current?.setAttribute(mark, "false");
    const next = place === null ? null : (options()[place] ?? null);
    next?.setAttribute(mark, "true");
    last.current = next;
  }, [place, spans]);
}

/** A token within a text: spaces are kept, line breaks are shown and kept. */
function inText(word: string): string {
  if (word.includes("\n")) return word.replace(/\n/g, "\u21B5\n");
  return word === "" ? shown(word) : revealed(word);
}
