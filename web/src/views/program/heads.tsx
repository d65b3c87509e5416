// Every head of a compiled program with its selector, what it writes, and its attention weights.
import { bare, type PartProps } from "./part";
import type { ProgramHead } from "../../source";
import { Scroll, Title, percent } from "../../parts";

export function Heads(props: PartProps) {
  const { heads } = props.program;
  return (
    <section class="panel" aria-label="Heads">
      <Title title="Heads">
        Attention weights in per cent: rows are queries, columns keys. The sink takes everything where nothing is
        selected; a head that counts w keys leaves it 1 / (w + 1).
      </Title>
      <div class="heads">
        {heads.map((head) => (
          <Head head={head} {...props} />
        ))}
        {heads.length === 0 && <p class="quiet">None: every part is computed at its own position.</p>}
      </div>
    </section>
  );
}

function Head({ head, tokens, followed, choose, lit, light }: PartProps & { head: ProgramHead }) {
  const label = `Layer ${head.layer}, head ${head.head}: ${bare(head.select)}`;
  const on = lit !== null && (head.select === lit || head.writes.includes(lit));
  return (
    <article data-on={on} aria-label={label} onMouseEnter={() => light(head.select)} onMouseLeave={() => light(null)}>
      <header>
        <small class="quiet">
          Layer {head.layer}, head {head.head}
        </small>
        <h3>{bare(head.select)}</h3>
        <small>
          writes <span class="word">{head.writes.join(", ") || "nothing"}</span>
        </small>
      </header>
      <Scroll label={label}>
        <table aria-label={`Attention weights, layer ${head.layer}, head ${head.head}`}>
          <thead>
            <tr>
              <td />
              {tokens.map((token) => (
                <th scope="col" class="word">
                  {token}
                </th>
              ))}
              {head.sink && <th scope="col">sink</th>}
            </tr>
          </thead>
          <tbody>
            {head.weights.map((row, query) => (
              <tr data-on={query === followed} onClick={() => choose(query)}>
                <th scope="row" class="word">
                  {tokens[query]}
                </th>
                {row.map((weight) => (
                  <Cell weight={weight} />
                ))}
                {head.sink && <Cell weight={head.sink[query] ?? 0} sink />}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </article>
  );
}

function Cell({ weight, sink = false }: { weight: number; sink?: boolean }) {
  const text = weight < 0.005 ? "" : percent(weight, 0).replace(" %", "");
  return (
    <td class="number" data-sink={sink} title={String(weight)} style={{ "--tint-by": `${(40 * weight).toFixed(1)}%` }}>
      {text || <span class="none">{"\u00B7"}</span>}
    </td>
  );
}
