// The logit lens: what each layer would already answer, at every position.
import { useEffect, useRef, useState } from "preact/hooks";
import { scrollAcross } from "../../measuring";
import { Choice, share as chance, visible } from "../../parts";
import type { Lens } from "../../source";
import { letterOn, stepOf, table, usePaint } from "../attention/colours";
import { Legend } from "../attention/legend";
import { signed } from "../attention/reading";
import { shown } from "../attention/stack";

interface LensTableProps {
  lens: Lens;
  /** The same about the token or class that is subtracted. */
  versus: Lens | null;
  /** The position that the answer is about; null for a classifier. */
  place: number | null;
  choose: ((place: number) => void) | null;
}

/** The width of the names of the layers, which stay at the left. */
const NAMES = 100;

type Colour = "likeliest" | "target" | "over";

export function LensTable({ lens, versus, place, choose }: LensTableProps) {
  const [wanted, setColour] = useState<Colour>("likeliest");
  const colour = wanted === "over" && !versus ? "target" : wanted;
  const [at, setAt] = useState({ stage: lens.stages.length - 1, column: 0 });
  const frame = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const own = place === null ? -1 : place - lens.first;
  const focused = { stage: Math.min(at.stage, lens.stages.length - 1), column: Math.min(at.column, lens.positions.length - 1) };
  const kind = colour === "over" ? "difference" : "weights";
  const styles = table(kind, paint?.dark ?? false).styles;
  const odds = versus && lens.targets.map((row, stage) => row.map((value, column) => over(value, versus.targets[stage]?.[column] ?? 0)));
  const largest = Math.max(1e-9, ...(odds ?? []).flat().map(Math.abs));
  const move = (event: KeyboardEvent) => {
    const steps: Record<string, [number, number]> = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const by = steps[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const held = (value: number, count: number) => Math.min(count - 1, Math.max(0, value));
    setAt({ stage: held(focused.stage + by[0], lens.stages.length), column: held(focused.column + by[1], lens.positions.length) });
    const whole = event.currentTarget as HTMLElement;
    requestAnimationFrame(() => whole.querySelector<HTMLElement>('td [tabindex="0"]')?.focus());
  };
  useEffect(() => {
    const scroller = frame.current?.querySelector(".lens-scroll") ?? null;
    scrollAcross(scroller, scroller?.querySelector<HTMLElement>("tfoot [data-own=true]") ?? null, NAMES);
  }, [own, lens]);
  const target = visible(lens.name);
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
          label={colour === "likeliest" ? "Probability of the likeliest" : colour === "target" ? `Probability of ${target}` : "Log-odds"}
          largest={colour === "over" ? largest : 1}
          root={false}
          hatched={false}
        />
      )}
      <div class="lens-scroll" onKeyDown={move}>
        <table aria-label={`What each layer would answer; colours: ${colour === "likeliest" ? "the likeliest" : target}${colour === "over" ? ` over ${visible(versus?.name ?? "")}` : ""}`}>
          <tbody>
            {lens.stages.map((stage, row) => (
              <tr>
                <th scope="row">{stage}</th>
                {lens.positions.map((_, column) => {
                  const name = lens.names[row]?.[column] ?? "";
                  const value = (colour === "over" ? odds : colour === "target" ? lens.targets : lens.probabilities)?.[row]?.[column] ?? 0;
                  const ground = styles[stepOf(kind, colour === "over" ? value / largest : value)] ?? "#ffffff";
                  const about = `${stage}${lens.positions[column] === "" ? "" : `, after ${visible(lens.positions[column] ?? "")}`}: ${visible(name)} ${chance(lens.probabilities[row]?.[column] ?? 0)}, ${target} ${chance(lens.targets[row]?.[column] ?? 0)}`;
                  return (
                    <td data-own={column === own}>
                      <button
                        type="button"
                        aria-label={about}
                        title={about}
                        tabIndex={row === focused.stage && column === focused.column ? 0 : -1}
                        data-target={name === lens.name}
                        style={{ background: ground, color: letterOn(ground) }}
                        onFocus={() => setAt({ stage: row, column })}
                        onClick={() => choose?.(lens.first + column)}
                      >
                        {colour === "over" ? signed(Number(value.toFixed(1))) : colour === "target" ? brief(value) : shown(name, 12)}
                      </button>
                    </td>
                  );
                })}
              </tr>
            )).reverse()}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row">{lens.positions.length > 1 ? "after" : ""}</th>
              {lens.positions.map((token, column) => (
                <th scope="col" class="word" data-own={column === own}>
                  {token === "" ? "" : shown(token, 8)}
                </th>
              ))}
            </tr>
          </tfoot>
        </table>
      </div>
    </div>
  );
}

/** The log-odds of one probability over another, both at least the smallest of float32. */
const over = (one: number, other: number): number => Math.log(Math.max(one, 1e-38) / Math.max(other, 1e-38));

/** A probability in per cent without its sign, in at most three characters. */
const brief = (value: number): string => (value > 0 && value < 0.005 ? "<1" : (100 * value).toFixed(0));
