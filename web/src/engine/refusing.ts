// Refusals in the words of the server, and the few forms of Python's text that they contain.
import { Refused } from "../source";

export function refusing(got: string, expected: string, fix: string): never {
  throw new Refused({ got, expected, fix });
}

export function require(holds: boolean, got: string, expected: string, fix: string): void {
  if (!holds) refusing(got, expected, fix);
}

/** A number with commas between thousands. */
export const grouped = (value: number): string => value.toLocaleString("en");

/** A text of at most so many characters in quotes, as Python's `repr` writes it. */
export function quoted(text: string, most = 40): string {
  const some = [...text].slice(0, most).join("");
  const mark = some.includes("'") && !some.includes('"') ? '"' : "'";
  const escaped = some.replaceAll("\\", "\\\\").replaceAll(mark, `\\${mark}`);
  return mark + escaped.replaceAll("\n", "\\n").replaceAll("\t", "\\t").replaceAll("\r", "\\r") + mark;
}
