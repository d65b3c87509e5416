// Products of a few tokens with rows of weights: out[t * stride + r] = sum over k of weight[r][k] x[t][k].
//
// Of an output the products are added in float32, in one order for every number of tokens, rows and threads: it has the
// same bits in all of them. Rows are contiguous, and read from memory once for all tokens.
//
// Dense and Lossless weights take tokens of float32. Int8 and Mxfp4 are blocks of 32 weights with a scale, and take
// tokens in fixed point (prepare): 32 numbers as 16-bit integers, relative to the greatest of them. That is exact to
// 2^-16 of the greatest, where bfloat16 is to 2^-9 of each. Products of a block are added as integers, exactly.
// A block of x with an infinite number or NaN gives NaN.
#pragma once

#include <type_traits>

#include "vector.h"

namespace {

constexpr int64_t ROWS = 4, BLOCK = 32;
#define INLINE __attribute__((always_inline))

// ---- integers of 16 and 8 bits --------------------------------------------------------------------------------------

typedef int16_t Words __attribute__((vector_size(VECTOR_BYTES)));
typedef int8_t Bytes __attribute__((vector_size(VECTOR_BYTES)));
typedef int8_t HalfBytes __attribute__((vector_size(VECTOR_BYTES / 2)));
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

inline Words widened(HalfBytes numbers) {
#if WITH_AVX512
  return (Words)_mm512_cvtepi8_epi16((__m256i)numbers);
#elif WITH_AVX2
  return (Words)_mm256_cvtepi8_epi16((__m128i)numbers);
#else
  return __builtin_convertvector(numbers, Words);
#endif
}

// Of 16 bytes those with the indices given, which are below 16.
inline Bytes looked_up(const int8_t* table, Bytes indices) {
#if WITH_AVX512
  const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return (Bytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(all), (__m512i)indices);
#elif WITH_AVX2
  const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return (Bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(all), (__m256i)indices);
#else
  Bytes found;
  for (int i = 0; i < VECTOR_BYTES; ++i) found[i] = table[indices[i]];
  return found;
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

// ---- formats of weights ---------------------------------------------------------------------------------------------
//
// A format whose weights are blocks of 32 with a scale (Int8, Mxfp4) says how tile() multiplies by them:
//
//   BYTES            bytes of a block's codes
//   TOGETHER         blocks whose products fill one vector; all below is about so many at a time
//   TOKEN            bytes that a prepared token has for them; put() writes them, products() reads them
//   UNIT             what a token's scale is multiplied by, where the codes are multiples of the values
//   end, INSIDE      the last block; INSIDE promises that no vector that is read reaches beyond it, which saves asking
//   read, products   the codes of blocks as a vector, and the integer sums of their products with a token
//   Unpacked         the codes as 16-bit words, for rows that are read off once and multiplied by many tokens
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

// weight = scale * integer in [-127, 127]; scales are bfloat16. A token has its integers in order.
struct Int8 {
  const int8_t* weights;
  const BFloat16* scales;
  int64_t end;
  static constexpr int64_t BYTES = BLOCK, TOGETHER = 1, TOKEN = 2 * BLOCK;
  static constexpr bool INSIDE = false;
  static constexpr float UNIT = 1;
  static constexpr int VECTORS = BLOCK * 2 / VECTOR_BYTES;
  struct Some {
    Words words[VECTORS];
  };
  using Unpacked = Some;
  const void* block(int64_t i) const { return weights + i * BLOCK; }
  INLINE Some read(int64_t, int64_t row, int64_t i, bool) const {
    Some some;
    for (int part = 0; part < VECTORS; ++part)
      some.words[part] = widened(vector_at<HalfBytes>(weights + (row + i) * BLOCK + part * VECTOR_BYTES / 2));
    return some;
  }
  INLINE static Unpacked unpacked(const Some& some) { return some; }
  INLINE static Ints products(const Some& some, const char* token) {
    Ints sums = {};
    for (int part = 0; part < VECTORS; ++part)
      sums += products_of_pairs(some.words[part], vector_at<Words>(token + part * VECTOR_BYTES));
    return sums;
  }
  static void put(int64_t block, const int16_t* integers, char* token) {
    std::memcpy(token + 2 * BLOCK * block, integers, 2 * BLOCK);
  }
  static Floats scale(const BFloat16* from) { return load(from); }
  static constexpr int64_t scale_lane(int64_t i) { return i; }
  static Floats in_lanes(Floats scales) { return scales; }
  INLINE static Floats repeated(const Floats& scales, int64_t i) {
    const float* from = reinterpret_cast<const float*>(&scales);
    asm("" : "+r"(from));  // to be read from memory, which costs less than to move it out of a register
    return filled(from[i]);
  }
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

// bfloat16 in 12 bits, as kernels/lossless.py describes it and docs/concepts/fast-forms.md draws it. A group of 64 weights is 64
// lower bytes, and 32 bytes of two codes for upper bytes. A 16-byte table of the row turns codes into upper bytes (one
// shuffle); interleaving lower and upper bytes within lanes of 128 bits gives pairs of bfloat16 numbers in 32 bits. Shifted
// up, and masked, each pair is two float32 numbers. The lower bytes are stored in the order for which the four vectors that
// come out are in the order of x: vector `quarter` of `part` holds the weights from 16 * quarter + part * WIDTH on.
struct Lossless {
  const uint8_t* packed;
  const int32_t* index;
  static constexpr int64_t GROUP = 64, BYTES = 96, PARTS = GROUP / VECTOR_BYTES;
  struct Weights {
    Bits quarters[4];
  };
  static constexpr int32_t CODED = 7;
  static int64_t row_bytes(int64_t width) { return (width + GROUP - 1) / GROUP * BYTES; }
  INLINE static uint8_t top(const uint16_t* weights, int64_t width) {
    uint16_t found = 0;
    for (int64_t k = 0; k < width; ++k) {
      const uint16_t exponent = weights[k] & 0x7f00;
      found = exponent > found ? exponent : found;
    }
    return found >> 8;
  }
  INLINE static bool is_exception(uint16_t weight, uint16_t top) {
    const uint16_t exponent = weight >> 8 & 127;
    return exponent > 0 && exponent + CODED <= top;
  }
  // Four bytes, each with a zero byte after it.
  INLINE static uint64_t spread(uint64_t four) {
    four = (four | four << 16) & 0x0000ffff0000ffffu;
    return (four | four << 8) & 0x00ff00ff00ff00ffu;
  }
  // Bytes of weights in the order in which unpacked() takes them.
  INLINE static void interleave(const uint8_t* bytes, uint8_t* out) {
    for (int64_t c = 0; c < 4; ++c)
      for (int64_t a = 0; a < 2; ++a, out += 8) {
        uint32_t even, odd;
        std::memcpy(&even, bytes + 32 * a + 4 * c, 4);
        std::memcpy(&odd, bytes + 32 * a + 16 + 4 * c, 4);
        const uint64_t both = spread(even) | spread(odd) << 8;
        std::memcpy(out, &both, 8);
      }
  }
  typedef uint8_t Table __attribute__((vector_size(16)));  // the upper bytes of a row's codes
  INLINE Table table(int64_t row) const {
    const Table below = {0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 2, 3, 4, 5, 6, 0};
    const Table coded = {255, 255, 255, 255, 255, 255, 255, 0, 255, 255, 255, 255, 255, 255, 255, 0};
    const Table sign = {0, 0, 0, 0, 0, 0, 0, 0, 128, 128, 128, 128, 128, 128, 128, 128};
    return ((static_cast<uint8_t>(index[2 * row]) - below) & coded) | sign;
  }
  INLINE static Weights unpacked(const uint8_t* group, int64_t part, const Table& table) {
    constexpr int64_t CODES = GROUP / 2;
    const Bytes lower = vector_at<Bytes>(group + part * VECTOR_BYTES);
    Bits first, second;
#if WITH_AVX512 || WITH_AVX2
    const int8_t* entries = reinterpret_cast<const int8_t*>(&table);
#endif
#if WITH_AVX512
    const __m256i two = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group + GROUP));
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(two), _mm256_srli_epi16(two, 4), 1);
    const __m512i upper = (__m512i)looked_up(entries, (Bytes)((Bits)both & 0x0f0f0f0fu));
    first = (Bits)_mm512_unpacklo_epi8((__m512i)lower, upper);
    second = (Bits)_mm512_unpackhi_epi8((__m512i)lower, upper);
#elif WITH_AVX2
    const Bits two = vector_at<Bits>(group + GROUP);
    const __m256i upper = (__m256i)looked_up(entries, (Bytes)(two >> 4 * part & 0x0f0f0f0fu));
    first = (Bits)_mm256_unpacklo_epi8((__m256i)lower, upper);
    second = (Bits)_mm256_unpackhi_epi8((__m256i)lower, upper);
#else
    Bytes interleaved[2];
    for (int64_t i = 0; i < VECTOR_BYTES; ++i) {
      const int64_t at = part * VECTOR_BYTES + i, to = i / 16 * 16 + i % 8 * 2;
      interleaved[i / 8 % 2][to] = lower[i];
      interleaved[i / 8 % 2][to + 1] = table[group[GROUP + at % CODES] >> at / CODES * 4 & 15];
    }
    first = (Bits)interleaved[0], second = (Bits)interleaved[1];
#endif
    return {{first << 16, first & 0xffff0000u, second << 16, second & 0xffff0000u}};
  }
};

enum Stored : int64_t { FLOAT32, BFLOAT16, LOSSLESS, INT8, MXFP4, BLOCKS };  // BLOCKS: and its kinds, after it

// ---- tokens in fixed point ------------------------------------------------------------------------------------------

constexpr float MOST = 32639;  // 127 * 256 + 127

// Bytes of a token, which should begin at a multiple of 64: its integers, then a scale for each block.
inline int64_t integer_bytes(int64_t width) { return (width / BLOCK + 3) / 4 * 4 * 160; }
inline int64_t token_bytes(int64_t width) {
  return (integer_bytes(width) + (width / BLOCK + WIDTH) * 4 + 63) / 64 * 64;
}

template <typename Format>
inline void prepare(const float* x, int64_t width, char* token) {
  const int64_t blocks = width / BLOCK, integers_end = integer_bytes(width);
  float* scales = reinterpret_cast<float*>(token + integers_end);
  if (blocks % Format::TOGETHER != 0) std::memset(token + blocks / Format::TOGETHER * Format::TOKEN, 0, Format::TOKEN);
  std::memset(scales, 0, (blocks + WIDTH - 1) / WIDTH * WIDTH * 4);
  for (int64_t block = 0; block < blocks; ++block, x += BLOCK) {
    // Without the sign, the bits of floats compare as integers, and those of NaN are the greatest.
    uint32_t greatest = 0;
    for (int i = 0; i < BLOCK; ++i) {
      uint32_t bits;
      std::memcpy(&bits, x + i, 4);
      bits &= 0x7fffffff;
      greatest = bits > greatest ? bits : greatest;
    }
    const float most = as_float(greatest);
    const bool ordinary = greatest < 0x7f800000 && most >= 1e-30f;
    float& scale = scales[block / WIDTH * WIDTH + Format::scale_lane(block % WIDTH)];
    if (greatest >= 0x7f800000) scale = as_float(0x7fc00000);
    if (ordinary) scale = most / MOST * Format::UNIT;
    const float inverse = ordinary ? MOST / most : 0;
    int16_t integers[BLOCK];
    for (int i = 0; i < BLOCK; ++i) {
      // Added to 1.5 * 2^23, a number is rounded to an integer, which the lower 16 bits then hold.
      const float shifted = (ordinary ? x[i] : 0.0f) * inverse + 12582912.0f;
      uint32_t bits;
      std::memcpy(&bits, &shifted, 4);
      integers[i] = static_cast<int16_t>(bits);
    }
    Format::put(block, integers, token);
  }
}

// ---- R rows with T tokens -------------------------------------------------------------------------------------------

// Into the second-level cache: in the first a cache line of weights would take the place of tokens.
INLINE inline void prefetch(const void* weights) {
  constexpr int FOR_READING = 0, SECOND_LEVEL = 2;
  __builtin_prefetch(weights, FOR_READING, SECOND_LEVEL);
}

// How far ahead of one row after the other, in bytes.
constexpr int64_t FAR_AHEAD = 16384;
INLINE inline void prefetch_ahead(const void* weights) { prefetch(static_cast<const char*>(weights) + FAR_AHEAD); }

// What a tile of several rows prefetches: of the rows that are so many further on, the part of this pass. Several passes
// over the same rows take a part each, so that none leaves the memory idle.
struct Next {
  int64_t rows = 0, pass = 0, passes = 1;
};

template <int R, int T, typename Number, int PARTS>
inline void tile(Dense<Number, PARTS> matrix, int64_t row, const float* x, int64_t width, float* out, int64_t stride,
                 Next next) {
  constexpr int64_t LINE = 64 / sizeof(Number);  // a cache line of weights
  constexpr int64_t STEP = LINE > PARTS * WIDTH ? LINE : PARTS * WIDTH;
  const Number* weights = matrix.weights + row * width;
  const Number* ahead = weights + next.rows * width + next.pass * (width / next.passes);
  const int64_t advance = STEP / next.passes;
  Floats sums[PARTS][R][T] = {};
  const auto add = [&](int64_t k, int64_t count, int part) INLINE {
    Floats token[T];
    for (int t = 0; t < T; ++t) {
      token[t] = load(x + t * width + k, count);
#if WITH_AVX512 || WITH_AVX2
      if (R > 1) asm("" : "+v"(token[t]));  // to be read from memory once, and not again for each row
#endif
    }
    for (int r = 0; r < R; ++r) {
      const Floats some = load(weights + r * width + k, count);
      for (int t = 0; t < T; ++t) sums[part][r][t] += some * token[t];
    }
  };
  int64_t k = 0;
  for (; k + STEP <= width; k += STEP, ahead += advance) {
    if (R == 1) {
      for (int64_t i = 0; i < STEP; i += LINE) prefetch_ahead(weights + k + i);
    } else {
      for (int r = 0; r < R; ++r)
        for (int64_t i = 0; i < advance; i += LINE) prefetch(ahead + r * width + i);
    }
    for (int64_t i = 0; i < STEP; i += PARTS * WIDTH)
      for (int part = 0; part < PARTS; ++part) add(k + i + part * WIDTH, WIDTH, part);
  }
  for (; k < width; k += WIDTH) add(k, width - k < WIDTH ? width - k : WIDTH, 0);
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) {
      for (int part = 1; part < PARTS; ++part) sums[0][r][t] += sums[part][r][t];
      out[t * stride + row + r] = sum(sums[0][r][t]);
    }
  }
}

template <int R, int T>
inline void tile(Lossless matrix, int64_t row, const float* x, int64_t width, float* out, int64_t stride, Next) {
  const int64_t bytes = Lossless::row_bytes(width);
  const int32_t* index = matrix.index + 2 * row;
  Lossless::Table tables[R];
  for (int r = 0; r < R; ++r) tables[r] = matrix.table(row + r);
  __builtin_prefetch(index + 64);
  __builtin_prefetch(matrix.index + 2 * int64_t{index[1]} + 64);
  Floats sums[2][R][T] = {};
  const auto add = [&](const uint8_t* group, int64_t k, auto whole) INLINE {
    for (int r = 0; r < R; ++r) prefetch_ahead(group + r * bytes), prefetch_ahead(group + r * bytes + 64);
#pragma GCC unroll 4
    for (int64_t part = 0; part < Lossless::PARTS; ++part) {
      Lossless::Weights weights[R];
      for (int r = 0; r < R; ++r) weights[r] = Lossless::unpacked(group + r * bytes, part, tables[r]);
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        if (!whole && k + 16 * i >= width) break;
        for (int t = 0; t < T; ++t) {
          const Floats token = load(x + t * width + k + 16 * i + part * WIDTH);
          for (int r = 0; r < R; ++r) sums[i % 2][r][t] += (Floats)weights[r].quarters[i] * token;
        }
      }
    }
  };
  const uint8_t* group = matrix.packed + row * bytes;
  int64_t k = 0;
  for (; k + Lossless::GROUP <= width; k += Lossless::GROUP, group += Lossless::BYTES) add(group, k, std::true_type{});
  if (k < width) add(group, k, std::false_type{});
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) {
      float all = sum(sums[0][r][t] + sums[1][r][t]);
      for (int64_t i = index[2 * r + 1]; i < index[2 * r + 3]; ++i)
        all += as_float(static_cast<uint32_t>(matrix.index[2 * i + 1]) << 16) * x[t * width + matrix.index[2 * i]];
      out[t * stride + row + r] = all;
    }
  }
}

// WIDTH scales from block i on, of which `count` are of the row, and 0 in place of the others.
template <typename Format>
INLINE inline Floats row_scales(const Format& weights, int64_t i, int64_t count) {
  if (count >= WIDTH) return Format::scale(weights.scales + i);
  std::remove_const_t<std::remove_pointer_t<decltype(weights.scales)>> some[WIDTH] = {};
  const bool readable = Format::INSIDE || i + WIDTH <= weights.end;
  if (!readable) std::memcpy(some, weights.scales + i, count * sizeof *some);
  alignas(64) static constexpr int32_t FIRST[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  const Ints first = vector_at<Ints>(FIRST + 16 - count);
  return (Floats)((Ints)Format::scale(readable ? weights.scales + i : some) & first);
}

template <int R, int T, typename Format>
inline void tile(const Format& weights, int64_t row, const char* x, int64_t width, float* out, int64_t stride, Next) {
  constexpr int64_t TOGETHER = Format::TOGETHER;
  const int64_t blocks = width / BLOCK, bytes = token_bytes(width);
  Floats sums[R][T] = {};
  for (int64_t start = 0; start < blocks; start += WIDTH) {
    const char* token = x + start / TOGETHER * Format::TOKEN;
    Floats scales[R][T];
    for (int r = 0; r < R; ++r) {
      const int64_t first = (row + r) * blocks + start;
      const Floats of_weights = Format::in_lanes(row_scales(weights, first, blocks - start));
      for (int t = 0; t < T; ++t)
        scales[r][t] = of_weights * vector_at<Floats>(x + t * bytes + integer_bytes(width) + 4 * start);
      for (int64_t i = 0; i < WIDTH; i += 64 / Format::BYTES) prefetch_ahead(weights.block(first + i));
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < WIDTH; i += TOGETHER) {
      if (i >= blocks - start) break;
      for (int r = 0; r < R; ++r) {
        const auto& some = weights.read(r, (row + r) * blocks, start + i, Format::INSIDE);
        for (int t = 0; t < T; ++t) {
          const Ints products = Format::products(some, token + t * bytes + i / TOGETHER * Format::TOKEN);
          sums[r][t] += __builtin_convertvector(products, Floats) * Format::repeated(scales[r][t], i);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) out[t * stride + row + r] = sum(sums[r][t]);
}

// Tokens of `size` numbers or bytes, T at a time; of each T the rows from `row` to `end`, R at a time.
template <int R, int T, typename Format, typename Number>
inline void all_tokens(const Format& weights, int64_t row, int64_t end, const Number* x, int64_t width, int64_t tokens,
                       int64_t size, float* out, int64_t stride, Next next = {}) {
  int64_t t = 0;
  for (; t + T <= tokens; t += T, ++next.pass)
    for (int64_t r = row; r < end; r += R) tile<R, T>(weights, r, x + t * size, width, out + t * stride, stride, next);
  if constexpr (T > 1)
    if (t < tokens)
      all_tokens<R, T - 1>(weights, row, end, x + t * size, width, tokens - t, size, out + t * stride, stride, next);
}

// ---- the rows from first to last ------------------------------------------------------------------------------------

// T tokens stay in the first-level cache for a block of rows, and its weights in the second for all tokens.
template <int R, typename Number, int PARTS>
inline void multiply_rows(Dense<Number, PARTS> weights, const float* x, int64_t width, int64_t tokens, int64_t first,
                          int64_t last, float* out, int64_t stride) {
  constexpr int T = VECTOR_BYTES == 64 ? 4 : 3;
  constexpr int64_t BLOCK_BYTES = 1 << 15;
  if (width == 0) return all_tokens<1, T>(weights, first, last, x, width, tokens, width, out, stride);
  const int64_t passes = (tokens + T - 1) / T, row_bytes = width * sizeof(Number), whole = last - (last - first) % R;
  const int64_t tiles = BLOCK_BYTES / (R * row_bytes), far = FAR_AHEAD / row_bytes;
  const int64_t block = passes > 1 && tiles > 1 ? R * tiles : R, near = passes > 1 ? (far / R + 1) * R : R + far;
  const int64_t rows = passes > 1 ? block : whole - first;
  for (int64_t row = first; row < whole; row += rows) {
    const int64_t end = row + rows < whole ? row + rows : whole;
    all_tokens<R, T>(weights, row, end, x, width, tokens, width, out, stride, {block > near ? block : near, 0, passes});
  }
  all_tokens<1, T>(weights, whole, last, x, width, tokens, width, out, stride);
}

// Matrices with rows of FAR numbers and more are not in caches. Memory is read fastest from one end to the other, so few
// tokens take one row after the other, in two sums, because one sum waits for its additions longer than for memory.
template <typename Number>
inline void multiply_rows(const Number* weights, const float* x, int64_t width, int64_t tokens, int64_t first,
                          int64_t last, float* out, int64_t stride) {
  constexpr int64_t FAR = 1024;
  const Dense<Number, 1> near{weights};
  const Dense<Number, 2> far{weights};
  if (width < FAR) multiply_rows<ROWS>(near, x, width, tokens, first, last, out, stride);
  else if (tokens <= 2) multiply_rows<1>(far, x, width, tokens, first, last, out, stride);
  else multiply_rows<VECTOR_BYTES == 64 ? 3 : 2>(far, x, width, tokens, first, last, out, stride);
}

inline void multiply_rows(Lossless weights, const float* x, int64_t width, int64_t tokens, int64_t first, int64_t last,
                          float* out, int64_t stride) {
  int64_t row = first;
  if (tokens > 2 && VECTOR_BYTES == 64)
    for (; row + 2 <= last; row += 2) all_tokens<2, 4>(weights, row, row + 2, x, width, tokens, width, out, stride);
  for (; row < last; ++row) all_tokens<1, 4>(weights, row, row + 1, x, width, tokens, width, out, stride);
}

// Rows that are read off once for many tokens.
template <typename Format>
struct Rows : Format {
  const typename Format::Unpacked* all;
  int64_t each;  // of a row
  const typename Format::Unpacked& read(int64_t r, int64_t, int64_t i, bool) const {
    return all[r * each + i / Format::TOGETHER];
  }
};

constexpr int TOKENS = 4, AT_ONCE = VECTOR_BYTES == 64 ? ROWS : ROWS / 2;  // tokens and rows of a tile

template <int R, typename Format>
inline void multiply_unpacked(Format weights, const char* x, int64_t width, int64_t tokens, int64_t row,
                              typename Format::Unpacked* read, float* out, int64_t stride) {
  const int64_t blocks = width / BLOCK, start = row * blocks, each = (blocks + Format::TOGETHER - 1) / Format::TOGETHER;
  for (int r = 0; r < R; ++r)
    for (int64_t i = 0; i < each; ++i)
      read[r * each + i] = Format::unpacked(weights.read(r, start + r * blocks, i * Format::TOGETHER, false));
  const Rows<Format> unpacked{weights, read, each};
  all_tokens<R, TOKENS>(unpacked, row, row + R, x, width, tokens, token_bytes(width), out, stride);
}

// Rows after which whole vectors can be read.
template <typename Format>
struct Inside : Format {
  static constexpr bool INSIDE = true;
};

// Few tokens take one row after the other, as above.
template <typename Format>
inline int64_t multiply_rows(Format weights, const char* x, int64_t width, int64_t tokens, int64_t first, int64_t last,
                          float* out, int64_t stride) {
  using Unpacked = typename Format::Unpacked;
  const int64_t blocks = width / BLOCK;
  weights.end = last * blocks;
  int64_t row = first;
  if (tokens <= TOKENS) {
    const int64_t whole = (blocks + WIDTH - 1) / WIDTH * WIDTH, inside = last - (whole - 1) / blocks;
    const Inside<Format> whole_vectors{weights};
    if (inside > row) {
      all_tokens<1, TOKENS>(whole_vectors, row, inside, x, width, tokens, token_bytes(width), out, stride);
      row = inside;
    }
    all_tokens<1, TOKENS>(weights, row, last, x, width, tokens, token_bytes(width), out, stride);
    return DONE;
  }
  const Buffer<Unpacked> read(AT_ONCE * (blocks + 1));
  if (read == nullptr) return NO_MEMORY;
  for (; row + AT_ONCE <= last; row += AT_ONCE)
    multiply_unpacked<AT_ONCE>(weights, x, width, tokens, row, read, out, stride);
  for (; row < last; ++row) multiply_unpacked<1>(weights, x, width, tokens, row, read, out, stride);
  return DONE;
}

}  // namespace

EXPORT(some_rows)
(int64_t format, const void* weights, const void* scales, const char* tokens, int64_t width, int64_t count, int64_t first,
 int64_t last, float* out, int64_t stride);
EXPORT(prepare)(int64_t format, const float* x, int64_t width, int64_t count, char* tokens);
EXPORT(block_rows)
(int64_t format, const void* blocks, const float* x, int64_t width, int64_t count, int64_t first, int64_t last,
 float* out, int64_t stride);
EXPORT(expand_blocks)
(const void* blocks, float* out, int64_t format, int64_t, int64_t width, int64_t first, int64_t last, int64_t threads);
