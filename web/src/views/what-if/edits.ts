// What is changed in a model: the fields of the state, and what a click makes of them.
import contract from "../../contract.json";
import { short } from "../../parts";
import type { Attention, ForbiddenEdge, Part, RemovedHead, WhatIf } from "../../source";
import type { Place, State } from "../../state";
import { letter } from "../experts/names";

export type Edits = Pick<State, "removed" | "forbidden" | "steer" | "swaps">;
export type Steer = NonNullable<Edits["steer"]>;

/** The longest list of edits of one kind. */
export const MOST = contract.State.properties.removed.maxItems;

/** For which heads a click on a cell forbids its edge. */
export type Scope = "head" | "layer" | "stack";

export const isRemoved = ({ removed }: Edits, head: RemovedHead): boolean => removed.some((each) => sameHead(each, head));

const sameHead = (one: RemovedHead, other: RemovedHead): boolean =>
  one.part === other.part && one.layer === other.layer && one.head === other.head;

/** With a head removed, or with it again. */
export function toggleHead(edits: Edits, head: RemovedHead): Partial<State> {
  const others = edits.removed.filter((each) => !sameHead(each, head));
  return { removed: others.length < edits.removed.length ? others : [...others, head] };
}

/** Whether an edge is forbidden in this head. */
const reaches = (edge: ForbiddenEdge, { part, layer, head }: RemovedHead): boolean =>
  edge.part === part && (edge.layer ?? layer) === layer && (edge.head ?? head) === head;

/** The edges that are forbidden in a head. */
export const edgesOf = ({ forbidden }: Edits, head: RemovedHead): ForbiddenEdge[] => forbidden.filter((edge) => reaches(edge, head));

/** How many heads an edge is forbidden in, as a rank: one head, its layer, the stack. */
const width = ({ layer, head }: Pick<ForbiddenEdge, "layer" | "head">): number => Number(layer === null) + Number(head === null);

/**
 * With an edge of a head forbidden, there or in more heads; or, where it is forbidden in as many already, with whatever
 * forbids it there taken back.
 */
export function toggleEdge(edits: Edits, head: RemovedHead, { query, key }: Pick<ForbiddenEdge, "query" | "key">, scope: Scope): Partial<State> {
  const made = { part: head.part, layer: scope === "stack" ? null : head.layer, head: scope === "head" ? head.head : null, query, key };
  const there = edits.forbidden.filter((edge) => edge.query === query && edge.key === key && reaches(edge, head));
  const others = edits.forbidden.filter((edge) => !there.includes(edge));
  const reached = there.some((edge) => width(edge) >= width(made));
  return { forbidden: reached ? others : [...others, made] };
}

/** The swap of an expert, if there is one. */
export const swapOf = ({ swaps }: Edits, layer: number, expert: number) =>
  swaps.find((each) => each.layer === layer && each.expert === expert);

/** With an expert replaced by another one, forbidden (null), or as it was (undefined). */
export function setSwap(edits: Edits, layer: number, expert: number, instead: number | null | undefined): Partial<State> {
  const others = edits.swaps.filter((each) => each.layer !== layer || each.expert !== expert);
  return { swaps: instead === undefined ? others : [...others, { layer, expert, instead }] };
}

/** One change in words, and the state without it. */
export interface Change {
  text: string;
  without: Partial<State>;
}

/**
 * Every change, in the order in which they are made.
 *
 * @param stacks The run's stacks, of which only their names are used.
 * @param word The token at a query or a key of a stack.
 * @param outcome The name of a token or class.
 */
export function changesOf(
  edits: Edits,
  stacks: Pick<Attention, "part" | "label">[],
  word: (edge: ForbiddenEdge, side: "query" | "key") => string,
  outcome: (id: number) => string,
): Change[] {
  const within = (part: Part) => (stacks.length > 1 ? ` of ${stacks.find((each) => each.part === part)?.label ?? part}` : "");
  const without = <T>(list: T[], gone: T): T[] => list.filter((each) => each !== gone);
  const { removed, forbidden, steer, swaps } = edits;
  return [
    ...removed.map((each) => ({
      text: `without layer ${each.layer}, head ${each.head}${within(each.part)}`,
      without: { removed: without(removed, each) },
    })),
    ...forbidden.map((each) => ({
      text: `edge from ${word(each, "query")} to ${word(each, "key")} forbidden in ${scopeOf(each)}${within(each.part)}`,
      without: { forbidden: without(forbidden, each) },
    })),
    ...(steer ? [{ text: steered(steer, outcome), without: { steer: null } }] : []),
    ...swaps.map((each) => ({
      text: `layer ${each.layer}: ${each.instead === null ? `no expert ${letter(each.expert)}` : `expert ${letter(each.instead)} for ${letter(each.expert)}`}`,
      without: { swaps: without(swaps, each) },
    })),
  ];
}

function scopeOf({ layer, head }: ForbiddenEdge): string {
  if (layer === null) return head === null ? "every head" : `head ${head} of every layer`;
  return head === null ? `every head of layer ${layer}` : `layer ${layer}, head ${head}`;
}

function steered({ layer, toward, away, strength }: Steer, outcome: (id: number) => string): string {
  const direction = away === null ? outcome(toward) : `${outcome(toward)}, away from ${outcome(away)}`;
  return `after layer ${layer}: ${short(strength)} times the stream's length towards ${direction}`;
}

/** The outcomes that are shown: the likeliest before or after, in the order that they had before. */
export function shownOutcomes({ outcomes, target }: WhatIf, count: number): WhatIf["outcomes"] {
  const first = outcomes.slice(0, count);
  const own = outcomes.find(({ id }) => id === target);
  if (own && !first.includes(own)) first.push(own);
  return first.sort((one, other) => other.before - one.before);
}

/** log(p / (1 - p)) as a probability. */
export const chanceOf = (logOdds: number): number => 1 / (1 + Math.exp(-logOdds));

export const headOf = (part: Part, { layer, head }: Place): RemovedHead => ({ part, layer, head });

/** The stack whose blocks can be steered: the one that makes the answer. */
export const answering = (stacks: Attention[]): Attention | null =>
  stacks.find(({ part }) => part === "self" || part === "decoder") ?? stacks[0] ?? null;

/** The heads whose removal changes most, at most ten. */
export function strongest(after: (number | null)[][], before: number): Place[] {
  const all = after.flatMap((row, layer) =>
    row.flatMap((value, head) => (value === null ? [] : [{ layer, head, size: Math.abs(value - before) }])),
  );
  return all.sort((one, other) => other.size - one.size).slice(0, 10).map(({ layer, head }) => ({ layer, head }));
}
