// A mixture of experts: the experts of each token in every layer, the router's probabilities, and the experts'
// load.
import { useRef, useState } from "preact/hooks";
import type { ViewProps } from "./props";
import { useAsk } from "../asking";
import { Awaited, Fault, Title, percent, visible } from "../parts";
import type { ExpertLayer, Experts } from "../source";
import "./experts.css";
import { Columns } from "./experts/columns";
import { colour, COLOURS, letter, shared } from "./experts/names";
import { Strip } from "./experts/strip";

export function ExpertsView({ source, store, state, run, busy }: ViewProps) {
  const asked = useAsk(source, "experts", run && { run: run.run });
  const [hovered, setHovered] = useState<{ token: number; layer: number } | null>(null);
  // Experts and tokens of one run: while another text is awaited, the previous run stays.
  const shown = useRef<{ experts: Experts; tokens: string[] } | null>(null);
  if (run && asked.answer && asked.of?.run === run.run) shown.current = { experts: asked.answer, tokens: run.tokens };
  if (asked.refusal) return <Fault refusal={asked.refusal} />;
  if (!shown.current) return <Awaited busy={busy || asked.busy} />;
  const { experts, tokens } = shown.current;
  const pinned = state.pin !== null && state.pin < tokens.length ? state.pin : null;
  const layer = Math.min(state.expertLayer, experts.layers.length - 1);
  const followed = pinned ?? tokens.length - 1;
  const inspected = hovered && hovered.token < tokens.length ? hovered : { token: followed, layer };
  // One scale for all layers, so that they can be compared.
  const surest = Math.max(...experts.layers.flatMap(({ probabilities }) => probabilities[inspected.token] ?? []), 1e-9);
  return (
    <div class="experts" data-busy={asked.busy}>
      <section class="panel" aria-label="Experts of every token">
        <Title title="Experts of every token">
          {experts.num_experts} experts in each of {experts.layers.length} layers; each token goes to {experts.top_k}.
          The letter is its first choice, the line below it the share of the others.
        </Title>
        <Strip
          {...{ experts, tokens, layer }}
          token={followed}
          pinned={pinned !== null}
          choose={(token, at = layer) => store.set({ pin: token, expertLayer: at }, token !== state.pin)}
          hover={(token, at) => setHovered(token === null || at === null ? null : { token, layer: at })}
        />
        <div class="below">
          <output class="details number">{inWords(experts, tokens, inspected)}</output>
          {pinned !== null && (
            <button
              type="button"
              onClick={(event) => {
                // The button goes; the focus stays in its panel.
                event.currentTarget.closest("section")?.querySelector<HTMLElement>("[role=slider]")?.focus();
                store.set({ pin: null }, true);
              }}
            >
              Let go of token {pinned}
            </button>
          )}
        </div>
        <Legend count={experts.num_experts} />
      </section>
      <div class="both">
        <section class="panel" aria-label="One token through the layers">
          <Title title={<>Token {inspected.token}, <span class="word">{visible(tokens[inspected.token] ?? "")}</span>, through the layers</>}>
            {experts.layers.some((each) => each.probabilities.length > 0)
              ? "The router\u2019s probability of each expert. Filled: chosen, with its routing weight."
              : "The chosen experts, with their routing weights. For so long a text, probabilities are not shown."}
          </Title>
          <div class="charts" style={{ "--experts": experts.num_experts }}>
            {experts.layers.map((each) => (
              <TokenLayer key={each.layer} layer={each} token={inspected.token} most={surest} />
            ))}
          </div>
        </section>
        <section class="panel" aria-label="Load of the experts">
          <Title title="Load of each expert">
            Its share of all choices. Dashed: the even share, {even(experts.num_experts)}.
          </Title>
          <div class="charts" style={{ "--experts": experts.num_experts }}>
            {experts.layers.map((each) => (
              <LoadLayer key={each.layer} layer={each} count={experts.num_experts} />
            ))}
          </div>
        </section>
      </div>
    </div>
  );
}

/** The uniform share, without superfluous digits. */
const even = (count: number): string => percent(1 / count, Number.isInteger(100 / count) ? 0 : 1);

function TokenLayer({ layer, token, most }: { layer: ExpertLayer; token: number; most: number }) {
  const choices = layer.choices[token] ?? [];
  const shares = layer.shares[token] ?? [];
  const probabilities = layer.probabilities[token];
  return (
    <figure>
      <figcaption>
        <strong>Layer {layer.layer}</strong>
        <span class="number">{shared(choices, shares)}</span>
      </figcaption>
      {probabilities && (
        <Columns label={`Router of layer ${layer.layer}`} values={probabilities} most={most} filled={choices} />
      )}
    </figure>
  );
}

function LoadLayer({ layer, count }: { layer: ExpertLayer; count: number }) {
  const order = layer.load.map((_, expert) => expert).sort((one, other) => layer.load[other]! - layer.load[one]!);
  const [most, least] = [order[0] ?? 0, order[order.length - 1] ?? 0];
  return (
    <figure>
      <figcaption>
        <strong>Layer {layer.layer}</strong>
        <span class="number">
          {letter(most)} {percent(layer.load[most] ?? 0, 0)} to {letter(least)} {percent(layer.load[least] ?? 0, 0)}
        </span>
      </figcaption>
      <Columns
        label={`Load in layer ${layer.layer}`}
        values={layer.load}
        most={Math.max(2 / count, layer.load[most] ?? 0)}
        filled={null}
        line={1 / count}
      />
    </figure>
  );
}

function Legend({ count }: { count: number }) {
  if (count > COLOURS) {
    return <p class="legend quiet">Experts A to {letter(count - 1)} are numbers 0 to {count - 1}. Colours repeat after {COLOURS}.</p>;
  }
  return (
    <ul class="legend quiet" aria-label="Experts">
      {Array.from({ length: count }, (_, expert) => (
        <li>
          <i style={{ "--own": colour(expert) }}>{letter(expert)}</i> expert {expert}
        </li>
      ))}
    </ul>
  );
}

function inWords(experts: Experts, tokens: string[], { token, layer }: { token: number; layer: number }): string {
  const there = experts.layers[layer];
  if (!there) return "";
  const choices = shared(there.choices[token] ?? [], there.shares[token] ?? []);
  return `Token ${token}, ${visible(tokens[token] ?? "")}, in layer ${layer}: ${choices}`;
}
