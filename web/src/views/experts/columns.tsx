// A small bar chart of one number for each expert, with a dashed reference line.
import { scaleLinear } from "d3-scale";
import { percent } from "../../parts";
import { colour, letter } from "./names";

interface ColumnsProps {
  label: string;
  values: number[];
  /** The value of the tallest bar. */
  most: number;
  /** Experts whose bars are filled; null: all. */
  filled: number[] | null;
  line?: number;
}

const HEIGHT = 72;

export function Columns({ label, values, most, filled, line }: ColumnsProps) {
  // The tallest bar leaves some space above it.
  const scale = scaleLinear([0, most], [0, 0.9 * HEIGHT]).clamp(true);
  const description = values.map((value, expert) => `${letter(expert)} ${percent(value, 0)}`).join(", ");
  return (
    <div class="columns" role="img" aria-label={`${label}: ${description}`} style={{ "--experts": values.length }}>
      {values.map((value, expert) => (
        <div class="column" title={`Expert ${letter(expert)}: ${percent(value)}`}>
          <div class="room" style={{ height: `${HEIGHT}px` }}>
            <span
              class="size"
              data-filled={filled === null || filled.includes(expert)}
              style={{ height: `${Math.max(1, scale(value))}px`, "--own": colour(expert) }}
            />
          </div>
          <span class="letter" data-between={values.length > 16 && expert % 4 !== 0}>
            {letter(expert)}
          </span>
        </div>
      ))}
      {line !== undefined && <span class="even" style={{ top: `${HEIGHT - scale(line)}px` }} />}
    </div>
  );
}
