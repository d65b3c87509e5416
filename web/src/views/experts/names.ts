// Names of experts: letters, since tokens may be numbers.

/** 0, 1, ... 25, 26 become A, B, ... Z, AA. */
export function letter(expert: number): string {
  const last = String.fromCharCode(65 + (expert % 26));
  return expert < 26 ? last : letter(Math.floor(expert / 26) - 1) + last;
}

/** The number of colours in the style sheet. Further experts share them and differ by letter. */
export const COLOURS = 8;

export function colour(expert: number): string {
  return `var(--expert-${expert % COLOURS})`;
}

/** "A 62 %, C 38 %" */
export function shared(choices: number[], shares: number[]): string {
  return choices.map((expert, at) => `${letter(expert)} ${Math.round(100 * (shares[at] ?? 0))} %`).join(", ");
}
