// A slider and the field for its exact number.
import { useRef, useState } from "preact/hooks";

interface SliderProps {
  label: string;
  hint: string;
  min: number;
  max: number;
  step: number;
  value: number;
  said: string;
  change: (value: number, step: boolean) => void;
  children: preact.JSX.Element;
}

export function Slider({ label, hint, min, max, step, value, said, change, children }: SliderProps) {
  // "Back" undoes a whole drag: its first change is a new history entry, the others replace it.
  const dragging = useRef(false);
  return (
    <div class="slider" role="group" aria-label={label}>
      <span class="name" title={hint}>
        {label}
      </span>
      <input
        type="range"
        aria-label={label}
        aria-valuetext={said}
        title={hint}
        {...{ min, max, step, value }}
        onInput={(event) => {
          change(Number(event.currentTarget.value), !dragging.current);
          dragging.current = true;
        }}
        onChange={() => (dragging.current = false)}
      />
      {children}
    </div>
  );
}

interface ExactProps {
  label: string;
  text: string;
  placeholder?: string;
  whole?: boolean;
  low: number;
  high: number;
  /** Null: of an empty field with a placeholder. */
  change: (value: number | null) => void;
}

export function Exact({ label, text, placeholder, whole: integer, low, high, change }: ExactProps) {
  const [typed, setTyped] = useState<string | null>(null);
  /** The number in a text; undefined if there is none. */
  const read = (text: string): number | null | undefined => {
    if (text === "") return placeholder ? null : undefined;
    const value = Number(text.replace("\u2212", "-"));
    return value >= low && value <= high && (!integer || Number.isInteger(value)) ? value : undefined;
  };
  const shown = typed ?? text;
  const wrong = typed !== null && read(typed.trim()) === undefined;
  return (
    <input
      type="text"
      inputMode={integer ? "numeric" : "decimal"}
      class="exact number"
      aria-label={label}
      aria-invalid={wrong}
      value={shown}
      {...(placeholder ? { placeholder } : {})}
      onInput={(event) => {
        const now = event.currentTarget.value;
        const value = read(now.trim());
        setTyped(now);
        if (value !== undefined && String(value ?? "") !== text) change(value);
      }}
      onBlur={() => setTyped(null)}
    />
  );
}
