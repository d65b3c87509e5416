// What every panel of the view is given.
import type { Program } from "../../source";

export interface PartProps {
  program: Program;
  tokens: string[];
  /** The position whose values are shown. */
  followed: number;
  choose: (position: number) => void;
  /** The name of the part that is pointed at, in whichever panel. */
  lit: string | null;
  light: (name: string | null) => void;
}

/** A selector's name without the word for what it is. */
export function bare(name: string): string {
  const simple = /^select\((.*)\)$/.exec(name)?.[1];
  if (simple !== undefined) return simple;
  return name.includes("select(") ? name.replace(/^\((.*)\)$/, "$1").replace(/select\(([^()]*)\)/g, "$1") : name;
}
