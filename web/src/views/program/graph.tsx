// The graph of a program: its parts in rows, each below the parts that it reads.
import { HIGH, WIDE, type Shape } from "./layout";
import { bare, type PartProps } from "./part";
import { Scroll, Title } from "../../parts";
import type { ProgramPart } from "../../source";

const KINDS: Record<ProgramPart["kind"], string> = {
  input: "input",
  function: "function",
  select: "selector",
  combined: "selector",
  aggregate: "mean of selected",
  width: "number of selected",
};

export function Graph({ program, shape, tokens, followed, lit, light }: PartProps & { shape: Shape }) {
  const { parts } = program;
  return (
    <section class="panel" aria-label="The program">
      <Title title="The program">
        What each part is computed from, and its value by the definition at position {followed} ({tokens[followed]}).
        For a selector, these are the positions that it selects.
      </Title>
      <Scroll label="The program" middle>
        <div class="graph" style={{ width: `${shape.width}px`, height: `${shape.height}px` }}>
          <svg width={shape.width} height={shape.height} aria-hidden="true">
            {shape.lines.map(({ from, to, path }) => (
              <path data-on={lit !== null && (parts[from]?.name === lit || parts[to]?.name === lit)} d={path} />
            ))}
          </svg>
          <ol>
            {parts.map(({ name, kind, sources, domain, values }, at) => {
              const { x = 0, y = 0 } = shape.places[at] ?? {};
              const selects = kind === "select" || kind === "combined";
              const value = values[followed];
              const read = sources.map((source) => parts[source]?.name).join(", ");
              return (
                <li
                  data-kind={selects ? "selector" : kind}
                  data-on={lit === name}
                  data-output={at === parts.length - 1}
                  style={{ left: `${x}px`, top: `${y}px`, width: `${WIDE}px`, height: `${HIGH}px` }}
                  title={`${name}\n${KINDS[kind]}${read && ` of ${read}`}${domain && `\nvalues: ${domain}`}`}
                  onMouseEnter={() => light(name)}
                  onMouseLeave={() => light(null)}
                >
                  <b>{bare(name)}</b>
                  <span>
                    <small>{KINDS[kind]}</small>
                    <code>{value === undefined ? "\u2013" : selects ? `{${value.replaceAll(" ", ", ")}}` : value}</code>
                  </span>
                </li>
              );
            })}
          </ol>
        </div>
      </Scroll>
    </section>
  );
}
