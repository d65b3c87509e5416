// The weights of a saved page: safetensors in base64, checked by their digest.
import { refusing } from "./refusing";

export class Weights {
  private constructor(private readonly tensors: Map<string, Float32Array>) {}

  /** A tensor's numbers, row after row. */
  of(name: string): Float32Array {
    const found = this.tensors.get(name);
    return found ?? refusing(`weights without ${name}`, "every tensor of the configuration", "Save the page again.");
  }

  maybe(name: string): Float32Array | null {
    return this.tensors.get(name) ?? null;
  }

  /** @throws Refused if the bytes are not those that were saved, or if a number is not finite. */
  static open(base64: string, digest: string): Weights {
    const whole = /^[A-Za-z0-9+/]*={0,2}$/.test(base64) && base64.length % 4 === 0;
    const letters = whole ? atob(base64) : "";
    const bytes = new Uint8Array(letters.length);
    for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
    if (sha256(bytes) !== digest) refusing("weights in this file that were changed", "those that were saved", "Save the page again.");
    const size = Number(new DataView(bytes.buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
    const tensors = new Map<string, Float32Array>();
    for (const [name, { dtype, data_offsets: [first, end] }] of Object.entries<{ dtype: string; data_offsets: [number, number] }>(header)) {
      const numbers = floats(bytes.slice(8 + size + first, 8 + size + end).buffer, dtype);
      if (!numbers.every(Number.isFinite)) refusing(`weights that are not finite (${name})`, "finite ones", "Look for the first NaN in the training.");
      tensors.set(name, numbers);
    }
    return new Weights(tensors);
  }
}

function floats(bytes: ArrayBuffer, dtype: string): Float32Array {
  if (dtype === "F32") return new Float32Array(bytes);
  const halves = new Uint16Array(bytes);
  // The upper half of a float32.
  if (dtype === "BF16") return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
  return Float32Array.from(halves, float16);
}

/** A sign, five bits of exponent and ten of mantissa; below 2 ** -14 the numbers are evenly spaced. */
function float16(half: number): number {
  const [sign, exponent, mantissa] = [half & 0x8000 ? -1 : 1, (half >> 10) & 31, half & 1023];
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + mantissa / 1024) : 2 ** -24 * mantissa);
}

/** The 32 bits after the point of a root of the first primes. */
function fractions(count: number, root: (prime: number) => number): Uint32Array {
  const primes: number[] = [];
  for (let number = 2; primes.length < count; number++) if (primes.every((prime) => number % prime)) primes.push(number);
  return Uint32Array.from(primes, (prime) => (root(prime) % 1) * 2 ** 32);
}

/** SHA-256 in hexadecimal (FIPS 180-4): browsers offer theirs only to pages from HTTPS or this machine. */
export function sha256(bytes: Uint8Array): string {
  const [K, H] = [fractions(64, Math.cbrt), fractions(8, Math.sqrt)];
  const padded = new Uint8Array(Math.ceil((bytes.length + 9) / 64) * 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setBigUint64(padded.length - 8, BigInt(8 * bytes.length));
  const turn = (x: number, by: number) => (x >>> by) | (x << (32 - by));
  const w = new Int32Array(64);
  for (let block = 0; block < padded.length; block += 64) {
    for (let at = 0; at < 64; at++) {
      const [back15, back2] = [w[at - 15]!, w[at - 2]!];
      w[at] =
        at < 16
          ? view.getInt32(block + 4 * at)
          : w[at - 16]! + (turn(back15, 7) ^ turn(back15, 18) ^ (back15 >>> 3)) + w[at - 7]! + (turn(back2, 17) ^ turn(back2, 19) ^ (back2 >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = H as unknown as [number, number, number, number, number, number, number, number];
    for (let at = 0; at < 64; at++) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[at]! + w[at]!) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((value, at) => (H[at]! += value));
  }
  return Array.from(H, (word) => word.toString(16).padStart(8, "0")).join("");
}
