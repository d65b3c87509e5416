// The source in its given order: units can be changed, removed or added.
import { useId } from "preact/hooks";
import { focusAround } from "../../parts";
import { Bar, Shares } from "./card";
import type { Reading } from "./weights";

interface GivenProps {
  units: string[];
  /** The units of the model's card: differing ones are marked. */
  own: string[];
  words: string[] | null;
  reading: Reading | null;
  readOnly: boolean;
  change: (unit: number, text: string) => void;
  remove: (unit: number) => void;
}

export function Given({ units, own, words, reading, readOnly, change, remove }: GivenProps) {
  const known = useId();
  const listed = words !== null && units.some((unit) => words.includes(unit));
  return (
    <ol class="cards given" aria-label="The source as it is given" tabIndex={-1}>
      {units.map((text, unit) => (
        <li>
          <div class="card" data-edited={text !== own[unit]}>
            <Bar reading={reading} unit={unit} />
            <input
              type="text"
              class="word"
              value={text}
              readOnly={readOnly}
              spellcheck={false}
              autocomplete="off"
              aria-label={`Place ${unit + 1} of the source`}
              {...(listed ? { list: known } : {})}
              onInput={(event) => change(unit, event.currentTarget.value)}
            />
            <Shares reading={reading} unit={unit} />
            {!readOnly && (
              <button
                type="button"
                class="take"
                disabled={units.length < 2}
                aria-label={`Take out ${text}`}
                title={`Take out ${text}`}
                onClick={(event) => {
                  // The last card's button goes, and an only card's is disabled.
                  if (unit === units.length - 1 || units.length === 2) focusAround(event);
                  remove(unit);
                }}
              >
                {"\u00D7"}
              </button>
            )}
          </div>
        </li>
      ))}
      {listed && (
        <datalist id={known}>
          {words.map((word) => (
            <option value={word} />
          ))}
        </datalist>
      )}
    </ol>
  );
}
