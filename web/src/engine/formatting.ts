// Numbers as Python's format() writes them, and shares.

/** A share in per cent; exactly all is "100 %" and exactly none "0 %", without decimals. */
export function percent(share: number, digits = 1): string {
  const text = (100 * share).toFixed(digits);
  return `${Number(text) === 0 || Number(text) === 100 ? Number(text) : text} %`;
}

/** `format(value, ".{digits}g")`: rounded to so many digits, of two equally near numbers to the even one. */
export function general(value: number, digits: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value < 0 ? "-inf" : "inf";
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  const [mantissa, exponent] = rounded(value, digits).split("e") as [string, string];
  const power = Number(exponent);
  const bare = (text: string) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (power < -4 || power >= digits) return `${bare(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  return bare(Number(`${mantissa}e${power}`).toFixed(digits - 1 - power));
}

/** JavaScript rounds what lies exactly in the middle away from 0. */
function rounded(value: number, digits: number): string {
  const [exact, power] = value.toExponential(100).split("e") as [string, string];
  const kept = exact.slice(0, exact.indexOf(".") + digits);
  const isMiddle = /^50*$/.test(exact.slice(exact.indexOf(".") + digits));
  return isMiddle && Number(kept.at(-1)) % 2 === 0 ? `${kept}e${power}` : value.toExponential(digits - 1);
}

/** A number with commas between thousands. */
export const grouped = (value: number): string => value.toLocaleString("en");
