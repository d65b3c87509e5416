// Inference of the rule that a text of a recurrence decoder follows, as glassformer/explorer/loading/recurrence_rule.py.

export interface Recurrence {
  order: number;
  vocab_size: number;
  next_prob: number;
}

export interface Rule {
  words: string;
  followers: number[];
}

/** A rule is reported if it and equally good rules with the same continuation are more probable than this. */
const SURE = 0.95;
/** The probability of a number that no rule explains. */
const SLIP = 1e-3;
const [MOST_RULES, MOST_COMPARED] = [1 << 14, 1 << 22];

/** The next number by a rule: its coefficients, oldest place first, times the last numbers. */
const continued = (rule: number[], state: number[], size: number): number =>
  rule.reduce((sum, factor, place) => sum + factor * state[place]!, 0) % size;

/** The coefficients that most probably generated the numbers; null if that is uncertain. */
function likelyRule(tokens: number[], { order, vocab_size: size, next_prob }: Recurrence): number[] | null {
  // Steps repeat, so each distinct one is computed once.
  const steps = new Map<string, { step: number[]; times: number }>();
  for (let at = order; at < tokens.length; at++) {
    const step = tokens.slice(at - order, at + 1);
    steps.set(step.join(), { step, times: (steps.get(step.join())?.times ?? 0) + 1 });
  }
  const count = size ** order;
  if (steps.size === 0 || count > MOST_RULES || count * steps.size > MOST_COMPARED) return null;
  const rules = Array.from({ length: count }, (_, rule) =>
    Array.from({ length: order }, (_, place) => Math.floor(rule / size ** (order - 1 - place)) % size),
  );
  const logs = rules.map((rule) => {
    let log = 0;
    for (const { step, times } of steps.values()) {
      const byRule = Number(continued(rule, step, size) === step[order]);
      const byIncrement = Number((step[order - 1]! + 1) % size === step[order]);
      log += times * Math.log((1 - SLIP) * (next_prob * byIncrement + (1 - next_prob) * byRule) + SLIP / size);
    }
    return log;
  });
  const most = logs.reduce((a, b) => Math.max(a, b));
  const posterior = logs.map((log) => Math.exp(log - most));
  const best = rules.filter((_, rule) => posterior[rule]! > 0.5);
  const sum = (shares: number[]) => shares.reduce((all, share) => all + share, 0);
  const following = new Set(best.map((rule) => continued(rule, tokens.slice(-order), size)));
  if (sum(posterior.filter((share) => share > 0.5)) / sum(posterior) <= SURE || following.size > 1) return null;
  // The fewest terms; of equally many the first, as rules are in order.
  const terms = (rule: number[]) => rule.filter((factor) => factor !== 0).length;
  return best.reduce((least, rule) => (terms(rule) < terms(least) ? rule : least));
}

/** The rule as "x[t] = 3 x[t-1] + 2 x[t-2] mod 7, or x[t-1] + 1", and the numbers that may come next. */
export function ruleOf(tokens: number[], config: Recurrence): Rule | null {
  const rule = likelyRule(tokens, config);
  if (rule === null) return null;
  const { order, vocab_size: size, next_prob } = config;
  const terms = [...rule].reverse().map((factor, at) => [factor === 1 ? "" : `${factor} `, `x[t-${at + 1}]`, factor] as const);
  const sum = terms.flatMap(([times, place, factor]) => (factor === 0 ? [] : [times + place])).join(" + ");
  const byRule = continued(rule, tokens.slice(-order), size);
  return {
    words: `x[t] = ${sum || "0"} mod ${size}${next_prob > 0 ? ", or x[t-1] + 1" : ""}`,
    followers: next_prob > 0 ? [byRule, (tokens.at(-1)! + 1) % size] : [byRule],
  };
}
