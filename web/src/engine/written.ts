// Programs as text, as glassformer/programs/written.py: the part of Python that it reads, without a tree in between, and the
// comparison with a definition on every sequence.
import { Refused } from "../source";
import type { Pause } from "./attention";
import { grouped } from "./formatting";
import {
  EVERYTHING, INDICES, Interpreter, Selector, TOKENS, Variable, aggregate, combined, inverted, isOperator, negative, not, operation,
  select, shown, width, type Value,
} from "./language";
import { ascii, refusing, require } from "./refusing";

const [MOST_CHARACTERS, SECONDS, MOST_SEQUENCES, AT_ONCE, PAIRS_AT_ONCE, DEEPEST] = [2_000, 5, 100_000, 512, 2 ** 18, 150];

/** The sign of an operator of the module `operator`. */
class Sign {
  constructor(readonly sign: string) {}
}
type Part = Variable | Selector;
type Found = Value | Part | Sign;
interface Word {
  kind: "name" | "int" | "str" | "sign" | "other" | "end";
  text: string;
  at: number;
  line: number;
}

const SIGNS = new Map([["eq", "=="], ["ne", "!="], ["lt", "<"], ["le", "<="], ["gt", ">"], ["ge", ">="]]);
/** Of signs of two sides, the loosest first; comparisons are not chained. */
const LEVELS = [["==", "!=", "<", "<=", ">", ">=", "in", "is"], ["|"], ["^"], ["&"], ["<<", ">>"], ["+", "-"], ["*", "/", "//", "%", "@"]];
/** What is called, and its arguments. */
const CALLED = new Map([
  ["select", ["keys", "queries", "predicate", "label"]],
  ["selector_width", ["selector", "label"]],
  ["aggregate", ["selector", "values", "default", "label"]],
  ["pick", ["selector", "values", "default", "label"]],
]);
const NAMES = ["tokens", "indices", "everything", ...CALLED.keys()];
const KEYWORDS = "and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield".split(" ");
const WORD = new RegExp(
  [
    /(?<space>[ \t\f]+|#[^\n]*)/u,
    /(?<newline>\r?\n|\r)/u,
    /(?<str>[rRuU]?(?:'[^'\n]*'|"[^"\n]*"))/u,
    /(?<other>[bBfF][rR]?(?:'[^'\n]*'|"[^"\n]*")|\d[\d_]*(?:\.[\d_]*(?:[eE][-+]?\d+)?[jJ]?|[eE][-+]?\d+[jJ]?|[jJ])|\.\d[\d_]*(?:[eE][-+]?\d+)?[jJ]?|\.\.\.)/u,
    /(?<int>(?:0[xX][\da-fA-F]+|0[oO][0-7]+|0[bB][01]+|[1-9]\d*(?:_\d+)*|0+(?:_0+)*)(?![\p{L}\p{N}_]))/u,
    /(?<name>[\p{L}_][\p{L}\p{N}_]*)/u,
    /(?<sign>\*\*=?|\/\/=?|<<=?|>>=?|[<>=!]=|->|[-+*\/%@&|^]=|[-+*\/%@&|^~<>()[\]{},:.;=])/u,
  ].map(({ source }) => source).join("|"),
  "uy",
);

/** @throws Refused for a text that is no program. */
export function readWritten(text: string, vocabulary: Value[]): Variable {
  require([...text].length <= MOST_CHARACTERS, `${grouped([...text].length)} characters`, `at most ${grouped(MOST_CHARACTERS)}`, "Shorten it.");
  require(!text.includes("\\"), "a backslash", "a text without", "Remove it.");
  const found = new Reader(text, vocabulary).read();
  if (!(found instanceof Variable)) refusing(ascii([...text.trim()].slice(-40).join("")), "a variable in the last line", "End with what the program computes.");
  return found;
}

class Reader {
  private readonly words: Word[] = [];
  private place = 0;
  private depth = 0;
  private readonly texts: Value[];
  private readonly names = new Map<string, Found>([["tokens", TOKENS], ["indices", INDICES], ["everything", EVERYTHING]]);

  constructor(
    private readonly text: string,
    vocabulary: Value[],
  ) {
    this.texts = vocabulary.filter((token) => typeof token === "string");
    let [at, line, open] = [0, 1, 0];
    while (at < text.length) {
      WORD.lastIndex = at;
      const groups = WORD.exec(text)?.groups as Partial<Record<Word["kind"] | "space" | "newline", string>> | undefined;
      if (!groups || text.startsWith(":=", at)) throw this.unread(line);
      const [kind, word] = Object.entries(groups).find(([, each]) => each !== undefined) as [Word["kind"] | "space" | "newline", string];
      if (kind === "newline" && open === 0) this.words.push({ kind: "end", text: "", at, line });
      else if (kind === "space" && word[0] !== "#" && open === 0 && this.starts()) {
        if (!/^[ \t\f]*(?:[\r\n#]|$)/.test(text.slice(at))) throw this.unread(line, "unexpected indent");
      } else if (kind !== "newline" && kind !== "space") {
        open += Number("([{".includes(word)) - Number(")]}".includes(word));
        if (word === ";" && (this.words.at(-1)?.kind ?? "end") === "end") throw this.unread(line);
        this.words.push(word === ";" ? { kind: "end", text: word, at, line } : { kind, text: word, at, line });
      }
      line += Number(kind === "newline");
      at += word.length;
    }
    if (open !== 0) throw this.unread(line, open > 0 ? "a parenthesis that is not closed" : "a parenthesis that was not opened");
    this.words.push({ kind: "end", text: "", at, line });
  }

  /** Whether a line begins here. */
  private starts(): boolean {
    const last = this.words.at(-1);
    return last === undefined || (last.kind === "end" && last.text !== ";");
  }

  /** What the last line is. */
  read(): Found {
    let found: Found = null;
    for (; this.place < this.words.length; this.place++) if (this.next.kind !== "end") found = this.line();
    return found;
  }

  private get next(): Word {
    return this.words[this.place]!;
  }

  private is(...signs: string[]): boolean {
    return (this.next.kind === "sign" || this.next.kind === "name") && signs.includes(this.next.text);
  }

  private taken(...signs: string[]): boolean {
    const is = this.is(...signs);
    this.place += Number(is);
    return is;
  }

  private unread(line: number, what = "invalid syntax"): Refused {
    return new Refused({ got: `line ${line}: ${what}`, expected: "a program of this language", fix: "Correct it." });
  }

  /** Refuses what was read since a word, or that word. */
  private refuse(from: Word, expected: string): never {
    const read = this.words[this.place - 1];
    const until = read && read.at >= from.at ? read : from;
    const got = `${ascii(this.text.slice(from.at, until.at + until.text.length))} in line ${from.line}`;
    refusing(got, expected, "Replace it.");
  }

  private line(): Found {
    const [first, then] = [this.next, this.words[this.place + 1]!];
    const whole = (): never => {
      while (this.next.kind !== "end") this.place++;
      return this.refuse(first, "name = ..., with a name of your own, or the program");
    };
    const named = first.kind === "name" && then.kind === "sign" && then.text === "=";
    if (named && ([...NAMES, "operator", "___", "None", "True", "False"].includes(first.text) || KEYWORDS.includes(first.text))) whole();
    if (first.kind === "name" && KEYWORDS.includes(first.text) && !["not", "lambda", "await", "yield"].includes(first.text)) whole();
    if (named) this.place += 2;
    const found = this.value();
    if (this.next.kind === "sign" && (this.next.text.endsWith("=") || this.is(":"))) whole();
    if (this.next.kind !== "end") throw this.unread(this.next.line);
    if (named) this.names.set(first.text, found);
    return found;
  }

  /** A part of a program, a constant, or what compares a key with a query. */
  private value(level = 0): Found {
    const from = this.next;
    if (level === LEVELS.length) return this.unary();
    let found = this.value(level + 1);
    for (let chained = false; this.is(...LEVELS[level]!); chained = level === 0) {
      const sign = this.words[this.place++]!.text;
      const right = this.value(level + 1);
      if (chained) this.unknown(from, false);
      found = this.computed(from, sign, found, right);
    }
    if (level === 0 && this.is("and", "or", "if", "not", "for")) this.unknown(from);
    return found;
  }

  /** Refuses what was read since a word and, `further`, what follows until a comma or the end of parentheses. */
  private unknown(from: Word, further = true): never {
    for (let open = 0; further && this.next.kind !== "end" && (open > 0 || !this.is(",", ")", "]")); this.place++) {
      open += Number(this.is("(", "[")) - Number(this.is(")", "]"));
    }
    this.refuse(from, `one of ${NAMES.join(", ")}, operator.eq and others, and operators`);
  }

  private unary(): Found {
    const from = this.next;
    if (!this.taken("-", "~", "+", "not")) return this.power();
    if (++this.depth > DEEPEST) throw this.unread(from.line, "too deeply nested");
    const found = this.unary();
    this.depth--;
    const literal = /^-[\s(]*\d\w*[\s)]*$/.test(this.text.slice(from.at, this.next.at));
    if (literal && typeof found === "bigint") return -found;
    return this.computed(from, from.text === "~" ? "~" : `unary ${from.text}`, found);
  }

  private power(): Found {
    const from = this.next;
    const found = this.atom();
    if (this.taken("**")) this.refuse(from, "an operator of two variables, of a variable and a number, or of two selectors");
    if (this.is(".", "[", "(")) this.unknown(from);
    return found;
  }

  private atom(): Found {
    const word = this.words[this.place++]!;
    if (word.kind === "int") return BigInt(word.text.replaceAll("_", ""));
    if (word.kind === "str") {
      let value = "";
      for (this.place--; this.next.kind === "str"; this.place++) value += this.next.text.replace(/^[rRuU]/, "").slice(1, -1);
      if (!this.texts.includes(value)) this.unknown(word, false);
      return value;
    }
    if (word.kind === "sign" && word.text === "(") {
      if (++this.depth > DEEPEST) throw this.unread(word.line, "too deeply nested");
      const found = this.value();
      if (this.is(",")) this.unknown(word);
      if (!this.taken(")")) throw this.unread(this.next.line);
      this.depth--;
      return found;
    }
    if (word.kind !== "name") {
      if (word.kind === "end" || (word.kind === "sign" && !"[{".includes(word.text))) throw this.unread(word.line);
      this.unknown(word);
    }
    if (word.text === "None") return null;
    if (word.text === "True" || word.text === "False") return word.text === "True";
    const sign = word.text === "operator" && this.is(".") && SIGNS.get(this.words[this.place + 1]!.text);
    if (sign) {
      this.place += 2;
      return new Sign(sign);
    }
    const names = CALLED.get(word.text);
    if (names && this.is("(")) return this.called(word, names);
    if (KEYWORDS.includes(word.text)) this.unknown(word);
    const known = this.names.get(word.text);
    if (known === undefined && this.is("(", ".", "[")) this.unknown(word);
    if (known === undefined) this.refuse(word, `a value: one of ${[...new Set([...NAMES, ...this.names.keys()])].join(", ")}, or what is made of them`);
    return known;
  }

  private called(word: Word, names: string[]): Found {
    const given = new Map<string, Found>();
    const fitting = (fits: boolean) => {
      if (!fits) throw this.unread(word.line, `${word.text}() takes ${names.join(", ")}`);
    };
    let positional = true;
    this.place++;
    while (!this.taken(")")) {
      const named = this.next.kind === "name" && this.words[this.place + 1]!.text === "=";
      const name = named ? this.next.text : names[given.size];
      this.place += named ? 2 : 0;
      if (this.is("*", "**")) this.unknown(this.next);
      const value = this.value();
      fitting(name !== undefined && names.includes(name) && !given.has(name) && (named || positional));
      positional &&= !named;
      given.set(name!, value);
      if (!this.taken(",") && !this.is(")")) throw this.unread(this.next.line);
    }
    const label = given.get("label") ?? "";
    fitting(typeof label === "string" && names.every((name) => given.has(name) || name === "label" || name === "default"));
    return this.made(word, given, label as string);
  }

  private made(word: Word, given: Map<string, Found>, label: string): Part {
    const of = <T extends Part>(name: string, kind: abstract new (...made: never[]) => T, expected: string, fix: string): T => {
      const value = given.get(name)!;
      if (!(value instanceof kind)) refusing(`${name} = ${described(value)}`, expected, fix);
      return value;
    };
    const variable = (name: string) => of(name, Variable, "a variable", "Build it from tokens and indices.");
    const selector = () => of("selector", Selector, "a selector", "Use select().");
    if (word.text === "selector_width") return width(selector(), label);
    if (word.text === "select") {
      const [keys, queries, compared] = [variable("keys"), variable("queries"), given.get("predicate")!];
      if (compared instanceof Sign) return select(keys, queries, compared.sign, label);
      return refusing(`predicate = ${described(compared)}`, "a function of a key's and a query's value", "Use operator.eq.");
    }
    const missing = given.get("default") ?? null;
    if (isPart(missing) || missing instanceof Sign) {
      return refusing(`default = ${described(missing)}`, "a finite number, a string, None or a tuple of these", "Return None where there is no value.");
    }
    return aggregate(selector(), variable("values"), missing, word.text === "pick", label);
  }

  /** What an operator makes of parts. */
  private computed(from: Word, sign: string, one: Found, other?: Found): Part {
    if (one instanceof Selector && sign === "~") return inverted(one);
    if (one instanceof Selector && other instanceof Selector && (sign === "&" || sign === "|")) return combined(sign, one, other);
    if (one instanceof Variable && (sign === "unary -" || sign === "~")) return sign === "~" ? not(one) : negative(one);
    const [left, right] = [one instanceof Variable, other instanceof Variable];
    let fits = isOperator(sign) && (left || right) && ![one, other].some((each) => each instanceof Selector || each instanceof Sign);
    if (sign === "*" || sign === "/") fits &&= left !== right;
    if (["/", "%", "//", "&", "|"].includes(sign)) fits &&= left;
    if (!fits) this.refuse(from, "an operator of two variables, of a variable and a number, or of two selectors");
    return operation(sign, one as Value | Variable, other as Value | Variable);
  }
}

const isPart = (value: Found): value is Part => value instanceof Variable || value instanceof Selector;
const described = (value: Found): string => (isPart(value) ? value.label : value instanceof Sign ? `operator ${value.sign}` : shown(value));

// ---- comparison -----------------------------------------------------------------------------------------------------

export interface Comparison {
  verdict: "holds" | "fails" | "undecided";
  num_checked: number;
  num_possible: number;
  /** The shortest sequence on which they differ, as places in the vocabulary. */
  counterexample: { tokens: number[]; position: number; found: Value } | null;
}

/** Runs a program on every sequence, the shortest first; `wanted` gives the numbers of a definition's values, null where it has none. */
export async function compare(
  program: Variable, interpreter: Interpreter, vocabulary: number[], most: number, wanted: (tokens: number[]) => number[] | null, pause: Pause,
): Promise<Comparison> {
  const until = performance.now() + 1000 * SECONDS;
  const letters = vocabulary.length;
  const numbered = (tokens: number[]) => tokens.map((token) => vocabulary[token]!);
  let [num_checked, num_possible, left] = [0, 0, MOST_SEQUENCES];
  for (let length = 1; length <= most; length++) num_possible += letters ** length;
  const sofar = () => ({ verdict: num_checked === num_possible ? "holds" : "undecided", num_checked, num_possible, counterexample: null }) as const;
  for (let length = 1; length <= most && left > 0; length++) {
    const count = Math.min(letters ** length, left);
    left -= count;
    const step = Math.max(1, Math.min(AT_ONCE, Math.floor(PAIRS_AT_ONCE / length ** 2)));
    for (let start = 0; start < count; start += step) {
      const some = Math.min(step, count - start);
      let first: { row: number; tokens: number[]; position: number; found: Value } | null = null;
      for (let row = 0; row < some; row++) {
        if (performance.now() > until) return sofar();
        const tokens = Array.from({ length }, (_, place) => Math.floor((start + row) / letters ** (length - 1 - place)) % letters);
        const outputs = interpreter.run(program, numbered(tokens));
        // After the first difference programs run on: where a function fails within this block, it is refused, as by the server.
        const values: number[] | null = first ? null : wanted(tokens);
        const position: number = values === null ? -1 : interpreter.missing ? 0 : outputs.findIndex((value, at) => value !== values[at]);
        if (position >= 0) first = { row, tokens, position, found: interpreter.value(outputs[position]!) };
      }
      if (first) {
        interpreter.required(program, numbered(first.tokens)); // which says why there is no value
        return { verdict: "fails", num_checked: num_checked + first.row + 1, num_possible, counterexample: first };
      }
      num_checked += some;
      await pause();
    }
  }
  return sofar();
}
