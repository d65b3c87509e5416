// The residual stream by variables: what each one is at every position, and the coordinates that hold it.
import { Scroll, Title, short } from "../../parts";
import { shade } from "../design/table";
import type { PartProps } from "./part";

const [DIGITS, FEW] = [3, 3];

/** A number of the stream; what rounding leaves of 0 is 0. */
const brief = (value: number): string => (Math.abs(value) < 1e-9 ? "0" : short(value, DIGITS));

/** The numbers of a few coordinates, where they are not the value itself. */
function numbers(coordinates: number[], row: number[], value = "") {
  const shown = coordinates.map((at) => brief(row[at] ?? 0)).join(" ");
  return coordinates.length <= FEW && shown !== value.replace("-", "\u2212") && <small class="number">{shown}</small>;
}

/** A row for each variable, below the stage that writes it: its value and its coordinates' numbers at every position. */
export function Variables({ program, tokens, followed, choose, lit, light }: PartProps) {
  const { stages, variables, stream } = program;
  const written = stages.map((stage, born) => ({ stage, born, own: variables.filter((each) => each.born === born) }));
  return (
    <section class="panel" aria-label="Variables in the residual stream">
      <Title title="Variables in the residual stream">
        Each variable below the stage that writes it: its value, decoded from the stream, and the numbers in its
        coordinates where these are others and at most three.
      </Title>
      <Scroll label="Variables">
        <table class="variables" aria-label="Variables at every position">
          <thead>
            <tr>
              <th scope="col">variable</th>
              <th scope="col" class="more">
                coordinates
              </th>
              <th scope="col" class="more">
                last read by
              </th>
              {tokens.map((token, position) => (
                <th scope="col" data-on={position === followed}>
                  <button type="button" aria-pressed={position === followed} aria-label={`Follow ${token} at ${position}`} onClick={() => choose(position)}>
                    <small>{position}</small> <span class="word">{token}</span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          {written.map(
            ({ stage, born, own }) =>
              own.length > 0 && (
                <tbody>
                  <tr class="stage">
                    <th scope="rowgroup" colSpan={3 + tokens.length}>
                      {stage}
                    </th>
                  </tr>
                  {own.map(({ name, coordinates, read, values }) => (
                    <tr data-on={lit === name} onMouseEnter={() => light(name)} onMouseLeave={() => light(null)}>
                      <th scope="row">{name}</th>
                      <td class="more quiet">{ranges(coordinates)}</td>
                      <td class="more quiet">{stages[read]}</td>
                      {tokens.map((_, position) => (
                        <td data-on={position === followed}>
                          <span class="word">{values[position]}</span>
                          {numbers(coordinates, stream[born]?.[position] ?? [], values[position])}
                        </td>
                      ))}
                    </tr>
                  ))}
                </tbody>
              ),
          )}
          <tbody>
            <tr class="stage">
              <th scope="rowgroup" colSpan={3 + tokens.length}>
                output
              </th>
            </tr>
            <tr>
              <th scope="row">the transformer's value</th>
              <td class="more" />
              <td class="more" />
              {tokens.map((_, position) => (
                <td data-on={position === followed}>
                  <b class="word">{program.outputs[position]}</b>
                </td>
              ))}
            </tr>
            {program.definition && (
              <tr>
                <th scope="row">the definition's value</th>
                <td class="more" />
                <td class="more" />
                {program.definition.map((value, position) => (
                  <td data-on={position === followed} data-right={program.right?.[position]}>
                    <span class="word">{value}</span>
                  </td>
                ))}
              </tr>
            )}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

/** A row for each coordinate: its number after every stage at one position, and the variable that it holds. */
export function Coordinates({ program, tokens, followed, lit, light }: PartProps) {
  const { stages, variables, stream } = program;
  const shown = stages.slice(0, -1);
  const width = stream[0]?.[0]?.length ?? 0;
  const most = Math.max(...stream.map((stage) => Math.max(...(stage[followed] ?? []).map(Math.abs))), 1e-9);
  return (
    <section class="panel" aria-label="Coordinates of the residual stream">
      <Title title={<>Coordinates at position {followed} (<span class="word">{tokens[followed]}</span>)</>}>
        The residual stream after every stage. A name stands where a variable is written, in its first coordinate;
        after its last reader, numbers are grey until another variable takes their place.
      </Title>
      <Scroll label="Coordinates">
        <table class="coordinates" aria-label="Coordinates after every stage">
          <thead>
            <tr>
              <td />
              {shown.map((stage) => (
                <th scope="col">{stage}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {[...Array(width).keys()].map((at) => (
              <tr>
                <th scope="row" class="number">
                  {at}
                </th>
                {shown.map((_, stage) => {
                  const holder = variables.find((each) => each.coordinates.includes(at) && each.born <= stage && stage < each.read);
                  const value = stream[stage]?.[followed]?.[at] ?? 0;
                  return (
                    <td
                      data-held={holder !== undefined}
                      data-on={holder !== undefined && holder.name === lit}
                      title={`${holder ? holder.name : "no variable that is read"}: ${value}`}
                      style={shade(value, most)}
                      onMouseEnter={() => light(holder?.name ?? null)}
                      onMouseLeave={() => light(null)}
                    >
                      <span class="number">{brief(value)}</span>
                      {holder?.born === stage && !holder.coordinates.includes(at - 1) && <small>{holder.name}</small>}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

/** Numbers in ascending order as ranges: "0–2, 5". */
export function ranges(numbers: number[]): string {
  const found: [number, number][] = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = found[found.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([low, high]) => (low === high ? `${low}` : `${low}\u2013${high}`)).join(", ");
}
