// The language of programs over sequences, as glassformer/programs/language.py, on one sequence after another.
import { refusing, require } from "./refusing";

/** A fraction that is no whole number, in lowest terms. */
class Fraction {
  constructor(
    readonly over: bigint,
    readonly under: bigint,
  ) {}
}
export type Value = null | boolean | bigint | string | Fraction;

const [LONGEST_NAME, LONGEST_WORD] = [120, 20];

// ---- values ---------------------------------------------------------------------------------------------------------

function typeOf(value: Value): string {
  if (value === null) return "NoneType";
  if (value instanceof Fraction) return "Fraction";
  return { boolean: "bool", bigint: "int", string: "str" }[typeof value as "boolean" | "bigint" | "string"];
}

function text(value: Value): string {
  if (value instanceof Fraction) return `${value.over}/${value.under}`;
  return value === null ? "None" : typeof value === "boolean" ? (value ? "True" : "False") : `${value}`;
}

/** What tells a value from all others, as glassformer/explorer/saving/saved_program.py writes it. */
const typed = (value: Value): string => `${typeOf(value)} ${text(value)}`;

/** Whether it is one of the values that programs can be written of. */
export const isKnown = (key: string): boolean => /^(str|int|bool|NoneType|Fraction) /.test(key);

export function untyped(key: string): Value {
  const [kind, rest] = [key.slice(0, key.indexOf(" ")), key.slice(key.indexOf(" ") + 1)];
  require(isKnown(key), `a token of type ${kind}`, "texts and numbers", "Compile with another vocabulary.");
  if (kind === "str") return rest;
  if (kind === "int") return BigInt(rest);
  if (kind === "Fraction") return ratio(...(rest.split("/").map(BigInt) as [bigint, bigint]));
  return kind === "bool" ? rest === "True" : null;
}

const cut = (name: string, most = LONGEST_NAME): string => (name.length > most ? `${name.slice(0, most - 3)}...` : name);

/** As an output is shown. */
export const inWords = (value: Value): string => cut(text(value), LONGEST_WORD);

/** As a message shows it. */
export const shown = (value: Value): string => cut(typeof value === "string" ? (value.includes("'") ? `"${value}"` : `'${value}'`) : text(value));

// ---- numbers, exactly -----------------------------------------------------------------------------------------------

const isNumber = (value: Value): value is boolean | bigint | Fraction => value !== null && typeof value !== "string";

function exact(value: Value): [over: bigint, under: bigint] {
  require(isNumber(value), `${shown(value)} in a sum`, "a finite number or a variable", "Use elementwise() for other values.");
  return value instanceof Fraction ? [value.over, value.under] : [BigInt(value as boolean | bigint), 1n];
}

function ratio(over: bigint, under: bigint): bigint | Fraction {
  let [a, b] = [over, under];
  while (b) [a, b] = [b, a % b];
  if (a < 0n !== under < 0n) a = -a;
  return under === a ? over / a : new Fraction(over / a, under / a);
}

const ofTwo = (compute: (a: bigint, b: bigint, c: bigint, d: bigint) => bigint | Fraction) => (one: Value, other: Value) =>
  compute(...exact(one), ...exact(other));
const plus = ofTwo((a, b, c, d) => ratio(a * d + c * b, b * d));
const minus = ofTwo((a, b, c, d) => ratio(a * d - c * b, b * d));
const times = ofTwo((a, b, c, d) => ratio(a * c, b * d));
const over = ofTwo((a, b, c, d) => ratio(a * d, b * c));

function floor(value: bigint | Fraction): bigint {
  return value instanceof Fraction ? value.over / value.under - BigInt(value.over < 0n) : value;
}

/** A value, refused if it is a number that float64 does not hold. */
function finite(value: Value, context: string): Value {
  const size = value instanceof Fraction ? value.over / value.under : value;
  const fits = typeof size !== "bigint" || Number.isFinite(Number(size));
  require(fits, `${context} ${shown(value)}`, "a finite number, a string, None or a tuple of these", "Return None where there is no value.");
  return value;
}

// ---- operators ------------------------------------------------------------------------------------------------------

/** What Python raises. */
class Raised extends Error {}

const truth = (value: Value): boolean => !(value === null || value === false || value === 0n || value === "");
const equal = (one: Value, other: Value): boolean => (isNumber(one) && isNumber(other) ? minus(one, other) === 0n : one === other);

/** Below 0, 0 or above 0. */
function order(sign: string, one: Value, other: Value): number {
  if (isNumber(one) && isNumber(other)) return Number(exact(minus(one, other))[0] > 0n) - Number(exact(minus(one, other))[0] < 0n);
  const fits = typeof one === "string" && typeof other === "string";
  if (!fits) throw new Raised(`TypeError ('${sign}' not supported between instances of '${typeOf(one)}' and '${typeOf(other)}')`);
  const [left, right] = [[...one], [...other]];
  const at = left.findIndex((letter, place) => letter !== right[place]);
  const code = (letters: string[]) => (at < letters.length ? letters[at]!.codePointAt(0)! : -1);
  return at < 0 ? left.length - right.length : code(left) - code(right);
}

function quotient(sign: string, one: Value, other: Value): bigint {
  const fits = isNumber(one) && isNumber(other);
  if (!fits) throw new Raised(`TypeError (unsupported operand types for ${sign}: '${typeOf(one)}' and '${typeOf(other)}')`);
  if (equal(other, 0n)) throw new Raised("ZeroDivisionError (division by zero)");
  return floor(over(one, other));
}

type Operator = (one: Value, other: Value) => Value;
const OPERATORS: Record<string, Operator> = {
  "+": plus,
  "-": minus,
  "*": times,
  "/": over,
  "//": (one, other) => quotient("//", one, other),
  "%": (one, other) => minus(one, times(other, quotient("%", one, other))),
  "==": equal,
  "!=": (one, other) => !equal(one, other),
  "<": (one, other) => order("<", one, other) < 0,
  "<=": (one, other) => order("<=", one, other) <= 0,
  ">": (one, other) => order(">", one, other) > 0,
  ">=": (one, other) => order(">=", one, other) >= 0,
  "&": (one, other) => truth(one) && truth(other),
  "|": (one, other) => truth(one) || truth(other),
};
export const isOperator = (sign: string): boolean => sign in OPERATORS;
/** What Python asks of the right side where a constant is on the left. */
const MIRRORED: Record<string, string> = { "<": ">", "<=": ">=", ">": "<", ">=": "<=" };

/** A result; what is raised is refused. */
function result<T>(compute: () => T, of: () => string, expected: string, fix: string): T {
  try {
    return compute();
  } catch (error) {
    if (error instanceof Raised) refusing(`${of()}, which raised ${error.message}`, expected, fix);
    throw error;
  }
}

// ---- parts ----------------------------------------------------------------------------------------------------------

abstract class Part<Column> {
  readonly label: string;
  constructor(
    label: string,
    /** On the sequence of an interpreter. */
    readonly column: (of: Interpreter) => Column,
  ) {
    this.label = cut(label);
  }
}
/** The number of its value at each position. */
export class Variable extends Part<number[]> {}
/** For each query whether it selects each key. */
export class Selector extends Part<boolean[][]> {}

export const TOKENS = new Variable("tokens", ({ tokens }) => tokens);
export const INDICES = new Variable("indices", (of) => of.tokens.map((_, at) => of.number(BigInt(at))));
export const EVERYTHING = new Selector("everything", ({ tokens }) => tokens.map(() => tokens.map(() => true)));

/** A function of one or two variables; None where one of them is. */
function elementwise(label: string, compute: (...values: Value[]) => Value, sources: Variable[]): Variable {
  const applied = (values: Value[]) => {
    if (values.includes(null)) return null;
    const given = () => `${made.label} of ${values.map(shown).join(", ")}`;
    const expected = "a value for all values that its sources may have";
    return finite(result(() => compute(...values), given, expected, "Return None where there is none."), `${given()} =`);
  };
  const made: Variable = new Variable(label, (of) => {
    const [one, other] = sources.map((source) => of.column(source)) as [number[], number[]?];
    return one.map((value, at) => of.once(made, value, other?.[at] ?? -1, applied));
  });
  return made;
}

export const negative = (source: Variable): Variable => elementwise(`(- ${source.label})`, (value) => minus(0n, value), [source]);
export const not = (source: Variable): Variable => elementwise(`~(${source.label})`, (value) => !truth(value), [source]);

/** What an operator makes of two variables, or of a variable and a constant. */
export function operation(sign: string, one: Variable | Value, other: Variable | Value): Variable {
  const compute = OPERATORS[sign]!;
  const [left, right] = [one, other].map((side) => (side instanceof Variable ? side.label : shown(side))) as [string, string];
  const label = `(${left} ${sign} ${right})`;
  for (const side of [one, other]) {
    if ("+-*/".includes(sign) && !(side instanceof Variable)) finite(plus(side, 0n), "a factor or a constant of");
  }
  if (sign === "/") require(!equal(other as Value, 0n), `${left} / 0`, "a divisor that is not 0", "Divide by another number.");
  if (!(other instanceof Variable)) return elementwise(label, (value) => compute(value!, other), [one as Variable]);
  if (one instanceof Variable) return elementwise(label, compute as (...values: Value[]) => Value, [one, other]);
  if (sign in MIRRORED) return operation(MIRRORED[sign]!, other, one);
  return elementwise(label, (value) => compute(one, value!), [other]);
}

export function select(keys: Variable, queries: Variable, sign: string, label: string): Selector {
  const fulfils = ([key, query]: Value[]): boolean => {
    const of = () => `the predicate of ${made.label} of key ${shown(key!)} and query ${shown(query!)}`;
    if (key === null || query === null) return false;
    return result(() => OPERATORS[sign]!(key!, query!) as boolean, of, "True or False", "Make the predicate defined for all values.");
  };
  const made: Selector = new Selector(label || `select(${keys.label} ${sign} ${queries.label})`, (of) => {
    const [left, right, yes] = [of.column(keys), of.column(queries), of.number(true)];
    return right.map((query) => left.map((key) => of.once(made, key, query, fulfils) === yes));
  });
  return made;
}

export const inverted = (one: Selector): Selector => new Selector(`~${one.label}`, (of) => of.column(one).map((row) => row.map((value) => !value)));

export function combined(sign: "&" | "|", one: Selector, other: Selector): Selector {
  const both = (left: boolean, right: boolean) => (sign === "&" ? left && right : left || right);
  return new Selector(`(${one.label} ${sign} ${other.label})`, (of) => {
    const rows = of.column(other);
    return of.column(one).map((row, query) => row.map((value, key) => both(value, rows[query]![key]!)));
  });
}

export const width = (selector: Selector, label: string): Variable =>
  new Variable(label || `width(${selector.label})`, (of) => of.chosen(selector).map((keys) => of.number(BigInt(keys.length))));

/** The mean of what is selected; of a `single` value none of different ones. */
export function aggregate(selector: Selector, values: Variable, missing: Value, single: boolean, label: string): Variable {
  finite(missing, "default =");
  const made: Variable = new Variable(label || `aggregate(${selector.label}, ${values.label})`, (of) => {
    const column = of.column(values);
    return of.chosen(selector).map((keys) => {
      const found = keys.map((key) => column[key]!);
      if (found.length === 0) return of.number(missing);
      if (found.every((each) => each === found[0])) return found[0]!;
      const several = found.map((each) => of.value(each));
      if (!single && several.every(isNumber)) return of.number(over(several.reduce<Value>(plus, 0n), BigInt(several.length)));
      of.missing ??= `${made.label}, which selects ${several.map(shown).join(", ")}`;
      return found[0]!;
    });
  });
  return made;
}

/** Programs on sequences of one vocabulary. Values are known by numbers, so that each result is computed once. */
export class Interpreter {
  private readonly numbers = new Map<string, number>();
  private readonly values: Value[] = [];
  private readonly results = new Map<unknown, Map<number, number>>();
  private columns = new Map<unknown, unknown>();
  /** The sequence. */
  tokens: number[] = [];
  /** Why a program has no value for it: a mean of what is no number was asked for. */
  missing: string | null = null;

  constructor(private readonly causal: boolean) {}

  number(value: Value): number {
    const key = typed(value);
    const found = this.numbers.get(key);
    if (found !== undefined) return found;
    this.numbers.set(key, this.values.length);
    return this.values.push(value) - 1;
  }

  value(number: number): Value {
    return this.values[number]!;
  }

  /** The numbers of a program's values for the numbers of tokens. */
  run(program: Variable, tokens: number[]): number[] {
    this.columns = new Map();
    this.tokens = tokens;
    this.missing = null;
    return this.column(program);
  }

  /** The same; refused where the program has no value. */
  required(program: Variable, tokens: number[]): number[] {
    const found = this.run(program, tokens);
    if (this.missing) refusing(this.missing, "numbers, or a single value", "Make the selector choose one key.");
    return found;
  }

  column<Column>(part: Part<Column>): Column {
    if (!this.columns.has(part)) this.columns.set(part, part.column(this));
    return this.columns.get(part) as Column;
  }

  /** For each query the keys that it selects. */
  chosen(part: Selector): number[][] {
    const seen = (key: number, query: number) => key <= query || !this.causal;
    return this.column(part).map((row, query) => [...row.keys()].filter((key) => row[key] && seen(key, query)));
  }

  /** A result of a part for the values with these numbers; -1 for none. */
  once(part: Variable | Selector, one: number, other: number, compute: (values: Value[]) => Value): number {
    let results = this.results.get(part);
    if (!results) this.results.set(part, (results = new Map()));
    const key = one * 2 ** 26 + other;
    let found = results.get(key);
    if (found === undefined) {
      found = this.number(compute((other < 0 ? [one] : [one, other]).map((each) => this.value(each))));
      results.set(key, found);
    }
    return found;
  }
}
