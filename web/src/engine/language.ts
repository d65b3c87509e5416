// The language of programs over sequences, as glassformer/programs/language.py, on one sequence after another.
import { refusing, require } from "./refusing";

/** A fraction that is no whole number, in lowest terms. */
export class Fraction {
  constructor(
    readonly over: bigint,
    readonly under: bigint,
  ) {}
}
export type Value = null | boolean | bigint | string | Fraction;

const LONGEST_NAME = 120;
const MOST = 2n ** 1000n;

/** What tells a value from all others, in the form of glassformer/explorer/saving/saved_program.py. */
export const typed = (value: Value): string => `${typeOf(value)} ${text(value)}`;

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

export function typeOf(value: Value): string {
  if (value === null) return "NoneType";
  if (value instanceof Fraction) return "Fraction";
  return { boolean: "bool", bigint: "int", string: "str" }[typeof value as "boolean" | "bigint" | "string"];
}

export function text(value: Value): string {
  if (value instanceof Fraction) return `${value.over}/${value.under}`;
  return value === null ? "None" : typeof value === "boolean" ? (value ? "True" : "False") : `${value}`;
}

/** As a message shows it. */
export function shown(value: Value): string {
  if (typeof value === "string") return value.includes("'") ? `"${value}"` : `'${value}'`;
  return cut(value instanceof Fraction ? `Fraction(${value.over}, ${value.under})` : text(value));
}

const cut = (name: string, most = LONGEST_NAME): string => (name.length > most ? `${name.slice(0, most - 3)}...` : name);

/** As an output is shown. */
export const inWords = (value: Value): string => cut(text(value), 20);

// ---- numbers, exactly -----------------------------------------------------------------------------------------------

export const isNumber = (value: Value): value is boolean | bigint | Fraction => value !== null && typeof value !== "string";

export function ratio(over: bigint, under: bigint): bigint | Fraction {
  let [a, b] = [over < 0n ? -over : over, under < 0n ? -under : under];
  while (b) [a, b] = [b, a % b];
  if (under < 0n) a = -a;
  return under === a ? over / a : new Fraction(over / a, under / a);
}

function exact(value: Value): [over: bigint, under: bigint] {
  require(isNumber(value), `${shown(value)} in a sum`, "a finite number or a variable", "Use elementwise() for other values.");
  return value instanceof Fraction ? [value.over, value.under] : [BigInt(value as boolean | bigint), 1n];
}

export function plus(one: Value, other: Value): bigint | Fraction {
  const [[a, b], [c, d]] = [exact(one), exact(other)];
  return ratio(a * d + c * b, b * d);
}

export function times(one: Value, other: Value): bigint | Fraction {
  const [[a, b], [c, d]] = [exact(one), exact(other)];
  return ratio(a * c, b * d);
}

export const over = (one: Value, other: Value): bigint | Fraction => {
  const [[a, b], [c, d]] = [exact(one), exact(other)];
  return ratio(a * d, b * c);
};

function floor(one: Value, other: Value): bigint {
  const value = over(one, other);
  if (!(value instanceof Fraction)) return value;
  return value.over / value.under - BigInt(value.over < 0n);
}

/** Numbers that float64 holds; of others nothing is computed. */
export function requireFinite(value: Value, context: () => string): void {
  const size = value instanceof Fraction ? value.over / value.under : value;
  const fits = typeof size !== "bigint" || (-MOST < size && size < MOST) || Number.isFinite(Number(size));
  if (!fits) require(false, `${context()} ${shown(value)}`, "a finite number, a string, None or a tuple of these", "Return None where there is no value.");
}

// ---- operators ------------------------------------------------------------------------------------------------------

/** What Python raises. */
class Raised extends Error {
  constructor(
    readonly type: string,
    message: string,
  ) {
    super(message);
  }
}

const truth = (value: Value): boolean => !(value === null || value === false || value === 0n || value === "");

function order(sign: string, one: Value, other: Value): number {
  if (isNumber(one) && isNumber(other)) {
    const [[a, b], [c, d]] = [exact(one), exact(other)];
    return a * d < c * b ? -1 : a * d > c * b ? 1 : 0;
  }
  if (typeof one !== "string" || typeof other !== "string") {
    throw new Raised("TypeError", `'${sign}' not supported between instances of '${typeOf(one)}' and '${typeOf(other)}'`);
  }
  const [left, right] = [[...one], [...other]];
  const at = left.findIndex((letter, place) => letter !== right[place]);
  if (at < 0) return left.length < right.length ? -1 : 0;
  return at < right.length && left[at]!.codePointAt(0)! < right[at]!.codePointAt(0)! ? -1 : 1;
}

const equal = (one: Value, other: Value): boolean => (isNumber(one) && isNumber(other) ? order("==", one, other) === 0 : one === other);

function divided(sign: string, one: Value, other: Value): bigint {
  if (sign === "%" && typeof one === "string") throw new Raised("TypeError", "not all arguments converted during string formatting");
  const fits = isNumber(one) && isNumber(other);
  if (!fits) throw new Raised("TypeError", `unsupported operand type(s) for ${sign}: '${typeOf(one)}' and '${typeOf(other)}'`);
  if (equal(other, 0n)) throw new Raised("ZeroDivisionError", "division by zero");
  return floor(one, other);
}

export type Operator = (one: Value, other: Value) => Value;
/** By their signs, without those of sums. */
export const OPERATORS: Record<string, Operator> = {
  "==": equal,
  "!=": (one, other) => !equal(one, other),
  "<": (one, other) => order("<", one, other) < 0,
  "<=": (one, other) => order("<=", one, other) <= 0,
  ">": (one, other) => order(">", one, other) > 0,
  ">=": (one, other) => order(">=", one, other) >= 0,
  "&": (one, other) => truth(one) && truth(other),
  "|": (one, other) => truth(one) || truth(other),
  "//": (one, other) => divided("//", one, other),
  "%": (one, other) => plus(one, times(times(other, divided("%", one, other)), -1n)),
};
export const not: Operator = (value) => !truth(value);

// ---- parts ----------------------------------------------------------------------------------------------------------

export class Part {
  readonly label: string;
  constructor(label: string) {
    this.label = cut(label);
  }
}
export abstract class Variable extends Part {}
export abstract class Selector extends Part {}

export class Input extends Variable {}
export const [TOKENS, INDICES] = [new Input("tokens"), new Input("indices")];

/** Of one or two variables. */
export class Elementwise extends Variable {
  constructor(
    readonly compute: (...values: Value[]) => Value,
    readonly sources: Variable[],
    label: string,
  ) {
    super(label);
  }
}

export class Select extends Selector {
  constructor(
    readonly keys: Variable,
    readonly queries: Variable,
    readonly sign: string | null,
    label: string,
  ) {
    super(label || `select(${keys.label} ${sign} ${queries.label})`);
  }
}
export const EVERYTHING = new Select(TOKENS, TOKENS, null, "everything");

export class Combined extends Selector {
  constructor(
    readonly compute: (one: boolean, other: boolean) => boolean,
    readonly parts: Selector[],
    label: string,
  ) {
    super(label);
  }
}

export class Aggregate extends Variable {
  constructor(
    readonly selector: Selector,
    readonly values: Variable,
    readonly default_: Value,
    readonly single: boolean,
    label: string,
  ) {
    super(label || `aggregate(${selector.label}, ${values.label})`);
  }
}

export class Width extends Variable {
  constructor(
    readonly selector: Selector,
    label: string,
  ) {
    super(label || `width(${selector.label})`);
  }
}

/** The sum of multiples of variables, and of numbers. */
export function linear(terms: [each: Variable | Value, factor: Value][]): Elementwise {
  const sums = new Map<Variable, bigint | Fraction>();
  let constant: bigint | Fraction = 0n;
  for (const [each, factor] of terms) {
    if (each instanceof Variable) sums.set(each, plus(sums.get(each) ?? 0n, factor));
    else constant = plus(constant, times(each, factor));
  }
  for (const number of [constant, ...sums.values()]) requireFinite(number, () => "a factor or a constant of");
  const [sources, factors] = [[...sums.keys()], [...sums.values()]];
  const compute = (...values: Value[]) => values.reduce<Value>((total, value, at) => plus(total, times(value, factors[at]!)), constant);
  return new Elementwise(compute, sources, `(${labelOf(terms)})`);
}

function labelOf(terms: [each: Variable | Value, factor: Value][]): string {
  const pieces = terms.map(([each, factor]) => {
    const [size, minus] = [text(factor).replace("-", ""), text(factor).startsWith("-")];
    const name = each instanceof Variable ? each.label : text(each);
    return `${minus ? "-" : "+"} ${size === "1" ? name : `${size} * ${name}`}`;
  });
  return pieces.join(" ").replace(/^\+ /, "");
}

// ---- what they are --------------------------------------------------------------------------------------------------

/** Programs on sequences of one vocabulary. Values are known by numbers, so that each result is computed once. */
export class Interpreter {
  private readonly numbers = new Map<string, number>();
  private readonly listed: Value[] = [];
  private readonly results = new Map<Part, Map<number, number>>();
  private columns = new Map<Part, number[] | boolean[][]>();
  private tokens: number[] = [];
  /** Why a program has no value for the last sequence: a mean of what is no number was asked for. */
  missing: string | null = null;

  constructor(private readonly causal: boolean) {}

  number(value: Value): number {
    const key = typed(value);
    const found = this.numbers.get(key);
    if (found !== undefined) return found;
    this.numbers.set(key, this.listed.length);
    return this.listed.push(value) - 1;
  }

  value(number: number): Value {
    return this.listed[number]!;
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

  private column(part: Variable): number[] {
    let found = this.columns.get(part);
    if (!found) this.columns.set(part, (found = this.computed(part)));
    return found as number[];
  }

  private computed(part: Variable): number[] {
    if (part === TOKENS) return this.tokens;
    if (part instanceof Elementwise) {
      const [one, other] = part.sources.map((source) => this.column(source)) as [number[], number[]?];
      return one.map((value, at) => this.once(part, value, other?.[at] ?? -1, applied));
    }
    if (part instanceof Width) return this.chosen(part.selector).map((keys) => this.number(BigInt(keys.length)));
    if (part instanceof Aggregate) {
      const column = this.column(part.values);
      return this.chosen(part.selector).map((keys) => this.mean(part, keys.map((key) => column[key]!)));
    }
    return this.tokens.map((_, at) => this.number(BigInt(at)));
  }

  private once<T extends Part>(part: T, one: number, other: number, compute: (part: T, values: Value[]) => Value): number {
    let results = this.results.get(part);
    if (!results) this.results.set(part, (results = new Map()));
    const key = one * 2 ** 26 + other;
    let found = results.get(key);
    if (found === undefined) {
      const values = (other < 0 ? [one] : [one, other]).map((each) => this.value(each));
      results.set(key, (found = this.number(compute(part, values))));
    }
    return found;
  }

  private mean(part: Aggregate, chosen: number[]): number {
    if (chosen.length === 0) return this.number(part.default_);
    if (chosen.every((each) => each === chosen[0])) return chosen[0]!;
    const values = chosen.map((each) => this.value(each));
    if (!part.single && values.every(isNumber)) return this.number(over(values.reduce<Value>(plus, 0n), BigInt(values.length)));
    this.missing ??= `${part.label}, which selects ${values.map(shown).join(", ")}`;
    return chosen[0]!;
  }

  /** For each query the keys that it selects. */
  private chosen(part: Selector): number[][] {
    return this.holds(part).map((row, query) => [...row.keys()].filter((key) => row[key] && (key <= query || !this.causal)));
  }

  private holds(part: Selector): boolean[][] {
    const known = this.columns.get(part);
    if (known) return known as boolean[][];
    let found: boolean[][];
    if (part instanceof Select) {
      const [keys, queries, yes] = [this.column(part.keys), this.column(part.queries), this.number(true)];
      found = queries.map((query) => keys.map((key) => this.once(part, key, query, fulfils) === yes));
    } else {
      const { compute, parts } = part as Combined;
      const [one, other] = parts.map((each) => this.holds(each)) as [boolean[][], boolean[][]?];
      found = one.map((row, query) => row.map((value, key) => compute(value, other?.[query]![key] ?? false)));
    }
    this.columns.set(part, found);
    return found;
  }
}

function applied(part: Elementwise, values: Value[]): Value {
  if (values.includes(null)) return null;
  const given = () => `${part.label} of ${values.map(shown).join(", ")}`;
  const result = named(() => part.compute(...values), ({ type, message }) => {
    const expected = "a value for all values that its sources may have";
    return refusing(`${given()}, which raised ${type} (${message})`, expected, "Return None where there is none.");
  });
  requireFinite(result, () => `${given()} =`);
  return result;
}

function fulfils({ sign, label }: Select, [key, query]: Value[]): boolean {
  if (key === null || query === null) return false;
  return sign === null || (named(() => OPERATORS[sign]!(key!, query!), ({ message }) => {
    const got = `the predicate of ${label} of key ${shown(key!)} and query ${shown(query!)}, which raised ${message}`;
    return refusing(got, "True or False", "Make the predicate defined for all values.");
  }) as boolean);
}

function named(compute: () => Value, refused: (raised: Raised) => never): Value {
  try {
    return compute();
  } catch (error) {
    if (error instanceof Raised) refused(error);
    throw error;
  }
}
