// MXFP4 on the CPU: expansion, and the product of packed rows with tokens in float32 or bfloat16. kernels/mxfp4.py
// calls it; rows.h multiplies tokens in fixed point.
//
// A group is 32 weights: 16 bytes of two 4-bit codes (the low nibble first) and one scale byte s, which means
// 2^(s - 127); s = 255 makes the group NaN. Each scale has its own row of 16 ready numbers in bfloat16, which holds
// them exactly, so that no exponent is a special case. bfloat16 is the upper half of a float32.
//
// Products add in float32, for one output in one order, whatever the number of tokens or threads is.

#include <cmath>

#include "rows.h"

namespace {

struct Tables {
  alignas(64) uint16_t number[256][16];  // by scale and code, in bfloat16
  alignas(64) uint8_t half[256][2][16];  // the same, lower and upper bytes apart
  Tables() {
    const float magnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (int scale = 0; scale < 256; ++scale) {
      for (int code = 0; code < 16; ++code) {
        const double exact = ldexp(static_cast<double>(magnitude[code & 7]), scale - 127);
        const float value = exact >= ldexp(1.0, 128) ? INFINITY : static_cast<float>(exact);
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        uint16_t upper = static_cast<uint16_t>(bits >> 16 | (code & 8) << 12);
        if (scale == 255) upper = 0x7fc0;
        number[scale][code] = upper;
        half[scale][0][code] = static_cast<uint8_t>(upper);
        half[scale][1][code] = static_cast<uint8_t>(upper >> 8);
      }
    }
  }
};
const Tables TABLES;

// One group as 32 bfloat16 numbers, in order.
#if WITH_AVX512

// Of each index the permutation reads five bits, and the fifth, which is not masked away, chooses between two copies of
// the same row.
inline void group(const uint8_t* block, uint8_t scale, uint16_t* out) {
  const __m256i row = _mm256_load_si256(reinterpret_cast<const __m256i*>(TABLES.number[scale]));
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block)));
  const __m512i index = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
  _mm512_storeu_si512(out, _mm512_permutexvar_epi16(index, _mm512_broadcast_i64x4(row)));
}

#elif WITH_AVX2

inline void group(const uint8_t* block, uint8_t scale, uint16_t* out) {
  const __m128i lower = _mm_load_si128(reinterpret_cast<const __m128i*>(TABLES.half[scale][0]));
  const __m128i upper = _mm_load_si128(reinterpret_cast<const __m128i*>(TABLES.half[scale][1]));
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, nibble), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
  const __m128i codes[2] = {_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)};
  for (int i = 0; i < 2; ++i) {
    const __m128i lowers = _mm_shuffle_epi8(lower, codes[i]), uppers = _mm_shuffle_epi8(upper, codes[i]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * i), _mm_unpacklo_epi8(lowers, uppers));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * i + 8), _mm_unpackhi_epi8(lowers, uppers));
  }
}

#else

inline void group(const uint8_t* block, uint8_t scale, uint16_t* out) {
  const uint16_t* number = TABLES.number[scale];
  for (int64_t i = 0; i < BLOCK / 2; ++i) {
    out[2 * i] = number[block[i] & 15];
    out[2 * i + 1] = number[block[i] >> 4];
  }
}

#endif

// ---- expansion of contiguous groups ---------------------------------------------------------------------------------

void expand(const uint8_t* blocks, const uint8_t* scales, int64_t groups, uint16_t* out) {
  for (int64_t g = 0; g < groups; ++g) group(blocks + g * BLOCK / 2, scales[g], out + g * BLOCK);
}

void expand(const uint8_t* blocks, const uint8_t* scales, int64_t groups, float* out) {
  for (int64_t g = 0; g < groups; ++g, out += BLOCK) {
    BFloat16 numbers[BLOCK];
    group(blocks + g * BLOCK / 2, scales[g], &numbers[0].bits);
    for (int64_t i = 0; i < BLOCK; i += WIDTH) store(out + i, load(numbers + i));
  }
}

template <typename Number>
void expand_all(const uint8_t* blocks, const uint8_t* scales, int64_t groups, Number* out, int64_t threads) {
  constexpr int64_t CHUNK = 1024;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t first = 0; first < groups; first += CHUNK) {
    const int64_t count = groups - first < CHUNK ? groups - first : CHUNK;
    expand(blocks + first * BLOCK / 2, scales + first, count, out + first * BLOCK);
  }
}

// ---- products: some rows are expanded, then multiplied by all tokens; out[token * rows + row] -----------------------

template <typename Number, typename Products>
int64_t multiply(const uint8_t* blocks, const uint8_t* scales, int64_t rows, int64_t groups, int64_t tokens,
                 int64_t threads, Products products) {
  const int64_t some = ROWS * (tokens > 16 ? 8 : 1), parts = (rows + some - 1) / some;
  int64_t result = DONE;
#pragma omp parallel num_threads(threads)
  {
    const Buffer<Number> weights(some * groups * BLOCK);
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = part * some, count = rows - first < some ? rows - first : some;
      if (weights != nullptr) expand(blocks + first * groups * BLOCK / 2, scales + first * groups, count * groups, weights);
      const int64_t done = weights == nullptr ? NO_MEMORY : products(weights, first, count);
#pragma omp critical
      if (done != DONE) result = done;
    }
  }
  return result;
}

#if WITH_AVX512 && defined(__AVX512BF16__)

template <int R, int T>
void tile(const uint16_t* weights, const uint16_t* x, int64_t width, float* out, int64_t stride) {
  __m512 sums[R][T];
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) sums[r][t] = _mm512_setzero_ps();
  for (int64_t k = 0; k < width; k += 32) {
    __m512i some[T];
    for (int t = 0; t < T; ++t) some[t] = _mm512_loadu_si512(x + t * width + k);
    for (int r = 0; r < R; ++r) {
      const __m512i row = _mm512_loadu_si512(weights + r * width + k);
      for (int t = 0; t < T; ++t) sums[r][t] = _mm512_dpbf16_ps(sums[r][t], (__m512bh)row, (__m512bh)some[t]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) out[t * stride + r] = _mm512_reduce_add_ps(sums[r][t]);
}

template <int R>
void tiles(const uint16_t* weights, const uint16_t* x, int64_t width, int64_t tokens, float* out, int64_t stride) {
  int64_t t = 0;
  for (; t + 4 <= tokens; t += 4) tile<R, 4>(weights, x + t * width, width, out + t * stride, stride);
  for (; t < tokens; ++t) tile<R, 1>(weights, x + t * width, width, out + t * stride, stride);
}

#endif

}  // namespace

EXPORT(mxfp4_expand_bfloat16)
(const uint8_t* blocks, const uint8_t* scales, uint16_t* out, int64_t groups, int64_t threads) {
  expand_all(blocks, scales, groups, out, threads);
  return DONE;
}

EXPORT(mxfp4_expand_float32)
(const uint8_t* blocks, const uint8_t* scales, float* out, int64_t groups, int64_t threads) {
  expand_all(blocks, scales, groups, out, threads);
  return DONE;
}

// out [tokens, rows] = x [tokens, 32 groups] times the transposed weights [rows, 32 groups].
EXPORT(mxfp4_multiply_float32)
(const uint8_t* blocks, const uint8_t* scales, const float* x, float* out, int64_t rows, int64_t groups, int64_t tokens,
 int64_t threads) {
  const char* from = reinterpret_cast<const char*>(x);
  return multiply<float>(blocks, scales, rows, groups, tokens, threads, [&](const float* weights, int64_t first, int64_t count) {
    return CALL(some_rows)(FLOAT32, weights, nullptr, from, groups * BLOCK, tokens, 0, count, out + first, rows);
  });
}

#if WITH_AVX512 && defined(__AVX512BF16__)
EXPORT(mxfp4_multiply_bfloat16)
(const uint8_t* blocks, const uint8_t* scales, const uint16_t* x, float* out, int64_t rows, int64_t groups, int64_t tokens,
 int64_t threads) {
  const int64_t width = groups * BLOCK;
  return multiply<uint16_t>(blocks, scales, rows, groups, tokens, threads, [&](const uint16_t* weights, int64_t first, int64_t count) {
    int64_t r = 0;
    for (; r + ROWS <= count; r += ROWS) tiles<ROWS>(weights + r * width, x, width, tokens, out + first + r, rows);
    for (; r < count; ++r) tiles<1>(weights + r * width, x, width, tokens, out + first + r, rows);
    return DONE;
  });
}
#endif
