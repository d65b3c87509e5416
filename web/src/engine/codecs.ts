// Between text and tokens, as glassformer/explorer/loading/codecs.py and task_models.py do for decoders.
import { grouped, quoted, refusing, require } from "./refusing";
import { mayFollow, ruleInWords, type Recurrence } from "./recurrence";

/** How texts are read, as LoadedDecoder.codec describes it. */
export type CodecData =
  | { kind: "numbers"; vocab_size: number; longest: number; recurrence: Recurrence | null }
  | { kind: "letters"; letters: string[]; longest: number; start: string }
  | { kind: "bytes"; longest: number };

export interface Codec {
  /** The tokens of a text: at least one, and no more than the model reads. */
  encode(text: string): number[];
  word(token: number): string;
  join(tokens: number[]): string;
  obeys(tokens: number[], candidate: number): boolean | null;
  rule(tokens: number[]): string | null;
  /** The largest number of tokens that the model reads. */
  longest: number;
}

const NO_RULE = { obeys: () => null, rule: () => null };

export function codecOf(data: CodecData): Codec {
  switch (data.kind) {
    case "numbers":
      return numbers(data.vocab_size, data.longest, data.recurrence);
    case "letters":
      return letters(data.letters, data.longest, data.start);
    case "bytes":
      return bytes(data.longest);
  }
}

/** Numbers between spaces. */
function numbers(size: number, longest: number, recurrence: Recurrence | null): Codec {
  return {
    encode(text) {
      const words = text.split(SPACES).filter((word) => word !== "");
      const expected = `whole numbers from 0 to ${size - 1} between spaces`;
      words.forEach((word, place) => {
        const fits = /^[0-9]{1,12}$/.test(word) && Number(word) < size;
        require(fits, `${quoted(word)} at place ${place + 1}`, expected, "Type such numbers.");
      });
      const fits = 1 <= words.length && words.length <= longest;
      require(fits, `${grouped(words.length)} numbers`, `1 to ${grouped(longest)}`, "Add or remove some.");
      return words.map(Number);
    },
    word: String,
    join: (tokens) => tokens.join(" "),
    obeys: (tokens, candidate) => recurrence && mayFollow(tokens, candidate, recurrence),
    rule: (tokens) => recurrence && ruleInWords(tokens, recurrence),
    longest,
  };
}

/** What Python's `str.split` splits at. */
const SPACES = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u;

/** Letters without spaces, which are read after a start token. */
function letters(names: string[], longest: number, start: string): Codec {
  const words = [...names, start];
  return {
    encode(text) {
      const typed = [...text];
      const tokens = typed.map((letter, place) => {
        const token = names.indexOf(letter);
        const got = () => `the letter ${quoted(letter)} at place ${place + 1} of ${quoted(text, 80)}`;
        return token < 0 ? refusing(got(), `letters among ${names.join(" ")}`, "Use the task's letters, with their case.") : token;
      });
      const fix = typed.length ? "Shorten it, or choose a task with longer sequences." : "Give at least one letter.";
      require(1 <= typed.length && typed.length <= longest, `a sequence of ${typed.length} letters`, `1 to ${longest} letters`, fix);
      return [names.length, ...tokens];
    },
    word: (token) => words[token]!,
    join: (tokens) => tokens.filter((token) => token !== names.length).map((token) => words[token]).join(""),
    ...NO_RULE,
    longest: longest + 1,
  };
}

/** The bytes of a text in UTF-8. */
function bytes(longest: number): Codec {
  const shown: Record<string, string> = { "\n": "\u23CE", "\t": "\u21E5", " ": "\u2423" };
  return {
    encode(text) {
      const tokens = [...new TextEncoder().encode(text)];
      const fits = 1 <= tokens.length && tokens.length <= longest;
      require(fits, `a text of ${grouped(tokens.length)} bytes`, `1 to ${grouped(longest)}`, "Shorten the text.");
      return tokens;
    },
    word(token) {
      const character = String.fromCharCode(token);
      return shown[character] ?? (0x20 < token && token < 0x7f ? character : `\\x${token.toString(16).padStart(2, "0")}`);
    },
    join: (tokens) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(tokens)),
    ...NO_RULE,
    longest,
  };
}
