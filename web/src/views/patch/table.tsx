// A patch sweep as a table: rows are layers, the last one above, columns are tokens.
import { useRef } from "preact/hooks";
import type { Patches } from "../../source";
import { styleOf, usePaint } from "../attention/colours";
import { Legend } from "../attention/legend";
import { signed } from "../attention/reading";
import { shown } from "../attention/stack";
import { CellTable } from "../what-if/cell-table";
import { carried, largest } from "./carried";

export interface Spot {
  layer: number;
  position: number;
}

interface PatchTableProps {
  patches: Patches;
  spot: Spot | null;
  choose: (spot: Spot) => void;
}

/** Places that are listed. */
const LISTED = 10;
/** A difference of log-odds whose shares are not rounding alone. */
const SMALLEST = 0.1;

/** Whether the two texts differ enough for a difference to be divided among places. */
export const differing = ({ first, second }: Patches): boolean => Math.abs(first - second) >= SMALLEST;

function CarriedSentence({ shares, tokens }: { shares: (number | null)[][]; tokens: string[] }) {
  const found = carried(shares);
  if (!found) return null;
  const { early, late } = found;
  const place = (position: number) => (
    <>
      <span class="word">{shown(tokens[position] ?? "")}</span> ({position})
    </>
  );
  if (early.position === late.position) return <p>The difference is carried at {place(early.position)}, from the first layer to the last.</p>;
  return (
    <p>
      Up to layer {early.until} the difference is carried at {place(early.position)}, from layer {late.from} on at {place(late.position)}.
    </p>
  );
}

export function PatchTable({ patches, spot, choose }: PatchTableProps) {
  const { first, second, patched, tokens, second_tokens } = patches;
  const frame = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const share = (value: number | null): number | null => (value === null ? null : (value - second) / (first - second));
  const shares = patched.map((row) => row.map(share));
  const inWords = (layer: number, position: number, part: number | null) =>
    `Layer ${layer}, ${shown(tokens[position] ?? "")} (${position}): ${part === null ? "not known yet" : `${hundredths(part)} %`}`;
  const cell = (layer: number, position: number) => {
    const part = share(patched[layer]?.[position] ?? null);
    return {
      text: part === null ? "\u00B7" : hundredths(part),
      about: inWords(layer, position, part),
      ground: styleOf("difference", paint?.dark ?? false, Math.max(-1, Math.min(1, part ?? 0))),
      own: spot?.layer === layer && spot.position === position,
    };
  };
  const both = `Log-odds ${signed(Number(first.toPrecision(3)))} after the first text, ${signed(Number(second.toPrecision(3)))} after the second`;
  if (!differing(patches)) return <p class="quiet number">{both}: too small a difference to be divided among places.</p>;
  return (
    <div class="lens patches" ref={frame}>
      <p class="quiet number">{both}</p>
      <CarriedSentence {...{ shares, tokens }} />
      <CellTable
        label="The share of the difference that each place brings back"
        rows={patched.map((_, layer) => `layer ${layer}`)}
        columns={tokens.length}
        sight={[spot?.layer ?? patched.length - 1, spot?.position ?? tokens.length - 1]}
        choose={(layer, position) => choose({ layer, position })}
        {...{ cell }}
        feet={[tokens, second_tokens].map((words, text) => ({
          name: text === 0 ? "first" : "second",
          words: words.map((word) => shown(word, 8)),
          differs: (position) => tokens[position] !== second_tokens[position],
        }))}
      />
      <ol class="strongest" aria-label="The places that bring back most">
        {largest(shares, LISTED).map(({ layer, position, share: part }) => (
          <li>
            <button type="button" aria-label={inWords(layer, position, part)} onClick={() => choose({ layer, position })}>
              {layer} <span class="word">{shown(tokens[position] ?? "", 8)}</span> <span class="number">{hundredths(part)} %</span>
            </button>
          </li>
        ))}
      </ol>
      {paint && <Legend kind="difference" label="Share that is brought back, %" hatched={false} root={false} largest={100} paint={paint} />}
    </div>
  );
}

/** A share in per cent without its sign. */
const hundredths = (part: number): string => (100 * part).toFixed(0).replace("-", "\u2212").replace(/^\u22120$/, "0");
