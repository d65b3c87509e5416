// Products of vectors and matrices, summed in float64. Everything that multiplies matrices calls `linear`.

/** Of transformers in float32; of programs and single heads in float64. */
export type Numbers = Float32Array | Float64Array;

/** So many zeros, of the type of `x`. */
export const zeros = <T extends Numbers>(x: T, count: number): T => new (x.constructor as new (count: number) => T)(count);

/** The product of `width` numbers of `a` and of `b`, from these places on. */
export function dot(a: Numbers, atA: number, b: Numbers, atB: number, width: number): number {
  let sum = 0;
  for (let at = 0; at < width; at++) sum += a[atA + at]! * b[atB + at]!;
  return sum;
}

/** `x @ weight.T + bias` for x [row, width] and weight [out, width]. */
export function linear<T extends Numbers>(x: T, weight: T, bias: T | null, width: number): T {
  const [rows, outs] = [x.length / width, weight.length / width];
  const y = zeros(x, rows * outs);
  for (let row = 0; row < rows; row++) {
    const from = row * width;
    const to = row * outs;
    let out = 0;
    // Four columns at a time read a row of x once: twice as fast.
    for (; out + 3 < outs; out += 4) {
      const first = out * width;
      let one = 0;
      let two = 0;
      let three = 0;
      let four = 0;
      for (let at = 0; at < width; at++) {
        const value = x[from + at]!;
        one += value * weight[first + at]!;
        two += value * weight[first + width + at]!;
        three += value * weight[first + 2 * width + at]!;
        four += value * weight[first + 3 * width + at]!;
      }
      y[to + out] = one;
      y[to + out + 1] = two;
      y[to + out + 2] = three;
      y[to + out + 3] = four;
    }
    for (; out < outs; out++) y[to + out] = dot(x, from, weight, out * width, width);
    if (bias) for (out = 0; out < outs; out++) y[to + out]! += bias[out]!;
  }
  return y;
}

/** The rows of a matrix. */
export const rowsOf = <T extends Numbers>(x: T, width: number): T[] =>
  Array.from({ length: x.length / width }, (_, row) => x.subarray(row * width, (row + 1) * width) as T);

/** `x + y`. */
export const sum = <T extends Numbers>(x: T, y: T): T => x.map((value, at) => value + y[at]!) as T;

/** The softmax of some numbers in float64; NaN throughout if one of them is not a number below infinity. */
export function softmax(scores: ArrayLike<number>, temperature = 1): Float64Array {
  const shares = new Float64Array(scores.length);
  let [most, total] = [-Infinity, 0];
  for (let at = 0; at < shares.length; at++) most = Math.max(most, scores[at]!);
  for (let at = 0; at < shares.length; at++) total += shares[at] = Math.exp((scores[at]! - most) / temperature);
  for (let at = 0; at < shares.length; at++) shares[at]! /= total;
  return shares;
}
