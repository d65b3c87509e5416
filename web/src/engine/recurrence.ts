// Inference of the rule that a text of a recurrence decoder follows, as glassformer/explorer/loading/recurrence_rule.py.

export interface Recurrence {
  order: number;
  vocab_size: number;
  next_prob: number;
}

/** A rule is reported if it and equally good rules with the same continuation are more probable than this. */
const SURE = 0.95;
/** The probability of a number that no rule explains. */
const SLIP = 1e-3;
const [MOST_RULES, MOST_COMPARED] = [1 << 14, 1 << 22];

/** The next number by a rule: its coefficients, oldest place first, times the last numbers. */
const continued = (rule: number[], state: number[], size: number): number =>
  rule.reduce((sum, factor, place) => sum + factor * state[place]!, 0) % size;

/** Of the last question: it is asked for every candidate for the next number. */
let latest: { key: string; found: number[] | null } = { key: "", found: null };

/** The coefficients that most probably generated the numbers; null if that is uncertain. */
function likelyCoefficients(tokens: number[], config: Recurrence): number[] | null {
  const key = `${JSON.stringify(config)} ${tokens.join(" ")}`;
  if (latest.key !== key) latest = { key, found: infer(tokens, config) };
  return latest.found;
}

function infer(tokens: number[], { order, vocab_size: size, next_prob }: Recurrence): number[] | null {
  if (tokens.length <= order) return null;
  // States repeat, so each distinct step is computed once.
  const steps = new Map<string, { state: number[]; next: number; times: number }>();
  for (let at = order; at < tokens.length; at++) {
    const key = tokens.slice(at - order, at + 1).join();
    const step = steps.get(key) ?? { state: tokens.slice(at - order, at), next: tokens[at]!, times: 0 };
    step.times += 1;
    steps.set(key, step);
  }
  const count = size ** order;
  if (count > MOST_RULES || count * steps.size > MOST_COMPARED) return null;
  const rules = Array.from({ length: count }, (_, rule) =>
    Array.from({ length: order }, (_, place) => Math.floor(rule / size ** (order - 1 - place)) % size),
  );
  const logs = rules.map((rule) => {
    let log = 0;
    for (const { state, next, times } of steps.values()) {
      const byRule = Number(continued(rule, state, size) === next);
      const byIncrement = Number((state[order - 1]! + 1) % size === next);
      const chance = next_prob * byIncrement + (1 - next_prob) * byRule;
      log += times * Math.log((1 - SLIP) * chance + SLIP / size);
    }
    return log;
  });
  const most = logs.reduce((a, b) => Math.max(a, b));
  const posterior = logs.map((log) => Math.exp(log - most));
  const best = rules.filter((_, rule) => posterior[rule]! > 0.5);
  const share = posterior.reduce((sum, each) => sum + (each > 0.5 ? each : 0), 0) / posterior.reduce((sum, each) => sum + each, 0);
  const following = new Set(best.map((rule) => continued(rule, tokens.slice(-order), size)));
  if (share <= SURE || following.size > 1) return null;
  // The fewest terms; of equally many the first, as rules are in order.
  const terms = (rule: number[]) => rule.filter((factor) => factor !== 0).length;
  return best.reduce((least, rule) => (terms(rule) < terms(least) ? rule : least));
}

/** The rule as "x[t] = 3 x[t-1] + 2 x[t-2] mod 7, or x[t-1] + 1"; null if it is uncertain. */
export function ruleInWords(tokens: number[], config: Recurrence): string | null {
  const coefficients = likelyCoefficients(tokens, config);
  if (coefficients === null) return null;
  const terms = coefficients
    .slice()
    .reverse()
    .flatMap((factor, at) => (factor === 0 ? [] : [factor === 1 ? `x[t-${at + 1}]` : `${factor} x[t-${at + 1}]`]));
  return `x[t] = ${terms.join(" + ") || "0"} mod ${config.vocab_size}${config.next_prob > 0 ? ", or x[t-1] + 1" : ""}`;
}

/** Whether a number may come next: by the rule, or as the last one plus 1; null if the rule is uncertain. */
export function mayFollow(tokens: number[], candidate: number, config: Recurrence): boolean | null {
  const coefficients = likelyCoefficients(tokens, config);
  if (coefficients === null) return null;
  const [state, size] = [tokens.slice(-config.order), config.vocab_size];
  const byIncrement = (state[state.length - 1]! + 1) % size;
  return candidate === continued(coefficients, state, size) || (config.next_prob > 0 && candidate === byIncrement);
}
