// Components shared by several views.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { percent } from "./engine/formatting";
import { scrollAcross } from "./measuring";
import { refusalOf, type Refusal, type Source } from "./source";

/** Why something was not answered. */
export function Fault({ refusal }: { refusal: Refusal }) {
  return (
    <div class="fault" role="alert">
      <strong>{refusal.got}</strong>
      <span>
        Expected: {refusal.expected}. {refusal.fix}
      </span>
    </div>
  );
}

/** Shown instead of content that is awaited, or that a refused text does not have. */
export function Awaited({ busy }: { busy: boolean }) {
  return (
    <p class="quiet" data-busy={busy}>
      {busy ? "Reading\u2026" : "Nothing to show yet: the model has read no text."}
    </p>
  );
}

/** The heading of a panel, and what the panel shows. */
export function Title({ title, children }: { title: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class="title">
      <h2>{title}</h2>
      <p class="quiet">{children}</p>
    </div>
  );
}

/** A token or a class, over or minus another one where there is one. */
export function Versus({ name, other, word = "over" }: { name: string; other: string | null; word?: string }) {
  return (
    <>
      <span class="word">{visible(name)}</span>
      {other !== null && <> {word} <span class="word">{visible(other)}</span></>}
    </>
  );
}

interface TabsProps<N extends string> {
  label: string;
  chosen: N;
  tabs: { name: N; title: string }[];
  choose: (name: N) => void;
  /** The prefix of ids: "ID-tab-NAME" for tabs, "ID-view-NAME" for their panels. */
  id: string;
}

/** Tabs that follow the ARIA practices: arrow keys move from one to the next. */
export function Tabs<N extends string>({ label, chosen, tabs, choose, id }: TabsProps<N>) {
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => scrollAcross(list.current, list.current?.querySelector<HTMLElement>('[aria-selected="true"]') ?? null), [chosen]);
  const go = (event: KeyboardEvent) => {
    const at = tabs.findIndex((tab) => tab.name === chosen);
    const steps: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    const next = steps[event.key];
    if (next === undefined) return;
    const tab = tabs[(next + tabs.length) % tabs.length];
    if (!tab) return;
    event.preventDefault();
    choose(tab.name);
    requestAnimationFrame(() => list.current?.querySelector<HTMLElement>('[aria-selected="true"]')?.focus());
  };
  return (
    <div class="tabs" ref={list} role="tablist" aria-label={label} onKeyDown={go}>
      {tabs.map(({ name, title }) => (
        <button
          type="button"
          role="tab"
          id={`${id}-tab-${name}`}
          aria-selected={name === chosen}
          aria-controls={name === chosen ? `${id}-view-${name}` : undefined}
          tabIndex={name === chosen ? 0 : -1}
          onClick={() => choose(name)}
        >
          {title}
        </button>
      ))}
    </div>
  );
}

/** A row of buttons, one of which is pressed. */
export function Choice<N extends string>(props: {
  label: string;
  chosen: N;
  options: { name: N; title: string; hint?: string }[];
  choose: (name: N) => void;
}) {
  return (
    <div class="choice" role="group" aria-label={props.label}>
      {props.options.map(({ name, title, hint }) => (
        <button type="button" aria-pressed={name === props.chosen} title={hint} onClick={() => props.choose(name)}>
          {title}
        </button>
      ))}
    </div>
  );
}

interface ScrollProps {
  label: string;
  class?: string;
  /** Whether the middle is shown first. */
  middle?: boolean;
  children: ComponentChildren;
}

/** Content that may scroll sideways; while it does, it is a tab stop. */
export function Scroll({ label, class: name = "scroll", middle = false, children }: ScrollProps) {
  const ref = useRef<HTMLDivElement>(null);
  const [over, setOver] = useState(false);
  useEffect(() => {
    const box = ref.current;
    if (!box || typeof ResizeObserver === "undefined") return;
    const look = new ResizeObserver(() => setOver(box.scrollWidth > box.clientWidth + 1));
    look.observe(box);
    if (box.firstElementChild) look.observe(box.firstElementChild);
    if (middle) box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2;
    return () => look.disconnect();
  }, []);
  return (
    <div class={name} ref={ref} {...(over ? { tabIndex: 0, role: "region", "aria-label": `${label}, scrolls sideways` } : {})}>
      {children}
    </div>
  );
}

/** The positions of a text as buttons, one of which is pressed; arrow keys move from one to the next. */
export function Positions({ children }: { children: ComponentChildren }) {
  const press = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    const buttons = (event.currentTarget as HTMLElement).querySelectorAll("button");
    const next = buttons[Math.min(Math.max([...buttons].indexOf(event.target as HTMLButtonElement) + step, 0), buttons.length - 1)];
    event.preventDefault();
    next?.focus();
    next?.click();
  };
  return (
    <div class="positions" role="group" aria-label="Follow a position" onKeyDown={press}>
      <span class="quiet">Follow</span>
      {children}
    </div>
  );
}

/** The mark of a judged output. */
export function Mark({ right }: { right: boolean | null }) {
  return (
    <i data-right={right} aria-hidden="true">
      {right === null ? "\u00B7" : right ? "\u2713" : "\u2717"}
    </i>
  );
}

interface VerdictProps {
  mark: string;
  title: string;
  children: ComponentChildren;
  /** An action, where there is one. */
  action?: ComponentChildren;
}

/** The heading of a panel with a `data-verdict`. */
export function Verdict({ mark, title, children, action }: VerdictProps) {
  return (
    <div class="verdict">
      <span class="mark" aria-hidden="true">
        {mark}
      </span>
      <div>
        <h2 aria-live="polite">{title}</h2>
        {children}
      </div>
      {action}
    </div>
  );
}

/** Of a control that goes or is disabled: the focus stays in the nearest part around it that takes one. */
export const focusAround = ({ currentTarget }: { currentTarget: HTMLElement }) =>
  currentTarget.closest<HTMLElement>('[tabindex="-1"]')?.focus({ preventScroll: true });

/** A share from 0 to 1 as a bar. */
export function Bar({ share }: { share: number }) {
  return (
    <span class="share" aria-hidden="true">
      <i style={{ width: `${(100 * Math.min(1, share)).toFixed(1)}%` }} />
    </span>
  );
}

/** How far a computation is. */
export function Under({ label, done, total, children }: { label: string; done: number; total: number; children: string }) {
  return (
    <p class="quiet sweeping">
      <progress max={total} value={done} aria-label={label} /> {children}
    </p>
  );
}

/** A labelled control; a `wide` one takes a whole line. */
export function Field({ label, wide, children }: { label: string; wide?: boolean; children: ComponentChildren }) {
  return (
    <label class={wide ? "field wide" : "field"}>
      <span>{label}</span>
      {children}
    </label>
  );
}

interface NumberedProps<N extends number | null> {
  label: string;
  class?: string;
  disabled?: boolean;
  chosen: N;
  options: { id: number; name: string | number }[];
  /** The name of null, where that can be chosen. */
  none?: string;
  choose: (id: N) => void;
}

/** A labelled list of numbered things, of which one is chosen. */
export function Numbered<N extends number | null>({ label, chosen, options, none, choose, ...more }: NumberedProps<N>) {
  return (
    <Field label={label}>
      <select {...more} value={chosen ?? ""} onChange={({ currentTarget: { value } }) => choose((value === "" ? null : Number(value)) as N)}>
        {none !== undefined && <option value="" selected={chosen === null}>{none}</option>}
        {options.map(({ id, name }) => (
          <option value={id} selected={id === chosen}>{name}</option>
        ))}
      </select>
    </Field>
  );
}

/** As many things as these, named by their numbers. */
export const counted = (count: number): { id: number; name: number }[] => Array.from({ length: count }, (_, id) => ({ id, name: id }));

interface PositionFieldProps {
  label: string;
  last: number;
  value: number | null;
  /** What an empty field means. */
  placeholder: string;
  disabled?: boolean;
  change: (position: number | null) => void;
}

/** A field for a position of a text. */
export function PositionField({ label, last, value, placeholder, disabled = false, change }: PositionFieldProps) {
  return (
    <Field label={`${label}, 0\u2013${last}`}>
      <input
        type="number"
        {...{ min: 0, max: last, step: 1, placeholder, disabled }}
        value={value ?? ""}
        onInput={(event) => {
          const { value, valueAsNumber } = event.currentTarget;
          if (value === "") change(null);
          else if (Number.isInteger(valueAsNumber) && valueAsNumber >= 0 && valueAsNumber <= last) change(valueAsNumber);
        }}
      />
    </Field>
  );
}

interface TokenFieldProps {
  label: string;
  source: Source;
  model: string;
  choose: (id: number) => void;
}

/** A field for any token of the vocabulary: Enter takes the one with which the typed text begins. */
export function TokenField({ label, source, model, choose }: TokenFieldProps) {
  const [fault, setFault] = useState("");
  const take = async (text: string) => {
    try {
      const found = await source.ask("find", { model, text });
      setFault(found.whole ? "" : `Not one token: took ${visible(found.name)}`);
      choose(found.id);
    } catch (error) {
      setFault(refusalOf(error).got);
    }
  };
  return (
    <Field label={label}>
      <input
        type="text"
        class="token"
        placeholder="then Enter"
        onKeyDown={(event) => event.key === "Enter" && event.currentTarget.value !== "" && void take(event.currentTarget.value.replaceAll("\u2423", " "))}
      />
      {fault && <span role="alert" class="quiet">{fault}</span>}
    </Field>
  );
}

export const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

/** A token with visible spaces. */
export function visible(token: string): string {
  return token.replaceAll(" ", "\u2423").replaceAll("\n", "\u21B5").replaceAll("\t", "\u21E5") || "\u2205";
}

export { percent };

/** A probability in per cent; one above 0 is never shown as 0. */
export function share(value: number): string {
  return value > 0 && value < 0.0005 ? "<0.1 %" : percent(value);
}

/** A number in few characters, with a true minus sign. */
export function short(value: number, digits = 3): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e5 || size < 1e-3 ? value.toExponential(1).replace("e+", "e") : String(Number(value.toPrecision(digits)));
  return text.replace("-", "\u2212");
}
