// A patch sweep as a table: rows are layers, the last one above, columns are tokens.
import { useEffect, useRef, useState } from "preact/hooks";
import { scrollAcross } from "../../measuring";
import type { Patches } from "../../source";
import { letterOn, stepOf, table, usePaint } from "../attention/colours";
import { Legend } from "../attention/legend";
import { signed } from "../attention/reading";
import { shown } from "../attention/stack";

export interface Spot {
  layer: number;
  position: number;
}

interface PatchTableProps {
  patches: Patches;
  spot: Spot | null;
  choose: (spot: Spot) => void;
}

/** The width of the names of the layers, which stay at the left. */
const NAMES = 100;
/** Places that are listed. */
const FIRST = 10;
/** A difference of log-odds whose shares are not rounding alone. */
const SMALLEST = 0.1;

export function PatchTable({ patches, spot, choose }: PatchTableProps) {
  const { first, second, patched, tokens, second_tokens } = patches;
  const frame = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const [at, setAt] = useState<Spot>(spot ?? { layer: patched.length - 1, position: tokens.length - 1 });
  const { styles } = table("difference", paint?.dark ?? false);
  const share = (value: number | null): number | null => (value === null ? null : (value - second) / (first - second));
  const ranked = patched
    .flatMap((row, layer) => row.map((value, position) => ({ layer, position, share: share(value) ?? 0 })))
    .sort((one, other) => Math.abs(other.share) - Math.abs(one.share))
    .slice(0, FIRST);
  const move = (event: KeyboardEvent) => {
    const steps: Record<string, [number, number]> = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const by = steps[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const held = (value: number, count: number) => Math.min(count - 1, Math.max(0, value));
    setAt({ layer: held(at.layer + by[0], patched.length), position: held(at.position + by[1], tokens.length) });
    const whole = event.currentTarget as HTMLElement;
    requestAnimationFrame(() => whole.querySelector<HTMLElement>('td [tabindex="0"]')?.focus());
  };
  useEffect(() => {
    const scroller = frame.current?.querySelector(".lens-scroll") ?? null;
    scrollAcross(scroller, scroller?.querySelector<HTMLElement>("td[data-own=true]") ?? null, NAMES);
  }, [spot?.layer, spot?.position]);
  const inWords = (layer: number, position: number, part: number | null) =>
    `Layer ${layer}, ${shown(tokens[position] ?? "")} (${position}): ${part === null ? "not known yet" : `${hundredths(part)} %`}`;
  const both = `Log-odds ${signed(Number(first.toPrecision(3)))} after the first text, ${signed(Number(second.toPrecision(3)))} after the second`;
  if (Math.abs(first - second) < SMALLEST) return <p class="quiet number">{both}: too small a difference to be divided among places.</p>;
  return (
    <div class="lens patches" ref={frame}>
      <p class="quiet number">{both}</p>
      <div class="lens-scroll" onKeyDown={move}>
        <table aria-label="The share of the difference that each place brings back">
          <tbody>
            {patched.map((row, layer) => (
              <tr>
                <th scope="row">layer {layer}</th>
                {row.map((value, position) => {
                  const part = share(value);
                  const ground = styles[stepOf("difference", Math.max(-1, Math.min(1, part ?? 0)))] ?? "#ffffff";
                  const about = inWords(layer, position, part);
                  return (
                    <td data-own={spot?.layer === layer && spot.position === position}>
                      <button
                        type="button"
                        aria-label={about}
                        title={about}
                        tabIndex={layer === at.layer && position === at.position ? 0 : -1}
                        style={{ background: ground, color: letterOn(ground) }}
                        onFocus={() => setAt({ layer, position })}
                        onClick={() => choose({ layer, position })}
                      >
                        {part === null ? "\u00B7" : hundredths(part)}
                      </button>
                    </td>
                  );
                })}
              </tr>
            )).reverse()}
          </tbody>
          <tfoot>
            {[tokens, second_tokens].map((words, text) => (
              <tr>
                <th scope="row">{text === 0 ? "first" : "second"}</th>
                {words.map((word, position) => (
                  <th scope="col" class="word" data-differs={word !== tokens[position] || word !== second_tokens[position]}>
                    {shown(word, 8)}
                  </th>
                ))}
              </tr>
            ))}
          </tfoot>
        </table>
      </div>
      <ol class="strongest" aria-label="The places that bring back most">
        {ranked.map(({ layer, position, share: part }) => (
          <li>
            <button type="button" aria-label={inWords(layer, position, part)} onClick={() => choose({ layer, position })}>
              {layer} <span class="word">{shown(tokens[position] ?? "", 8)}</span> <span class="number">{hundredths(part)} %</span>
            </button>
          </li>
        ))}
      </ol>
      {paint && <Legend kind="difference" label="Share that is brought back" hatched={false} root={false} largest={1} paint={paint} />}
    </div>
  );
}

/** A share in per cent without its sign. */
const hundredths = (part: number): string => (100 * part).toFixed(0).replace("-", "\u2212").replace(/^\u22120$/, "0");
