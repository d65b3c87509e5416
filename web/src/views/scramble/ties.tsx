// Lines from each unit's given position to its position in the order; the stronger, the larger its weight.
import { PITCH } from "./card";
import type { Reading } from "./weights";

export function Ties({ order, reading }: { order: number[]; reading: Reading | null }) {
  const height = order.length * PITCH;
  const middle = (place: number): number => (place + 0.5) * PITCH - 4;
  return (
    <svg class="ties" viewBox={`0 0 100 ${height}`} height={height} preserveAspectRatio="none" aria-hidden="true">
      {order.map((unit, place) => {
        const share = reading?.mean[unit] ?? 0;
        const [from, to] = [middle(unit), middle(place)];
        return (
          <path
            d={`M 0 ${from} C 45 ${from}, 55 ${to}, 100 ${to}`}
            style={{ strokeWidth: 1.25 + 6 * share, opacity: 0.35 + 0.65 * Math.sqrt(share) }}
          />
        );
      })}
    </svg>
  );
}
