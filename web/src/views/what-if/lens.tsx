// The logit lens: what each layer would already answer, at every position.
import { useRef, useState } from "preact/hooks";
import { Choice, share as chance, visible } from "../../parts";
import type { Lens } from "../../source";
import { styleOf, usePaint } from "../attention/colours";
import { Legend } from "../attention/legend";
import { signed } from "../attention/reading";
import { shown } from "../attention/stack";
import { CellTable } from "./cell-table";

interface LensTableProps {
  lens: Lens;
  /** The same about the token or class that is subtracted. */
  versus: Lens | null;
  /** The position that the answer is about; null for a classifier. */
  place: number | null;
  /** The number of positions, of which the lens holds some. */
  total: number;
  /** Ask for the part of the text that holds a position. */
  beyond: (position: number) => void;
  choose: ((place: number) => void) | null;
}

/** Letters of a token in a cell. */
const LETTERS = 8;

type Colour = "likeliest" | "target" | "over";

export function LensTable({ lens, versus, place, total, beyond, choose }: LensTableProps) {
  const [wanted, setColour] = useState<Colour>("likeliest");
  const colour = wanted === "over" && !versus ? "target" : wanted;
  const frame = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const own = place === null ? -1 : place - lens.first;
  const kind = colour === "over" ? "difference" : "weights";
  const odds = versus && lens.targets.map((row, stage) => row.map((value, column) => over(value, versus.targets[stage]?.[column] ?? 0)));
  const largest = Math.max(1e-9, ...(odds ?? []).flat().map(Math.abs));
  const target = visible(lens.name);
  const cell = (row: number, column: number) => {
    const name = lens.names[row]?.[column] ?? "";
    const value = (colour === "over" ? odds : colour === "target" ? lens.targets : lens.probabilities)?.[row]?.[column] ?? 0;
    const after = lens.positions[column] === "" ? "" : `, after ${visible(lens.positions[column] ?? "")}`;
    const likeliest = `${visible(name)} ${chance(lens.probabilities[row]?.[column] ?? 0)}`;
    return {
      text: colour === "over" ? signed(Number(value.toFixed(1))) : colour === "target" ? brief(value) : shown(name, LETTERS),
      about: `${lens.stages[row]}${after}: ${likeliest}, ${target} ${chance(lens.targets[row]?.[column] ?? 0)}`,
      ground: styleOf(kind, paint?.dark ?? false, colour === "over" ? value / largest : value),
      own: column === own,
      target: name === lens.name,
    };
  };
  return (
    <div class="lens" ref={frame}>
      <Choice
        label="What the colours show"
        chosen={colour}
        options={[
          { name: "likeliest", title: "Likeliest", hint: "Coloured by the probability of the likeliest one" },
          { name: "target", title: `\u201C${shown(lens.name, 12)}\u201D`, hint: `Coloured by the probability of ${target}` },
          ...(versus ? [{ name: "over" as const, title: `over \u201C${shown(versus.name, 12)}\u201D`, hint: `Coloured by the log-odds of ${target} over ${visible(versus.name)}` }] : []),
        ]}
        choose={setColour}
      />
      {paint && (
        <Legend
          {...{ kind, paint }}
          label={colour === "over" ? "Log-odds" : `Probability of ${colour === "likeliest" ? "the likeliest" : target}, %`}
          largest={colour === "over" ? largest : 100}
          root={false}
          hatched={false}
        />
      )}
      <CellTable
        label={`What each layer would answer; colours: ${colour === "likeliest" ? "the likeliest" : target}${colour === "over" ? ` over ${visible(versus?.name ?? "")}` : ""}`}
        rows={lens.stages}
        columns={lens.positions.length}
        sight={[lens.stages.length - 1, place ?? 0]}
        first={lens.first}
        {...{ total, beyond, cell }}
        choose={(_, column) => choose?.(lens.first + column)}
        feet={[
          {
            name: lens.positions.length > 1 ? "after" : "",
            words: lens.positions.map((token) => (token === "" ? "" : shown(token, LETTERS))),
            own: (column) => column === own,
          },
        ]}
      />
    </div>
  );
}

/** The log-odds of one probability over another, both at least the smallest of float32. */
const over = (one: number, other: number): number => Math.log(Math.max(one, 1e-38) / Math.max(other, 1e-38));

/** A probability in per cent without its sign, in at most three characters. */
const brief = (value: number): string => (value > 0 && value < 0.005 ? "<1" : (100 * value).toFixed(0));
