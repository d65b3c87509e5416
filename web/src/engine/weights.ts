// The weights of a saved page: safetensors in base64, checked by their CRC.
import { rowsOf, type Numbers } from "./products";
import { refusing } from "./refusing";

export class Weights {
  private readonly tensors = new Map<string, { numbers: Numbers; shape: number[] }>();

  /** @throws Refused if the bytes are not those that were saved, or if a number is not finite. */
  constructor(base64: string, checked: number) {
    const whole = /^[A-Za-z0-9+/]*={0,2}$/.test(base64) && base64.length % 4 === 0;
    const bytes = Uint8Array.from(whole ? atob(base64) : "", (letter) => letter.charCodeAt(0));
    if (crc32(bytes) !== checked) refusing("weights in this file that were changed", "those that were saved", "Save the page again.");
    const size = Number(new DataView(bytes.buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
    for (const [name, { dtype, shape, data_offsets: [first, end] }] of Object.entries<Stored>(header)) {
      const numbers = floats(bytes.slice(8 + size + first, 8 + size + end).buffer, dtype);
      if (!numbers.every(Number.isFinite)) refusing(`weights that are not finite (${name})`, "finite ones", "Look for the first NaN in the training.");
      this.tensors.set(name, { numbers, shape });
    }
  }

  /** A tensor's numbers, row after row. */
  of(name: string): Float32Array {
    return this.maybe(name) ?? refusing(`weights without ${name}`, "every tensor of the configuration", "Save the page again.");
  }

  maybe(name: string): Float32Array | null {
    return (this.tensors.get(name)?.numbers as Float32Array | undefined) ?? null;
  }

  /** The same in float64. */
  wide(name: string): Float64Array {
    return Float64Array.from(this.of(name));
  }

  /** The rows of a matrix; null if there is none of this name. */
  rows(name: string): number[][] | null {
    const found = this.tensors.get(name);
    return found ? rowsOf(Float64Array.from(found.numbers), found.shape[1]!).map((row) => [...row]) : null;
  }
}

interface Stored {
  dtype: string;
  shape: number[];
  data_offsets: [first: number, end: number];
}

function floats(bytes: ArrayBuffer, dtype: string): Numbers {
  if (dtype === "F64") return new Float64Array(bytes);
  if (dtype === "F32") return new Float32Array(bytes);
  const halves = new Uint16Array(bytes);
  // The upper half of a float32.
  if (dtype === "BF16") return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
  return new Float32Array(halves.length).map((_, at) => float16(halves[at]!));
}

/** A sign, five bits of exponent and ten of mantissa; below 2 ** -14 the numbers are evenly spaced. */
function float16(half: number): number {
  const [sign, exponent, mantissa] = [half & 0x8000 ? -1 : 1, (half >> 10) & 31, half & 1023];
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + mantissa / 1024) : 2 ** -24 * mantissa);
}

/** As Python's `zlib.crc32`. */
function crc32(bytes: Uint8Array): number {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}
