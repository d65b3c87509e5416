// Formats of stored weights, and how their numbers are read. kernels/packed.py and kernels/mxfp4.py define them.
//
// Dense weights are numbers of float32 or bfloat16. Mxfp4 is the format of gpt-oss's files, whose codes and scales are
// apart. The other formats are blocks: codes, scales and offsets beside one another, as in GGUF.
#pragma once

#include "vector.h"

namespace {

// The numbers are those of kernels/decode_step.py and of the table of kinds in kernels/packed.py.
enum Stored : int64_t {
  FLOAT32,
  BFLOAT16,
  MXFP4_APART,  // codes and scales apart, as gpt-oss has them
  Q4_0_BLOCKS,
  Q4_1_BLOCKS,
  Q5_0_BLOCKS,
  Q5_1_BLOCKS,
  Q8_0_BLOCKS,
  Q2_K_BLOCKS,
  Q3_K_BLOCKS,
  Q4_K_BLOCKS,
  Q5_K_BLOCKS,
  Q6_K_BLOCKS,
  IQ4_NL_BLOCKS,
  IQ4_XS_BLOCKS,
  MXFP4_BLOCKS,
  TQ2_0_BLOCKS,
};
inline bool in_blocks(int64_t format) { return format >= Q4_0_BLOCKS; }

constexpr int64_t BLOCK = 32;
#define INLINE __attribute__((always_inline))

// ---- integers of 16 and 8 bits --------------------------------------------------------------------------------------

typedef int16_t Words __attribute__((vector_size(VECTOR_BYTES)));
typedef int8_t Bytes __attribute__((vector_size(VECTOR_BYTES)));
typedef uint8_t QuarterBytes __attribute__((vector_size(VECTOR_BYTES / 4)));

template <typename Vector>
inline Vector vector_at(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// table[index] for every index, which are below 16.
inline Bytes looked_up(const int8_t* table, Bytes indices) {
#if WITH_AVX512
  const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return (Bytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(all), (__m512i)indices);
#elif WITH_AVX2
  const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return (Bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(all), (__m256i)indices);
#else
  Bytes values;
  for (int i = 0; i < VECTOR_BYTES; ++i) values[i] = table[indices[i]];
  return values;
#endif
}

// a[2i] b[2i] + a[2i + 1] b[2i + 1] for a >= 0.
inline Words products_of_pairs(Bytes a, Bytes b) {
#if WITH_AVX512
  return (Words)_mm512_maddubs_epi16((__m512i)a, (__m512i)b);
#elif WITH_AVX2
  return (Words)_mm256_maddubs_epi16((__m256i)a, (__m256i)b);
#else
  return ((Words)a << 8 >> 8) * ((Words)b << 8 >> 8) + ((Words)a >> 8) * ((Words)b >> 8);
#endif
}

// a[2i] b[2i] + a[2i + 1] b[2i + 1].
inline Ints products_of_pairs(Words a, Words b) {
#if WITH_AVX512
  return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif WITH_AVX2
  return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return ((Ints)((Bits)a << 16) >> 16) * ((Ints)((Bits)b << 16) >> 16) + ((Ints)a >> 16) * ((Ints)b >> 16);
#endif
}

// ---- numbers, and codes and scales apart --------------------------------------------------------------------------
//
// A format whose weights are blocks of 32 with a scale (Mxfp4) defines for tile() how to multiply by them:
//
//   BYTES            bytes of a block's codes
//   TOGETHER         number of blocks whose products fill one vector, which all below handle at a time
//   TOKEN            bytes that a prepared token has for them; put() writes them, products() reads them
//   UNIT             factor of a token's scale, where the codes are multiples of the values
//   end, INSIDE      the last block; INSIDE promises that no vector reaches beyond it, which saves the check
//   read, products   the codes of blocks as a vector, and the integer sums of their products with a token
//   Unpacked         the codes as 16-bit words, for rows that are read once and multiplied by many tokens
//   scale            WIDTH scales as floats
//
// The sums of block j are in some lanes of the vector and need that block's scale in each of these lanes. A vector of
// WIDTH scales is kept in such an order that one cheap instruction copies them there: scale_lane(i) is the lane of block
// i's scale, in_lanes() puts scales in that order, and repeated(scales, i) are the factors for the blocks from i on.

// Numbers of float or BFloat16. A row's vectors are added to PARTS sums in turns.
template <typename Number, int PARTS>
struct Dense {
  const Number* weights;
};

// 16 bytes of two codes, the first in the lower half; weight = 2^(scale - 127) * value, NaN for the scale 255.
//
// The values, doubled and raised by 12, are bytes from 0 to 24. The integers x of a token are split into signed bytes,
// x = 256 high + low. For blocks that fill a vector, a token has 10 vectors: x for the first codes of each two bytes, the
// second, third and fourth, for rows that are unpacked once for many tokens; then high bytes for the first codes of each
// byte, low bytes, the same for the second codes, and -12 times the sum of the x that a lane multiplies. A lane adds the
// same products both ways.
struct Mxfp4 {
  const uint8_t* blocks;
  const uint8_t* scales;
  int64_t end;
  static constexpr int64_t BYTES = BLOCK / 2, TOGETHER = VECTOR_BYTES / BYTES, TOKEN = 10 * VECTOR_BYTES;
  static constexpr bool INSIDE = false;
  static constexpr float UNIT = 0.5f;
  struct Some {
    Bytes first, second;
  };
  struct Unpacked {
    Words words[4];
  };
  const void* block(int64_t i) const { return blocks + i * BYTES; }
  INLINE Some read(int64_t, int64_t row, int64_t i, bool inside) const {
    alignas(16) static constexpr int8_t RAISED[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    Bits codes = {};
    if (inside || row + i + TOGETHER <= end) codes = vector_at<Bits>(blocks + (row + i) * BYTES);
    else std::memcpy(&codes, blocks + (row + i) * BYTES, (end - row - i) * BYTES);
    return {looked_up(RAISED, (Bytes)(codes & 0x0f0f0f0fu)), looked_up(RAISED, (Bytes)(codes >> 4 & 0x0f0f0f0fu))};
  }
  INLINE static Ints products(const Some& some, const char* token) {
    const auto part = [&](int i) { return vector_at<Bytes>(token + (4 + i) * VECTOR_BYTES); };
#if WITH_AVX512 && defined(__AVX512VNNI__)
    const auto add = [&](Ints sums, Bytes codes, int i) INLINE {
      return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)part(i));
    };
    const Ints high = add(add(Ints{}, some.first, 0), some.second, 2);
    return (high << 8) + add(add((Ints)part(4), some.first, 1), some.second, 3);
#else
    const Words high = products_of_pairs(some.first, part(0)) + products_of_pairs(some.second, part(2));
    const Words low = products_of_pairs(some.first, part(1)) + products_of_pairs(some.second, part(3));
    return products_of_pairs(high, Words{} + 256) + products_of_pairs(low, Words{} + 1) + (Ints)part(4);
#endif
  }
  INLINE static Unpacked unpacked(const Some& some) {
    const Words first = (Words)some.first, second = (Words)some.second;
    return {{(first & 255) - 12, (second & 255) - 12, (first >> 8) - 12, (second >> 8) - 12}};
  }
  INLINE static Ints products(const Unpacked& all, const char* token) {
    Ints sums = {};
    for (int part = 0; part < 4; ++part)
      sums += products_of_pairs(all.words[part], vector_at<Words>(token + part * VECTOR_BYTES));
    return sums;
  }
  static void put(int64_t block, const int16_t* integers, char* token) {
    token += block / TOGETHER * TOKEN + block % TOGETHER * BYTES;
    int16_t words[4][8];
    int8_t bytes[4][BYTES];
    int32_t raised[4] = {};
    for (int64_t i = 0; i < BLOCK; ++i) words[i % 4][i / 4] = integers[i];
    for (int64_t i = 0; i < BYTES; ++i) {
      const int16_t first = integers[2 * i], second = integers[2 * i + 1];
      bytes[1][i] = static_cast<int8_t>(first), bytes[3][i] = static_cast<int8_t>(second);
      bytes[0][i] = static_cast<int8_t>((first - bytes[1][i]) >> 8);
      bytes[2][i] = static_cast<int8_t>((second - bytes[3][i]) >> 8);
      raised[i / 4] -= 12 * (first + second);
    }
    for (int part = 0; part < 4; ++part, token += VECTOR_BYTES) std::memcpy(token, words[part], BYTES);
    for (int part = 0; part < 4; ++part, token += VECTOR_BYTES) std::memcpy(token, bytes[part], BYTES);
    std::memcpy(token, raised, BYTES);
  }
  static Floats scale(const uint8_t* from) {
    Bits exponents;
#if WITH_AVX512
    exponents = (Bits)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif WITH_AVX2
    exponents = (Bits)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
    exponents = __builtin_convertvector(vector_at<QuarterBytes>(from), Bits);
#endif
    const Bits usual = exponents << 23;
    const Bits all = usual > 0x400000u ? usual : Bits{} + 0x400000u;  // 2^-127 is subnormal
    return (Floats)(all | (Bits)(exponents == 255u));
  }
  static constexpr int64_t scale_lane(int64_t i) { return i % TOGETHER * 4 + i / TOGETHER; }
  static Floats in_lanes(Floats scales) {
#if WITH_AVX512
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return (Floats)_mm512_permutexvar_ps(order, (__m512)scales);
#elif WITH_AVX2
    return (Floats)_mm256_permutevar8x32_ps((__m256)scales, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
#else
    Floats all;
    for (int64_t i = 0; i < WIDTH; ++i) all[scale_lane(i)] = scales[i];
    return all;
#endif
  }
  INLINE static Floats repeated(const Floats& scales, int64_t i) {
    switch (i / TOGETHER) {
      case 0: return copied<0>(scales);
      case 1: return copied<1>(scales);
      case 2: return copied<2>(scales);
      default: return copied<3>(scales);
    }
  }
  // Each four numbers become four times the one with this index.
  template <int INDEX>
  INLINE static Floats copied(const Floats& scales) {
#if WITH_AVX512
    return (Floats)_mm512_permute_ps((__m512)scales, INDEX * 0x55);
#elif WITH_AVX2
    return (Floats)_mm256_permute_ps((__m256)scales, INDEX * 0x55);
#else
    Floats all;
    for (int64_t lane = 0; lane < WIDTH; ++lane) all[lane] = scales[lane / 4 * 4 + INDEX];
    return all;
#endif
  }
};

// ---- numbers in blocks ----------------------------------------------------------------------------------------------

// Numbers of float16 in the lower halves.
inline Floats from_halves(Bits halves) {
#if WITH_AVX512
  return (Floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)halves));
#elif WITH_AVX2
  const __m256i narrow = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)halves, (__m256i)halves), 0x08);
  return (Floats)_mm256_cvtph_ps(_mm256_castsi256_si128(narrow));
#else
  const Ints size = (Ints)(halves & 0x7fffu) << 13;
  const Bits normal = (Bits)size + 0x38000000u, unbounded = (Bits)size + 0x70000000u;
  const Bits small = (Bits)(__builtin_convertvector(size >> 13, Floats) * 0x1p-24f);
  return (Floats)((size < 0x800000 ? small : size < 0xf800000 ? normal : unbounded) | (halves & 0x8000u) << 16);
#endif
}

inline float half(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return from_halves(Bits{} + bits)[0];
}

inline uint32_t four_bytes(const uint8_t* from) {
  uint32_t bits;
  std::memcpy(&bits, from, 4);
  return bits;
}

typedef uint8_t Codes __attribute__((vector_size(16)));

INLINE inline Codes codes_at(const uint8_t* from) { return vector_at<Codes>(from); }

// Codes of four bits that stand for other numbers than themselves.
alignas(16) constexpr int8_t Q4[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
alignas(16) constexpr int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
alignas(16) constexpr int8_t FP4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// table[index] for every index, which are below 16.
INLINE inline Codes looked_up(const int8_t* table, Codes indices) {
#if WITH_AVX512 || WITH_AVX2
  return (Codes)_mm_shuffle_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(table)), (__m128i)indices);
#else
  Codes values;
  for (int i = 0; i < 16; ++i) values[i] = table[indices[i]];
  return values;
#endif
}

template <const int8_t* TABLE>
INLINE inline Codes standing_for(Codes codes) {
  return TABLE == nullptr ? codes : TABLE == Q4 ? codes - 8 : looked_up(TABLE, codes);
}

// value(code) = scale * code + offset. No offset is -0, which leaves every number what it is, -0 too.
constexpr float NO_OFFSET = -0.0f;
struct Value {
  float scale, offset;
  INLINE Floats operator()(Floats codes) const { return scale * codes + offset; }
};

// 16 in the place of each of the 16 lowest bits.
INLINE inline Codes fifth_bits(uint32_t bits) {
  const Codes masks = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
#if WITH_AVX2
  const Codes copied = (Codes)_mm_shuffle_epi8(_mm_cvtsi32_si128(bits), _mm_set_epi64x(0x0101010101010101, 0));
#else
  typedef uint64_t Two __attribute__((vector_size(16)));
  const Codes copied = (Codes)Two{(bits & 255) * 0x0101010101010101u, (bits >> 8 & 255) * 0x0101010101010101u};
#endif
  return (Codes)((copied & masks) != 0) & 16;
}

// The fifth bits of 32 codes, stored in 32 bits, or as bit `at` of 16 bytes and the bit above it. bytes() returns 16 for
// each bit that is set; words() returns words whose fifth bit it is, among other bits.
struct Bits32 {
  uint32_t bits;
  INLINE Codes bytes(int part) const { return fifth_bits(bits >> 16 * part); }
#if WITH_AVX512
  INLINE __m512i words(int part) const {
    return _mm512_rorv_epi32(_mm512_set1_epi32(static_cast<int32_t>(bits)), (__m512i)(lanes() + 16 * part - 4 & 31));
  }
#endif
};

struct BitOfBytes {
  Codes all;
  int at;
  INLINE Codes bytes(int part) const { return (all >> at + part & 1) << 4; }
#if WITH_AVX512
  INLINE __m512i words(int part) const {
    const Bits wide = (Bits)_mm512_cvtepu8_epi32((__m128i)all);
    return (__m512i)(at + part < 4 ? wide << (4 - at - part & 31) : wide >> (at + part - 4 & 31));
  }
#endif
};

// Receives a block's codes, 16 at a time with their place in the block, and calls use(place, values) for vectors.
template <typename Use>
struct Values {
  Use use;

  template <bool SIGNED = false>
  INLINE void put(Codes codes, int64_t at, Value value) const {
#if WITH_AVX512
    const __m512i wide = SIGNED ? _mm512_cvtepi8_epi32((__m128i)codes) : _mm512_cvtepu8_epi32((__m128i)codes);
    use(at, value((Floats)_mm512_cvtepi32_ps(wide)));
#elif WITH_AVX2
    for (int64_t i = 0; i < 16; i += 8, codes = (Codes)_mm_unpackhi_epi64((__m128i)codes, (__m128i)codes)) {
      const __m256i wide = SIGNED ? _mm256_cvtepi8_epi32((__m128i)codes) : _mm256_cvtepu8_epi32((__m128i)codes);
      use(at + i, value((Floats)_mm256_cvtepi32_ps(wide)));
    }
#else
    float numbers[16];
    for (int i = 0; i < 16; ++i) numbers[i] = SIGNED ? static_cast<int8_t>(codes[i]) : codes[i];
    for (int i = 0; i < 16; i += WIDTH) use(at + i, value(load(numbers + i)));
#endif
  }
  // Codes in the lower halves of 16 bytes, at `at`, and in the upper halves, `apart` later; or their values in a table.
  template <const int8_t* TABLE = nullptr>
  INLINE void put_halves(Codes both, int64_t at, int64_t apart, Value lower, Value upper) const {
#if WITH_AVX512  // the values of all 16 codes are looked up, by four bits of an index
    Floats all = __builtin_convertvector(lanes(), Floats);
    for (int i = 0; TABLE != nullptr && i < 16; ++i) all[i] = TABLE[i];
    const __m512i codes = _mm512_cvtepu8_epi32((__m128i)both);
    use(at, (Floats)_mm512_permutexvar_ps(codes, (__m512)lower(all)));
    use(at + apart, (Floats)_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), (__m512)upper(all)));
#else
    put<TABLE != nullptr>(standing_for<TABLE>(both & 15), at, lower);
    put<TABLE != nullptr>(standing_for<TABLE>(both >> 4), at + apart, upper);
#endif
  }
  // The same for codes with a fifth bit, plus LEAST.
  template <int8_t LEAST, typename Fifth>
  INLINE void put_fives(Codes both, Fifth fifth, int64_t at, int64_t apart, Value lower, Value upper) const {
#if WITH_AVX512  // of 32 values
    const Floats all = __builtin_convertvector(lanes() + LEAST, Floats);
    const __m512i codes = _mm512_cvtepu8_epi32((__m128i)both), four = _mm512_set1_epi32(15);
    const auto of = [&](__m512i low, int part, Value value) INLINE {
      constexpr int FIRST_WHERE_THIRD = 0xe4;
      const __m512i code = _mm512_ternarylogic_epi32(low, fifth.words(part), four, FIRST_WHERE_THIRD);
      return (Floats)_mm512_permutex2var_ps((__m512)value(all), code, (__m512)value(all + 16.0f));
    };
    use(at, of(codes, 0, lower));
    use(at + apart, of(_mm512_srli_epi32(codes, 4), 1, upper));
#else
    put<(LEAST < 0)>(((both & 15) | fifth.bytes(0)) + LEAST, at, lower);
    put<(LEAST < 0)>((both >> 4 | fifth.bytes(1)) + LEAST, at + apart, upper);
#endif
  }
  // Codes of six bits, less 32: four of `low` from bit `from` on, and two of `high` from bit `above` on.
  INLINE void put_sixes(Codes low, int from, Codes high, int above, int64_t at, Value value) const {
#if WITH_AVX512  // value(16 h + l - 32) = value(16 h - 32) + value(l), which is exact
    const Floats all = __builtin_convertvector(lanes(), Floats);
    const Floats sixteens = __builtin_convertvector((lanes() & 3) * 16 - 32, Floats);
    const __m512i l = (__m512i)((Bits)_mm512_cvtepu8_epi32((__m128i)low) >> from);
    const __m512i h = (__m512i)((Bits)_mm512_cvtepu8_epi32((__m128i)high) >> above);
    use(at, (Floats)_mm512_permutexvar_ps(l, (__m512)value(all)) + (Floats)_mm512_permutexvar_ps(h, (__m512)value(sixteens)));
#else
    put<true>(((low >> from & 15) | (high >> above & 3) << 4) - 32, at, value);
#endif
  }
};

template <typename Use>
INLINE inline Values<Use> in_values(Use use) {
  return {use};
}

// ---- formats in blocks ----------------------------------------------------------------------------------------------
//
// A format has blocks of BLOCK weights in ROOM bytes, each GROUP of which has a scale and, if it has OFFSETS, an offset.
// read() gives the scales and offsets of some blocks, and up to 15 more numbers; expand() hands a block's codes to `use`.

// Reads the float16 number at `from`, in this block and those after it, and into `second`, unless null, the next number.
template <int64_t ROOM>
INLINE inline void read_halves(const uint8_t* from, int64_t blocks, float* out, float* second) {
  for (int64_t i = 0; i < blocks; i += WIDTH, from += WIDTH * ROOM) {
    const int32_t last = static_cast<int32_t>(blocks - 1 - i);
    const Ints at = (lanes() < last ? lanes() : Ints{} + last) * static_cast<int32_t>(ROOM);
    Bits bits;  // four bytes of WIDTH blocks
#if WITH_AVX512
    bits = (Bits)_mm512_i32gather_epi32((__m512i)at, from, 1);
#elif WITH_AVX2
    bits = (Bits)_mm256_i32gather_epi32(reinterpret_cast<const int*>(from), (__m256i)at, 1);
#else
    for (int lane = 0; lane < WIDTH; ++lane) bits[lane] = four_bytes(from + at[lane]);
#endif
    store(out + i, from_halves(bits & 0xffffu));
    if (second != nullptr) store(second + i, from_halves(bits >> 16));
  }
}

// factor * number for 16 numbers of 8 bits.
template <bool SIGNED = false>
INLINE inline void put_numbers(Codes numbers, float factor, float* out) {
  in_values([out](int64_t i, Floats values) INLINE { store(out + i, values); }).template put<SIGNED>(numbers, 0, {factor, NO_OFFSET});
}

typedef uint32_t FourInts __attribute__((vector_size(16)));

template <bool OFFSETS>
struct Groups {
  const float *scales, *offsets;
  INLINE Value operator[](int64_t group) const { return {scales[group], OFFSETS ? offsets[group] : NO_OFFSET}; }
};

// The lower halves of 16 bytes are the first 16 weights.
template <int BYTES, int8_t LEAST, bool OFFSET, bool FIVE>
struct Simple {  // weight = d * (code + LEAST), or + m
  static constexpr int64_t BLOCK = 32, GROUP = 32, ROOM = BYTES;
  static constexpr bool OFFSETS = OFFSET;
  static void read(const uint8_t* b, int64_t blocks, float* scales, float* offsets) {
    read_halves<ROOM>(b, blocks, scales, OFFSET ? offsets : nullptr);
  }
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
    const uint8_t* high = b + (OFFSET ? 4 : 2);
    const Codes both = codes_at(high + (FIVE ? 4 : 0));
    if (!FIVE) return use.template put_halves<OFFSET ? nullptr : Q4>(both, 0, 16, groups[0], groups[0]);
    use.template put_fives<LEAST>(both, Bits32{four_bytes(high)}, 0, 16, groups[0], groups[0]);
  }
};

using Q4_0 = Simple<18, -8, false, false>;
using Q4_1 = Simple<20, 0, true, false>;
using Q5_0 = Simple<22, -16, false, true>;
using Q5_1 = Simple<24, 0, true, true>;

template <int64_t BYTES>
struct OneScale {
  static constexpr int64_t BLOCK = 32, GROUP = 32, ROOM = BYTES;
  static constexpr bool OFFSETS = false;
  static void read(const uint8_t* b, int64_t blocks, float* scales, float*) {
    read_halves<ROOM>(b, blocks, scales, nullptr);
  }
};

struct Q8_0 : OneScale<34> {
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
    use.template put<true>(codes_at(b + 2), 0, groups[0]);
    use.template put<true>(codes_at(b + 18), 16, groups[0]);
  }
};

struct Q2_K {
  static constexpr int64_t BLOCK = 256, GROUP = 16, ROOM = 84;
  static constexpr bool OFFSETS = true;
  static void read(const uint8_t* b, int64_t blocks, float* scales, float* offsets) {
    for (int64_t i = 0; i < blocks; ++i, b += ROOM, scales += 16, offsets += 16) {
      put_numbers(codes_at(b) & 15, half(b + 80), scales);
      put_numbers(codes_at(b) >> 4, -half(b + 82), offsets);
    }
  }
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const Codes codes = codes_at(b + 16 + group / 8 * 32 + group % 2 * 16) >> group / 2 % 4 * 2 & 3;
      use.put(codes, 16 * group, groups[group]);
    }
  }
};

struct Q3_K {
  static constexpr int64_t BLOCK = 256, GROUP = 16, ROOM = 110;
  static constexpr bool OFFSETS = false;
  static void read(const uint8_t* b, int64_t blocks, float* scales, float*) {
    for (int64_t i = 0; i < blocks; ++i, b += ROOM, scales += 16) {
      const auto four = [&](int part) INLINE {
        const uint32_t low = four_bytes(b + 96 + part % 2 * 4) >> part / 2 * 4 & 0x0f0f0f0fu;
        return low | (four_bytes(b + 104) >> 2 * part & 0x03030303u) << 4;
      };
      put_numbers<true>((Codes)FourInts{four(0), four(1), four(2), four(3)} - 32, half(b + 108), scales);
    }
  }
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const Codes high = codes_at(b + group % 2 * 16) >> group / 2 & 1;
      const Codes codes = codes_at(b + 32 + group / 8 * 32 + group % 2 * 16) >> group / 2 % 4 * 2 & 3;
      use.template put<true>((codes | high << 2) - 4, 16 * group, groups[group]);
    }
  }
};

template <bool FIVE>
struct Superblock {
  static constexpr int64_t BLOCK = 256, GROUP = 32, ROOM = FIVE ? 176 : 144;
  static constexpr bool OFFSETS = true;
  // Scales and offsets of 6 bits in 12 bytes: the first four with the upper two bits of the last four, whose lower four
  // bits come last.
  static void read(const uint8_t* b, int64_t blocks, float* scales, float* offsets) {
    constexpr uint32_t SIX = 0x3f3f3f3f, FOUR = 0x0f0f0f0f, UPPER = 0x30303030;
    for (int64_t i = 0; i < blocks; ++i, b += ROOM, scales += 8, offsets += 8) {
      const uint32_t s = four_bytes(b + 4), o = four_bytes(b + 8), others = four_bytes(b + 12);
      const FourInts all = {s & SIX, (others & FOUR) | (s >> 2 & UPPER), o & SIX, (others >> 4 & FOUR) | (o >> 2 & UPPER)};
      put_numbers((Codes)all, half(b), scales);
      put_numbers((Codes)FourInts{all[2], all[3], all[0], all[1]}, -half(b + 2), offsets);
    }
  }
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
#pragma GCC unroll 4
    for (int pair = 0; pair < 8; pair += 2) {
#pragma GCC unroll 2
      for (int side = 0; side < 32; side += 16) {
        const Codes both = codes_at(b + (FIVE ? 48 : 16) + 16 * pair + side);
        const int64_t at = 32 * pair + side;
        const Value lower = groups[pair], upper = groups[pair + 1];
        if (FIVE) use.template put_fives<0>(both, BitOfBytes{codes_at(b + 16 + side), pair}, at, 32, lower, upper);
        else use.put_halves(both, at, 32, lower, upper);
      }
    }
  }
};

using Q4_K = Superblock<false>;
using Q5_K = Superblock<true>;

struct Q6_K {
  static constexpr int64_t BLOCK = 256, GROUP = 16, ROOM = 210;
  static constexpr bool OFFSETS = false;
  static void read(const uint8_t* b, int64_t blocks, float* scales, float*) {
    for (int64_t i = 0; i < blocks; ++i, b += ROOM, scales += 16)
      put_numbers<true>(codes_at(b + 192), half(b + 208), scales);
  }
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const int quarter = group / 2 % 4, side = group % 2 * 16;
      const Codes low = codes_at(b + group / 8 * 64 + quarter % 2 * 32 + side), high = codes_at(b + 128 + group / 8 * 32 + side);
      use.put_sixes(low, quarter / 2 * 4, high, 2 * quarter, 16 * group, groups[group]);
    }
  }
};

struct IQ4_NL : OneScale<18> {
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
    use.template put_halves<IQ4>(codes_at(b + 2), 0, 16, groups[0], groups[0]);
  }
};

struct IQ4_XS {
  static constexpr int64_t BLOCK = 256, GROUP = 32, ROOM = 136;
  static constexpr bool OFFSETS = false;
  static void read(const uint8_t* b, int64_t blocks, float* scales, float*) {
    for (int64_t i = 0; i < blocks; ++i, b += ROOM, scales += 8) {
      const float d = half(b);
      for (int g = 0; g < 8; ++g) {
        const int low = b[4 + g / 2] >> g % 2 * 4 & 15, high = b[2 + g / 4] >> g % 4 * 2 & 3;
        scales[g] = d * static_cast<float>((low | high << 4) - 32);
      }
    }
  }
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g)
      use.template put_halves<IQ4>(codes_at(b + 8 + 16 * g), 32 * g, 16, groups[g], groups[g]);
  }
};

struct MxFp4 {
  static constexpr int64_t BLOCK = 32, GROUP = 32, ROOM = 17;
  static constexpr bool OFFSETS = false;
  static void read(const uint8_t* b, int64_t blocks, float* scales, float*) {
    for (int64_t i = 0; i < blocks; ++i, b += ROOM) scales[i] = as_float(b[0] < 2 ? 0x200000u << b[0] : (b[0] - 1u) << 23);
  }
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
    use.template put_halves<FP4>(codes_at(b + 1), 0, 16, groups[0], groups[0]);
  }
};

struct TQ2_0 {  // -1, 0 or 1 times one scale for 256 weights, which is repeated: groups have at most 32
  static constexpr int64_t BLOCK = 256, GROUP = 32, ROOM = 66;
  static constexpr bool OFFSETS = false;
  static void read(const uint8_t* b, int64_t blocks, float* scales, float*) {
    for (int64_t i = 0; i < blocks; ++i, b += ROOM) {
      const float scale = half(b + 64);
      for (int64_t group = 0; group < BLOCK / GROUP; ++group) *scales++ = scale;
    }
  }
  template <typename Use>
  INLINE static void expand(const uint8_t* b, Groups<OFFSETS> groups, const Use& use) {
#pragma GCC unroll 16
    for (int part = 0; part < 16; ++part) {
      const Codes codes = codes_at(b + part / 8 * 32 + part % 2 * 16) >> part / 2 % 4 * 2 & 3;
      use.template put<true>(codes - 1, 16 * part, groups[part / 2]);
    }
  }
};

// The blocks, scales and offsets of a row, or of several rows one after another.
template <typename Kind>
struct Row {
  const uint8_t* block;
  const float *scales, *offsets;

  Row at(int64_t k) const { return {block + k / Kind::BLOCK * Kind::ROOM, scales + k / Kind::GROUP, offsets + k / Kind::GROUP}; }

  // Calls f(place, block) for all blocks; expand() hands a block's codes to the result.
  template <typename F>
  INLINE void for_blocks(int64_t width, const F& f) const {
    const uint8_t* b = block;
    Groups<Kind::OFFSETS> groups = {scales, offsets};
    for (int64_t k = 0; k < width; k += Kind::BLOCK, b += Kind::ROOM) {
      Kind::expand(b, groups, f(k, b));
      groups.scales += Kind::BLOCK / Kind::GROUP, groups.offsets += Kind::BLOCK / Kind::GROUP;
    }
  }
};

// f(r, row) for the rows from first to last. The scales of some rows are read at a time, so that blocks find them in memory
// as float32: to convert them one by one took longer than the products.
template <typename Kind, typename F>
INLINE inline int64_t for_rows(const uint8_t* blocks, int64_t width, int64_t first, int64_t last, const F& f) {
  constexpr int64_t GROUPS = 64, MOST = 4096, MORE = 15;
  const int64_t groups = width / Kind::GROUP, some = groups < GROUPS ? GROUPS / groups : 1, room = some * groups + MORE;
  const auto run = [&](float* scales, float* offsets) {
    for (int64_t r = first; r < last; r += some) {
      const int64_t count = r + some < last ? some : last - r;
      const Row<Kind> rows = {blocks + r * (width / Kind::BLOCK * Kind::ROOM), scales, offsets};
      Kind::read(rows.block, count * width / Kind::BLOCK, scales, offsets);
      for (int64_t i = 0; i < count; ++i) f(r + i, rows.at(i * width));
    }
  };
  if (room <= MOST) {
    alignas(64) float scales[MOST], offsets[MOST];
    run(scales, offsets);
    return DONE;
  }
  const Buffer<float> scales(room), offsets(room);
  if (scales == nullptr || offsets == nullptr) return NO_MEMORY;
  run(scales, offsets);
  return DONE;
}

// f(Kind()) for the format, by its number.
template <typename F>
inline void with_kind(int64_t format, const F& f) {
  switch (format) {
    case Q4_0_BLOCKS: return f(Q4_0());
    case Q4_1_BLOCKS: return f(Q4_1());
    case Q5_0_BLOCKS: return f(Q5_0());
    case Q5_1_BLOCKS: return f(Q5_1());
    case Q8_0_BLOCKS: return f(Q8_0());
    case Q2_K_BLOCKS: return f(Q2_K());
    case Q3_K_BLOCKS: return f(Q3_K());
    case Q4_K_BLOCKS: return f(Q4_K());
    case Q5_K_BLOCKS: return f(Q5_K());
    case Q6_K_BLOCKS: return f(Q6_K());
    case IQ4_NL_BLOCKS: return f(IQ4_NL());
    case IQ4_XS_BLOCKS: return f(IQ4_XS());
    case TQ2_0_BLOCKS: return f(TQ2_0());
    default: return f(MxFp4());
  }
}

}  // namespace
