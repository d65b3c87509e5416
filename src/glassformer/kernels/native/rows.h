// Products of a few tokens with rows of weights: out[t * stride + r] = sum over k of weight[r][k] x[t][k].
//
// The products of an output are added in float32, in one order for every number of tokens, rows and threads, so that its
// bits do not depend on them. Rows are contiguous, and read from memory once for all tokens.
//
// Dense weights take tokens of float32. Mxfp4 has blocks of 32 weights with a scale, and takes tokens in fixed point
// (prepare): 32 numbers as 16-bit integers, relative to the greatest of them. That is exact to 2^-16 of the greatest,
// where bfloat16 is to 2^-9 of each. Products of a block are added as integers, exactly. blocks.cpp multiplies by blocks.
// A block of x with an infinite number or NaN gives NaN.
#pragma once

#include <type_traits>

#include "formats.h"

namespace {

constexpr int64_t ROWS = 4;

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

// Distance of prefetching where one row follows the other, in bytes.
constexpr int64_t FAR_AHEAD = 16384;
INLINE inline void prefetch_ahead(const void* weights) { prefetch(static_cast<const char*>(weights) + FAR_AHEAD); }

// The weights that a tile of several rows prefetches: a part of the rows that are `rows` further on. Several passes over
// the same rows prefetch a part each, so that none leaves the memory idle.
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

// Rows that are unpacked once for many tokens.
template <typename Format>
struct Rows : Format {
  const typename Format::Unpacked* all;
  int64_t row_size;  // in Unpacked
  const typename Format::Unpacked& read(int64_t r, int64_t, int64_t i, bool) const {
    return all[r * row_size + i / Format::TOGETHER];
  }
};

constexpr int TOKENS = 4, AT_ONCE = VECTOR_BYTES == 64 ? ROWS : ROWS / 2;  // tokens and rows of a tile

template <int R, typename Format>
inline void multiply_unpacked(Format weights, const char* x, int64_t width, int64_t tokens, int64_t row,
                              typename Format::Unpacked* read, float* out, int64_t stride) {
  const int64_t blocks = width / BLOCK, start = row * blocks;
  const int64_t row_size = (blocks + Format::TOGETHER - 1) / Format::TOGETHER;
  for (int r = 0; r < R; ++r)
    for (int64_t i = 0; i < row_size; ++i)
      read[r * row_size + i] = Format::unpacked(weights.read(r, start + r * blocks, i * Format::TOGETHER, false));
  const Rows<Format> unpacked{weights, read, row_size};
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
EXPORT(prepare)(const float* x, int64_t width, int64_t count, char* tokens);
EXPORT(block_rows)
(int64_t format, const void* blocks, const float* x, int64_t width, int64_t count, int64_t first, int64_t last,
 float* out, int64_t stride);
EXPORT(expand_blocks)
(const void* blocks, float* out, int64_t format, int64_t, int64_t width, int64_t first, int64_t last, int64_t threads);
