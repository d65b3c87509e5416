// One unit of the source, with the answer's weight on it.
import { percent } from "../../parts";
import type { Reading } from "./weights";

/** Pixels from one card to the next, as in scramble.css. */
export const PITCH = 48;

export function Bar({ reading, unit }: { reading: Reading | null; unit: number }) {
  const share = reading?.mean[unit] ?? 0;
  return <i class="bar-of" aria-hidden="true" style={{ width: `${(100 * share).toFixed(2)}%` }} />;
}

/** Each head's weight as a small square, and their mean as a number. */
export function Shares({ reading, unit }: { reading: Reading | null; unit: number }) {
  if (!reading) return <span class="shares" />;
  return (
    <span class="shares">
      <span class="head-squares" aria-hidden="true">
        {reading.byHead.map((row, head) => (
          <i
            title={`head ${head}: ${percent(row[unit] ?? 0)}`}
            style={{ "--tint-by": `${(100 * Math.sqrt(row[unit] ?? 0)).toFixed(1)}%` }}
          />
        ))}
      </span>
      <span class="number">{percent(reading.mean[unit] ?? 0, 0)}</span>
    </span>
  );
}
