// Temperature, then top-k, then top-p, as in glassformer/generation/sampling.py. Where all candidates are known, the
// page computes the distribution while a slider moves, and a saved page needs no server.
import { distribution } from "../../engine/sampling";
import type { Candidate, Next } from "../../source";

export interface Rule {
  temperature: number;
  topK: number | null;
  topP: number;
}

/** The step that removed a candidate. */
export type Cut = "temperature" | "top-k" | "top-p";

export interface Ranked extends Candidate {
  /** 0: the most likely. */
  rank: number;
  cut: Cut | null;
  /** Cumulative probability down to this candidate, after temperature and top-k, which decides top-p. */
  reached: number;
}

export interface Distribution {
  candidates: Ranked[];
  kept: number;
  /** Bits. */
  entropy: number;
  /** In bits, before the rule; null unless all candidates are known. */
  entropyBefore: number | null;
}

/** The answer to `next` under another rule. */
export function distributionUnder(rule: Rule, next: Next): Distribution {
  return finished(next.rest === 0 ? recomputed(rule, next.candidates) : next.candidates, rule, next);
}

function recomputed({ temperature, topK, topP }: Rule, candidates: Candidate[]): Candidate[] {
  const logits = Float64Array.from(candidates, ({ logit }) => logit);
  const tempered = distribution(logits, { temperature, top_k: null, top_p: 1 });
  const finals = distribution(logits, { temperature, top_k: topK, top_p: topP });
  return candidates.map((candidate, rank) => {
    const final = finals[rank]!;
    return { ...candidate, tempered: tempered[rank]!, final, kept: final > 0 };
  });
}

function finished(candidates: Candidate[], rule: Rule, next: Next): Distribution {
  // With candidates beyond the list, its sum after temperature is not 1. The candidates that top-k keeps are then
  // known only if all of them are listed.
  const listed = rule.topK !== null && rule.topK <= candidates.length;
  const inside = listed ? candidates.slice(0, rule.topK as number) : candidates;
  const whole = listed || next.rest === 0;
  const total = whole ? inside.reduce((sum, { tempered }) => sum + tempered, 0) || 1 : 1;
  let reached = 0;
  const ranked = candidates.map((candidate, rank) => {
    if (rank < inside.length) reached += candidate.tempered / total;
    return { ...candidate, rank, cut: cutBy(candidate, rank, rule), reached: Math.min(reached, 1) };
  });
  const local = next.rest === 0;
  return {
    candidates: ranked,
    kept: local ? candidates.filter(({ kept }) => kept).length : next.kept,
    entropy: local ? entropy(candidates.map(({ final }) => final)) : next.entropy,
    entropyBefore: local ? entropy(candidates.map(({ plain }) => plain)) : null,
  };
}

function cutBy(candidate: Candidate, rank: number, rule: Rule): Cut | null {
  if (candidate.kept) return null;
  if (candidate.tempered === 0) return "temperature";
  return rule.topK !== null && rank >= rule.topK ? "top-k" : "top-p";
}

function entropy(shares: number[]): number {
  return shares.reduce((sum, share) => (share > 0 ? sum - share * Math.log2(share) : sum), 0);
}
