// What the colours mean.
import { useEffect, useRef } from "preact/hooks";
import { short } from "../../parts";
import { share, styleOf, type Kind, type Paint } from "./colours";
import { hatching } from "./paint";

interface LegendProps {
  kind: Kind;
  largest: number;
  root: boolean;
  paint: Paint;
  label: string;
  /** Whether some cells are masked. */
  hatched: boolean;
}

const WIDTH = 160;
const HEIGHT = 12;

export function Legend({ kind, largest, root, paint, label, hatched }: LegendProps) {
  const bar = useRef<HTMLCanvasElement>(null);
  const swatch = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const context = bar.current?.getContext("2d");
    if (!context) return;
    for (let x = 0; x < WIDTH; x += 1) {
      const along = x / (WIDTH - 1);
      const value = kind === "weights" ? along * largest : (2 * along - 1) * largest;
      context.fillStyle = styleOf(kind, paint.dark, share(value, largest, root));
      context.fillRect(x, 0, 1, HEIGHT);
    }
  }, [kind, largest, root, paint]);
  useEffect(() => {
    const context = swatch.current?.getContext("2d");
    if (!context) return;
    context.fillStyle = hatching(context, paint);
    context.fillRect(0, 0, 24, HEIGHT);
  }, [paint, hatched]);
  const ends = kind === "weights" ? [0, largest / 2, largest] : [-largest, 0, largest];
  return (
    <div class="legend">
      <span class="legend-label">{label}</span>
      <canvas ref={bar} width={WIDTH} height={HEIGHT} role="img" aria-label={`Colours from ${short(ends[0]!)} to ${short(largest)}`} />
      <span class="legend-ticks number" aria-hidden="true">
        {ends.map((end) => (
          <span>{short(end, 2)}</span>
        ))}
      </span>
      {hatched && (
        <span class="legend-hatch">
          <canvas ref={swatch} width={24} height={HEIGHT} aria-hidden="true" /> masked
        </span>
      )}
    </div>
  );
}
