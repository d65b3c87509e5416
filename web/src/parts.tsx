// Small pieces that several views are made of.
import type { ComponentChildren } from "preact";
import type { Refusal } from "./source";

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

export interface TabsProps<N extends string> {
  label: string;
  chosen: N;
  tabs: { name: N; title: string }[];
  choose: (name: N) => void;
  /** What the ids begin with: of the tabs "ID-tab-NAME", of what they show "ID-view-NAME". */
  id: string;
}

/** Tabs as the ARIA practices have them: arrow keys go from one to the next. */
export function Tabs<N extends string>({ label, chosen, tabs, choose, id }: TabsProps<N>) {
  const go = (event: KeyboardEvent) => {
    const at = tabs.findIndex((tab) => tab.name === chosen);
    const steps: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    const next = steps[event.key];
    if (next === undefined) return;
    const tab = tabs[(next + tabs.length) % tabs.length];
    if (!tab) return;
    event.preventDefault();
    choose(tab.name);
    const list = event.currentTarget as HTMLElement;
    requestAnimationFrame(() => list.querySelector<HTMLElement>('[aria-selected="true"]')?.focus());
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={go}>
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

/** A row of buttons of which one is pressed. */
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

/** A labelled control; `wide` ones take a line of their own. */
export function Field({ label, wide, children }: { label: string; wide?: boolean; children: ComponentChildren }) {
  return (
    <label class={wide ? "field wide" : "field"}>
      <span>{label}</span>
      {children}
    </label>
  );
}

export const percent = (share: number, digits = 1): string => `${(100 * share).toFixed(digits)} %`;

/** A number in few characters, with a true minus sign. */
export function short(value: number, digits = 3): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e5 || size < 1e-3 ? value.toExponential(1).replace("e+", "e") : String(Number(value.toPrecision(digits)));
  return text.replace("-", "\u2212");
}
