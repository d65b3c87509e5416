// Products of a few tokens with rows of weights: out[t * stride + r] = sum over k of weight[r][k] x[t][k].
//
// Of an output the products are added in float32, in one order for every number of tokens, rows and threads: it has the
// same bits in all of them. Weights of a row are contiguous, and those of ROWS rows are read together, from memory once
// for all tokens.
//
// Dense weights take tokens of float32. Int8 and Mxfp4 are blocks of 32 weights with a scale, and take
// tokens in fixed point (prepare): 32 numbers as 16-bit integers, relative to the greatest of them. That is exact to
// 2^-16 of the greatest, where bfloat16 is to 2^-9 of each. Products of a block are added as integers, exactly.
// A block of x with an infinite number or NaN gives NaN.
#pragma once

#include <cstdlib>
#include <type_traits>

#include "vector.h"

namespace {

constexpr int64_t ROWS = 4, BLOCK = 32;
constexpr int PARTS = BLOCK * 2 / VECTOR_BYTES;     // vectors of a block's 16-bit integers

// ---- 16-bit integers ------------------------------------------------------------------------------------------------

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

// 16 bytes, again and again.
inline Bits repeated(const void* from) {
#if WITH_AVX512
  return (Bits)_mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(from)));
#elif WITH_AVX2
  return (Bits)_mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
#else
  Bits all;
  for (int i = 0; i < VECTOR_BYTES; i += 16) std::memcpy(reinterpret_cast<char*>(&all) + i, from, 16);
  return all;
#endif
}

// Of 16 bytes those with the indices given, which are below 16.
inline Words looked_up(const int8_t* table, Bits indices) {
#if WITH_AVX512
  return (Words)_mm512_shuffle_epi8((__m512i)repeated(table), (__m512i)indices);
#elif WITH_AVX2
  return (Words)_mm256_shuffle_epi8((__m256i)repeated(table), (__m256i)indices);
#else
  Bytes found;
  for (int i = 0; i < VECTOR_BYTES; ++i) found[i] = table[((Bytes)indices)[i]];
  return (Words)found;
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

template <typename Number>  // float or BFloat16
struct Dense {
  const Number* weights;
};

// weight = scale * integer in [-127, 127]; scales are bfloat16.
struct Int8 {
  const int8_t* weights;
  const BFloat16* scales;
  static constexpr int64_t BYTES = BLOCK;
  static constexpr float UNIT = 1;
  static constexpr int place(int i) { return i; }  // where of a block's integers that of weight i stands
  const void* block(int64_t i) const { return weights + i * BLOCK; }
  void words(int64_t i, Words out[PARTS]) const {
    for (int part = 0; part < PARTS; ++part)
      out[part] = widened(vector_at<HalfBytes>(weights + i * BLOCK + part * VECTOR_BYTES / 2));
  }
  static Floats scale(const BFloat16* from) { return load(from); }
};

// 16 bytes of two codes, the first in the lower half; weight = 2^(scale - 127) * value, NaN for the scale 255.
struct Mxfp4 {
  const uint8_t* blocks;
  const uint8_t* scales;
  static constexpr int64_t BYTES = BLOCK / 2;
  static constexpr float UNIT = 1.0f / 512;  // the integers are the values times 2 * 256
  static constexpr int place(int i) { return i % 4 * 8 + i / 4; }
  const void* block(int64_t i) const { return blocks + i * BYTES; }
  // Of the four codes in each two bytes, those of one kind are moved to the bits 8 to 11. The byte below is code 0,
  // whose value is 0.
  void words(int64_t i, Words out[PARTS]) const {
    alignas(16) static constexpr int8_t DOUBLED[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    alignas(64) static constexpr uint32_t LEFT[16] = {8, 8, 8, 8, 4, 4, 4, 4}, RIGHT[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4};
    for (int part = 0; part < PARTS; ++part) {
      Bits codes = repeated(blocks + i * BYTES);
      if (part * WIDTH < 8) codes <<= vector_at<Bits>(LEFT + part * WIDTH);
      if (part * WIDTH + WIDTH > 8) codes >>= vector_at<Bits>(RIGHT + part * WIDTH);
      out[part] = looked_up(DOUBLED, codes & 0x0f000f00u);
    }
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
    // 0 is 2^-127 and 255 is NaN: both have the highest bit of the mantissa and another exponent's bits than they say.
    const Bits special = (Bits)(((exponents + 1) & 255) < 2u) & 0x400000u;
    return (Floats)(exponents << 23 | special);
  }
};

enum Stored : int64_t { FLOAT32, BFLOAT16, INT8, MXFP4 };

// ---- tokens in fixed point ------------------------------------------------------------------------------------------

// Bytes of a token, which should begin at a multiple of 64: its integers, then a scale for each block.
inline int64_t token_bytes(int64_t width) { return (2 * width + (width / BLOCK + WIDTH) * 4 + 63) / 64 * 64; }

template <typename Format>
inline void prepare(const float* x, int64_t width, char* token) {
  int16_t* integers = reinterpret_cast<int16_t*>(token);
  float* scales = reinterpret_cast<float*>(token + 2 * width);
  for (int64_t block = 0; block < width / BLOCK; ++block, x += BLOCK, integers += BLOCK) {
    // Without the sign, the bits of floats compare as integers, and those of NaN are the greatest.
    uint32_t greatest = 0;
    for (int i = 0; i < BLOCK; ++i) {
      uint32_t bits;
      std::memcpy(&bits, x + i, 4);
      bits &= 0x7fffffff;
      greatest = bits > greatest ? bits : greatest;
    }
    const float most = as_float(greatest);
    if (greatest >= 0x7f800000 || most < 1e-30f) {
      scales[block] = greatest >= 0x7f800000 ? as_float(0x7fc00000) : 0;
      std::memset(integers, 0, 2 * BLOCK);
      continue;
    }
    scales[block] = most / 32767 * Format::UNIT;
    const float inverse = 32767 / most;
    for (int i = 0; i < BLOCK; ++i) {
      // Added to 1.5 * 2^23, a number is rounded to an integer, which the lower 16 bits then hold.
      const float shifted = x[i] * inverse + 12582912.0f;
      uint32_t bits;
      std::memcpy(&bits, &shifted, 4);
      integers[Format::place(i)] = static_cast<int16_t>(bits);
    }
  }
}

// ---- R rows with T tokens -------------------------------------------------------------------------------------------

template <int R, int T, typename Number>
inline void tile(Dense<Number> matrix, int64_t row, const float* x, int64_t width, float* out, int64_t stride) {
  constexpr int64_t LINE = 64 / sizeof(Number);  // a cache line of weights
  const Number* weights = matrix.weights + row * width;
  Floats sums[R][T] = {};
  const auto add = [&](int64_t k, int64_t count) {
    Floats token[T];
    for (int t = 0; t < T; ++t) token[t] = load(x + t * width + k, count);
    for (int r = 0; r < R; ++r) {
      const Floats some = load(weights + r * width + k, count);
      for (int t = 0; t < T; ++t) sums[r][t] += some * token[t];
    }
  };
  int64_t k = 0;
  for (; k + LINE <= width; k += LINE) {
    for (int r = 0; r < R; ++r) __builtin_prefetch(weights + (ROWS + r) * width + k);
    for (int64_t i = 0; i < LINE; i += WIDTH) add(k + i, WIDTH);
  }
  for (; k < width; k += WIDTH) add(k, width - k < WIDTH ? width - k : WIDTH);
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) out[t * stride + row + r] = sum(sums[r][t]);
}

// WIDTH scales, or those that there are.
template <typename Format>
inline Floats first_scales(Format weights, int64_t at, int64_t count) {
  if (count >= WIDTH) return Format::scale(weights.scales + at);
  std::remove_const_t<std::remove_pointer_t<decltype(weights.scales)>> some[WIDTH] = {};
  std::memcpy(some, weights.scales + at, count * sizeof *some);
  return Format::scale(some);
}

template <int R, int T, typename Format>
inline void tile(Format weights, int64_t row, const char* x, int64_t width, float* out, int64_t stride) {
  const int64_t blocks = width / BLOCK, bytes = token_bytes(width);
  Floats sums[R][T] = {};
  for (int64_t start = 0; start < blocks; start += WIDTH) {
    // Scales are read WIDTH at a time, at a row's end some of them again.
    const int64_t end = start + WIDTH < blocks ? start + WIDTH : blocks;
    const int64_t from = blocks < WIDTH ? 0 : end - WIDTH;
    float scales[R][T][WIDTH];
    for (int r = 0; r < R; ++r) {
      const Floats of_weights = first_scales(weights, (row + r) * blocks + from, blocks);
      for (int t = 0; t < T; ++t)
        store(scales[r][t], of_weights * vector_at<Floats>(x + t * bytes + 2 * width + 4 * from));
    }
    for (int64_t block = start; block < end; ++block) {
      Words words[R][PARTS];
      for (int r = 0; r < R; ++r) {
        const int64_t at = (row + r) * blocks + block;
        if (block % (64 / Format::BYTES) == 0) __builtin_prefetch(weights.block(at + R * blocks));
        weights.words(at, words[r]);
      }
      for (int t = 0; t < T; ++t) {
        Words token[PARTS];
        for (int part = 0; part < PARTS; ++part)
          token[part] = vector_at<Words>(x + t * bytes + 2 * BLOCK * block + part * VECTOR_BYTES);
        for (int r = 0; r < R; ++r) {
          Ints products = {};
          for (int part = 0; part < PARTS; ++part) products += products_of_pairs(words[r][part], token[part]);
          sums[r][t] += __builtin_convertvector(products, Floats) * scales[r][t][block - from];
        }
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) out[t * stride + row + r] = sum(sums[r][t]);
}

// Tokens of `size` numbers or bytes, T at a time.
template <int R, int T, typename Format, typename Number>
inline void all_tokens(Format weights, int64_t row, const Number* x, int64_t width, int64_t tokens, int64_t size,
                       float* out, int64_t stride) {
  int64_t t = 0;
  for (; t + T <= tokens; t += T) tile<R, T>(weights, row, x + t * size, width, out + t * stride, stride);
  if constexpr (T > 1)
    if (t < tokens) all_tokens<R, T - 1>(weights, row, x + t * size, width, tokens - t, size, out + t * stride, stride);
}

// ---- the rows from first to last ------------------------------------------------------------------------------------

template <typename Number>
inline void multiply_rows(Dense<Number> weights, const float* x, int64_t width, int64_t tokens, int64_t first,
                          int64_t last, float* out, int64_t stride) {
  constexpr int TOKENS = VECTOR_BYTES == 64 ? 4 : 3;
  int64_t row = first;
  for (; row + ROWS <= last; row += ROWS)
    all_tokens<ROWS, TOKENS>(weights, row, x, width, tokens, width, out, stride);
  for (; row < last; ++row) all_tokens<1, TOKENS>(weights, row, x, width, tokens, width, out, stride);
}

// Blocks whose integers are read off once for more tokens than a tile has.
template <typename Format>
struct Unpacked : Format {
  const char* integers;
  int64_t start;  // the first block's number
  void words(int64_t i, Words out[PARTS]) const {
    for (int part = 0; part < PARTS; ++part)
      out[part] = vector_at<Words>(integers + ((i - start) * PARTS + part) * VECTOR_BYTES);
  }
};

template <int R, typename Format>
inline void multiply_rows(Format weights, const char* x, int64_t width, int64_t tokens, int64_t row, char* integers,
                          float* out, int64_t stride) {
  constexpr int TOKENS = 4;
  const int64_t blocks = width / BLOCK, bytes = token_bytes(width);
  if (tokens <= TOKENS) return all_tokens<R, TOKENS>(weights, row, x, width, tokens, bytes, out, stride);
  for (int64_t i = 0; i < R * blocks; ++i) {
    Words words[PARTS];
    if (i % (64 / Format::BYTES) == 0) __builtin_prefetch(weights.block((row + R) * blocks + i));
    weights.words(row * blocks + i, words);
    for (int part = 0; part < PARTS; ++part)
      std::memcpy(integers + (i * PARTS + part) * VECTOR_BYTES, &words[part], VECTOR_BYTES);
  }
  const Unpacked<Format> unpacked{weights, integers, row * blocks};
  all_tokens<R, TOKENS>(unpacked, row, x, width, tokens, bytes, out, stride);
}

template <typename Format>
inline void multiply_rows(Format weights, const char* x, int64_t width, int64_t tokens, int64_t first, int64_t last,
                          float* out, int64_t stride) {
  constexpr int FEWER = VECTOR_BYTES == 64 ? ROWS : ROWS / 2;  // registers hold the integers of as many rows
  char* integers = static_cast<char*>(std::aligned_alloc(64, ROWS * width * 2));
  int64_t row = first;
  if (tokens == 1)
    for (; row + ROWS <= last; row += ROWS)
      tile<ROWS, 1>(weights, row, x, width, out, stride);
  for (; row + FEWER <= last; row += FEWER)
    multiply_rows<FEWER>(weights, x, width, tokens, row, integers, out, stride);
  for (; row < last; ++row) multiply_rows<1>(weights, x, width, tokens, row, integers, out, stride);
  std::free(integers);
}

}  // namespace

EXPORT(some_rows)
(int64_t format, const void* weights, const void* scales, const char* tokens, int64_t width, int64_t count, int64_t first,
 int64_t last, float* out, int64_t stride);
EXPORT(prepare)(int64_t format, const float* x, int64_t width, int64_t count, char* tokens);
