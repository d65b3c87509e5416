// Refusals in the words of the server, and the few forms of Python's text that they contain.
import { Refused } from "../source";

export function refusing(got: string, expected: string, fix: string): never {
  throw new Refused({ got, expected, fix });
}

export function require(holds: boolean, got: string, expected: string, fix: string): void {
  if (!holds) refusing(got, expected, fix);
}

export function requireFinite(logits: Iterable<number>, fix = "Look for the first NaN in the forward pass."): void {
  for (const logit of logits) require(Number.isFinite(logit), "logits that are not finite", "finite ones", fix);
}

/** A character as Python writes it where it is not printed. */
function escaped(letter: string): string {
  const code = letter.codePointAt(0)!;
  const hex = (length: number) => code.toString(16).padStart(length, "0");
  return code < 0x100 ? `\\x${hex(2)}` : code < 0x10000 ? `\\u${hex(4)}` : `\\U${hex(8)}`;
}

/** A text of at most so many characters in quotes, as Python's `repr` writes it. */
export function quoted(text: string, most = 40): string {
  const some = [...text].slice(0, most).join("");
  const mark = some.includes("'") && !some.includes('"') ? '"' : "'";
  const plain = some.replaceAll("\\", "\\\\").replaceAll(mark, `\\${mark}`).replaceAll("\n", "\\n").replaceAll("\t", "\\t").replaceAll("\r", "\\r");
  return mark + plain.replace(/(?! )[\p{C}\p{Z}]/gu, escaped) + mark;
}

/** A text as Python's `ascii` writes it, on one line and not long. */
export const ascii = (text: string): string =>
  quoted([...text].length > 60 ? `${[...text].slice(0, 57).join("")}...` : text, 60).replace(/[^\x00-\x7f]/gu, escaped);
