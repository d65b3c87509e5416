// Between text and tokens, as glassformer/explorer/loading/codecs.py and task_models.py do.
import { ruleOf, type Recurrence, type Rule } from "./recurrence";
import { grouped } from "./formatting";
import { quoted, refusing, require } from "./refusing";

/** How texts are read, as the codec of a loaded model describes it. */
export type CodecData =
  | { kind: "numbers"; vocab_size: number; longest: number; recurrence: Recurrence | null }
  | { kind: "letters"; letters: string[]; longest: number; start: string }
  | { kind: "bytes"; longest: number }
  | { kind: "words"; words: string[]; letter: string; boundary: string; invisible: string; longest: number }
  | Lookup;

/** An encoder-decoder's: a text names some of `asks`, after the word `begin`. */
interface Lookup {
  kind: "lookup";
  words: string[];
  asks: { what: string; known: string[]; longest: number };
  begin: string | null;
  /** The units that are read if none are given. */
  source: string[];
  /** A unit is one of `known`, or a fact: a key and a value, which have tables of their own. */
  units: { known: string[] | null; longest: number };
  keys: string[];
  values: string[];
  /** How many tokens are generated at most, and which one ends them. */
  most: number;
  end: number | null;
}

export interface Codec {
  /** The tokens of a text, no more than the model reads. */
  encode(text: string): number[];
  word(token: number): string;
  /** The names of a text's tokens; of a character that several tokens share each has its part, such as "\u00e4 1/2". */
  labels(tokens: number[]): string[];
  /** The largest number of tokens that the model reads. */
  longest: number;
  join(tokens: number[]): string;
  rule(tokens: number[]): Rule | null;
  /** Of an encoder-decoder. */
  source: { given: string[]; read(units: string[]): number[][]; most: number; end: number | null } | null;
}

type Of<K extends CodecData["kind"]> = Extract<CodecData, { kind: K }>;
type Own = Pick<Codec, "encode" | "word" | "longest"> & Partial<Codec>;

export function codecOf(data: CodecData): Codec {
  const own = { numbers, letters, bytes, words, lookup }[data.kind] as (data: CodecData) => Own;
  const found = own(data);
  return { labels: (tokens) => tokens.map(found.word), join: () => "", rule: () => null, source: null, ...found };
}

/** What Python's `str.split` splits at. */
export const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
export const split = (text: string): string[] => text.split(new RegExp(`[${SPACE}]+`, "u")).filter((word) => word !== "");
/** As Python's `str.strip`. */
export const strip = (text: string): string => text.replace(new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "gu"), "");

/** Numbers between spaces. */
function numbers({ vocab_size: size, longest, recurrence }: Of<"numbers">) {
  return {
    encode(text: string) {
      const typed = split(text);
      const expected = `whole numbers from 0 to ${size - 1} between spaces`;
      typed.forEach((word, place) => {
        const fits = /^[0-9]{1,12}$/.test(word) && Number(word) < size;
        require(fits, `${quoted(word)} at place ${place + 1}`, expected, "Type such numbers.");
      });
      const fits = 1 <= typed.length && typed.length <= longest;
      require(fits, `${grouped(typed.length)} numbers`, `1 to ${grouped(longest)}`, "Add or remove some.");
      return typed.map(Number);
    },
    word: String,
    join: (tokens: number[]) => tokens.join(" "),
    rule: (tokens: number[]) => recurrence && ruleOf(tokens, recurrence),
    longest,
  };
}

/** The numbers of a text's letters. */
export function lettersIn(text: string, names: string[], longest: number): number[] {
  const typed = [...text];
  const found = typed.map((letter, place) => {
    const got = () => `the letter ${quoted(letter)} at place ${place + 1} of ${quoted(text, 80)}`;
    if (!names.includes(letter)) refusing(got(), `letters among ${names.join(" ")}`, "Use these; capitals and small letters differ.");
    return names.indexOf(letter);
  });
  const fix = typed.length ? "Shorten it, or choose a task with longer sequences." : "Give at least one letter.";
  require(1 <= typed.length && typed.length <= longest, `a sequence of ${typed.length} letters`, `1 to ${longest} letters`, fix);
  return found;
}

/** Letters without spaces, which are read after a start token. */
function letters({ letters: names, longest, start }: Of<"letters">) {
  const known = [...names, start];
  return {
    encode: (text: string) => [names.length, ...lettersIn(text, names, longest)],
    word: (token: number) => known[token]!,
    join: (tokens: number[]) => tokens.filter((token) => token !== names.length).map((token) => known[token]).join(""),
    longest: longest + 1,
  };
}

/** The bytes of a text in UTF-8. */
function bytes({ longest }: Of<"bytes">) {
  const shown: Record<string, string> = { "\n": "\u23CE", "\t": "\u21E5", " ": "\u2423" };
  const word = (token: number) => {
    const character = String.fromCharCode(token);
    return shown[character] ?? (0x20 < token && token < 0x7f ? character : `\\x${token.toString(16).padStart(2, "0")}`);
  };
  const join = (tokens: number[]) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(tokens));
  const parts = (character: string) => {
    const own = [...new TextEncoder().encode(character)];
    return own.length === 1 ? own.map(word) : own.map((_, at) => `${character} ${at + 1}/${own.length}`);
  };
  return {
    encode(text: string) {
      const tokens = [...new TextEncoder().encode(text)];
      const fits = 1 <= tokens.length && tokens.length <= longest;
      require(fits, `a text of ${grouped(tokens.length)} bytes`, `1 to ${grouped(longest)}`, "Shorten the text.");
      return tokens;
    },
    word,
    // The bytes of a text: whole characters.
    labels: (tokens: number[]) => [...join(tokens)].flatMap(parts),
    join,
    longest,
  };
}

/** Words and punctuation marks in lower case, after the token CLS: see glassformer/data/tokenizer.py. */
function words({ words: known, letter, boundary, invisible, longest }: Of<"words">) {
  const end = "(?![\\p{L}\\p{N}_])";
  const forms = [`${letter}+?(?=n't${end})`, `n't${end}`, `'(?:s|re|ve|ll|d|m)${end}`, `${letter}+`, `[^${SPACE}]`];
  const word = new RegExp(forms.join("|"), "gu");
  const between = new RegExp(boundary, "gu");
  const unseen = new RegExp(invisible, "gu");
  const ids = new Map(known.map((each, token) => [each, token]));
  return {
    encode(text: string) {
      const lower = text.normalize("NFKC").toLowerCase().normalize("NFKC");
      const visible = lower.replace(between, " ").replace(unseen, "").normalize("NFKC");
      const found = visible.replaceAll("\u2019", "'").match(word) ?? [];
      return [ids.get("<CLS>")!, ...found.slice(0, longest - 1).map((each) => ids.get(each) ?? ids.get("<UNK>")!)];
    },
    word: (token: number) => known[token]!,
    longest,
  };
}

function lookup({ words: names, asks, begin, source, units, keys, values, most, end }: Lookup) {
  const listed = (some: string[]) => (some.length <= 14 ? some.join(", ") : `${some.slice(0, 4).join(", ")} ... ${some.at(-1)}`);
  const reader = (known: string[], what: string) => (word: string) => {
    require(known.includes(word), `the ${what} ${quoted(word)}`, `a ${what} among ${listed(known)}`, "Use one of these.");
    return names.lastIndexOf(word);
  };
  const fact = (unit: string) => {
    const [key, ...rest] = unit.split("=").map(strip) as [string, ...string[]];
    const value = rest.join("=");
    const fits = keys.includes(key) && values.includes(value);
    const fix = `Keys are ${listed(keys)}; values are ${listed(values)}.`;
    require(fits, `the fact ${quoted(unit, 80)}`, `a key and a value, such as ${keys[0]}=${values[0]}`, fix);
    return [names.lastIndexOf(key), names.length + names.lastIndexOf(value)];
  };
  const counted = (some: string[], longest: number) => {
    require(1 <= some.length && some.length <= longest, `${some.length} words`, `1 to ${longest}`, "Add or remove some.");
    return some;
  };
  const word = reader(units.known ?? [], "word");
  const read = (some: string[]) => counted(some, units.longest).map((unit) => (units.known ? [word(unit)] : fact(unit)));
  return {
    encode(text: string) {
      const typed = begin === null ? [strip(text)] : [begin, ...split(text)];
      return counted(typed, asks.longest).map(reader(asks.known, asks.what));
    },
    word: (token: number) => names[token]!,
    longest: asks.longest,
    source: { given: source, read, most, end },
  };
}
