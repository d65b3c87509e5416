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
export const bare = (name: string): string => /^select\((.*)\)$/.exec(name)?.[1] ?? name;
