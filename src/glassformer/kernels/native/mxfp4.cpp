// MXFP4 on the CPU: expansion, and the product of packed rows with tokens. mxfp4_native.py calls it.
//
// A group is 32 weights: 16 bytes of two 4-bit codes (the low nibble first) and one scale byte s, which means
// 2^(s - 127); s = 255 makes the group NaN. Each scale has its own row of 16 ready numbers in bfloat16, which holds
// them exactly, so that no exponent is a special case. bfloat16 is the upper half of a float32.
//
// Products add in float32, for one output in one order, whatever the number of tokens or threads is.

#if LEVEL == 0  // chooses among the levels itself
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#define GLASSFORMER_X86 1
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#define AVX512BF16 __attribute__((target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#endif

namespace {

enum Level : int { PLAIN = 0, WITH_AVX2 = 1, WITH_AVX512 = 2, WITH_AVX512_BF16 = 3 };
constexpr int64_t GROUP = 32, BYTES = 16;

struct Tables {
  alignas(64) uint16_t number[256][16];  // by scale and code, in bfloat16
  alignas(64) uint8_t half[256][2][16];  // the same, lower and upper bytes apart
  Tables() {
    const float magnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (int scale = 0; scale < 256; ++scale) {
      for (int code = 0; code < 16; ++code) {
        const double exact = std::ldexp(static_cast<double>(magnitude[code & 7]), scale - 127);
        const float value = exact >= std::ldexp(1.0, 128) ? INFINITY : static_cast<float>(exact);
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

inline float widened(uint16_t upper) {
  const uint32_t bits = static_cast<uint32_t>(upper) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// ---- expansion of contiguous groups ---------------------------------------------------------------------------------

void expand_plain(const uint8_t* blocks, const uint8_t* scales, int64_t groups, uint16_t* out) {
  for (int64_t g = 0; g < groups; ++g, blocks += BYTES, out += GROUP) {
    const uint16_t* number = TABLES.number[scales[g]];
    for (int64_t i = 0; i < BYTES; ++i) {
      out[2 * i] = number[blocks[i] & 15];
      out[2 * i + 1] = number[blocks[i] >> 4];
    }
  }
}

void expand_plain(const uint8_t* blocks, const uint8_t* scales, int64_t groups, float* out) {
  for (int64_t g = 0; g < groups; ++g, blocks += BYTES, out += GROUP) {
    const uint16_t* number = TABLES.number[scales[g]];
    for (int64_t i = 0; i < BYTES; ++i) {
      out[2 * i] = widened(number[blocks[i] & 15]);
      out[2 * i + 1] = widened(number[blocks[i] >> 4]);
    }
  }
}

#ifdef GLASSFORMER_X86

// One group as four times eight bfloat16 numbers, in order.
AVX2 inline void group_avx2(const uint8_t* block, uint8_t scale, __m128i out[4]) {
  const __m128i lower = _mm_load_si128(reinterpret_cast<const __m128i*>(TABLES.half[scale][0]));
  const __m128i upper = _mm_load_si128(reinterpret_cast<const __m128i*>(TABLES.half[scale][1]));
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, nibble), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
  const __m128i first = _mm_unpacklo_epi8(low, high), second = _mm_unpackhi_epi8(low, high);
  const __m128i first_lower = _mm_shuffle_epi8(lower, first), first_upper = _mm_shuffle_epi8(upper, first);
  const __m128i second_lower = _mm_shuffle_epi8(lower, second), second_upper = _mm_shuffle_epi8(upper, second);
  out[0] = _mm_unpacklo_epi8(first_lower, first_upper);
  out[1] = _mm_unpackhi_epi8(first_lower, first_upper);
  out[2] = _mm_unpacklo_epi8(second_lower, second_upper);
  out[3] = _mm_unpackhi_epi8(second_lower, second_upper);
}

AVX2 inline __m256 widened_avx2(__m128i numbers) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(numbers), 16));
}

AVX2 void expand_avx2(const uint8_t* blocks, const uint8_t* scales, int64_t groups, uint16_t* out) {
  for (int64_t g = 0; g < groups; ++g) {
    __m128i numbers[4];
    group_avx2(blocks + g * BYTES, scales[g], numbers);
    for (int i = 0; i < 4; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + g * GROUP + 8 * i), numbers[i]);
  }
}

AVX2 void expand_avx2(const uint8_t* blocks, const uint8_t* scales, int64_t groups, float* out) {
  for (int64_t g = 0; g < groups; ++g) {
    __m128i numbers[4];
    group_avx2(blocks + g * BYTES, scales[g], numbers);
    for (int i = 0; i < 4; ++i) _mm256_storeu_ps(out + g * GROUP + 8 * i, widened_avx2(numbers[i]));
  }
}

// One group as 32 bfloat16 numbers, in order. Of each index the permutation reads five bits, and the fifth, which is
// not masked away, chooses between two copies of the same row.
AVX512 inline __m512i group_avx512(const uint8_t* block, uint8_t scale) {
  const __m256i row = _mm256_load_si256(reinterpret_cast<const __m256i*>(TABLES.number[scale]));
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block)));
  const __m512i index = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
  return _mm512_permutexvar_epi16(index, _mm512_broadcast_i64x4(row));
}

AVX512 void expand_avx512(const uint8_t* blocks, const uint8_t* scales, int64_t groups, uint16_t* out) {
  for (int64_t g = 0; g < groups; ++g) {
    _mm512_storeu_si512(out + g * GROUP, group_avx512(blocks + g * BYTES, scales[g]));
  }
}

AVX512 void expand_avx512(const uint8_t* blocks, const uint8_t* scales, int64_t groups, float* out) {
  for (int64_t g = 0; g < groups; ++g) {
    const __m512i numbers = group_avx512(blocks + g * BYTES, scales[g]);
    const __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(numbers));
    const __m512i second = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(numbers, 1));
    _mm512_storeu_si512(out + g * GROUP, _mm512_slli_epi32(first, 16));
    _mm512_storeu_si512(out + g * GROUP + 16, _mm512_slli_epi32(second, 16));
  }
}

#endif

template <typename Number>
void expand(const uint8_t* blocks, const uint8_t* scales, int64_t groups, Number* out, int level) {
#ifdef GLASSFORMER_X86
  if (level >= WITH_AVX512) return expand_avx512(blocks, scales, groups, out);
  if (level >= WITH_AVX2) return expand_avx2(blocks, scales, groups, out);
#endif
  expand_plain(blocks, scales, groups, out);
}

// ---- products: ROWS expanded rows of weights with TOKENS tokens, out[token * stride + row] -------------------------

struct Plain {
  using Number = float;
  static constexpr int ROWS = 1, TOKENS = 1;
  template <int R, int T>
  static void tile(const float* weights, const float* x, int64_t width, float* out, int64_t) {
    float sums[16] = {};
    for (int64_t k = 0; k < width; k += 16) {
      for (int i = 0; i < 16; ++i) sums[i] += weights[k + i] * x[k + i];
    }
    float sum = 0;
    for (int i = 0; i < 16; ++i) sum += sums[i];
    *out = sum;
  }
};

#ifdef GLASSFORMER_X86

AVX2 inline float sum_avx2(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
}

struct Avx2 {
  using Number = float;
  static constexpr int ROWS = 4, TOKENS = 2;
  template <int R, int T>
  AVX2 static void tile(const float* weights, const float* x, int64_t width, float* out, int64_t stride) {
    __m256 sums[R][T];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) sums[r][t] = _mm256_setzero_ps();
    for (int64_t k = 0; k < width; k += 8) {
      __m256 tokens[T];
      for (int t = 0; t < T; ++t) tokens[t] = _mm256_loadu_ps(x + t * width + k);
      for (int r = 0; r < R; ++r) {
        const __m256 row = _mm256_loadu_ps(weights + r * width + k);
        for (int t = 0; t < T; ++t) sums[r][t] = _mm256_fmadd_ps(row, tokens[t], sums[r][t]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) out[t * stride + r] = sum_avx2(sums[r][t]);
  }
};

struct Avx512 {
  using Number = float;
  static constexpr int ROWS = 4, TOKENS = 4;
  template <int R, int T>
  AVX512 static void tile(const float* weights, const float* x, int64_t width, float* out, int64_t stride) {
    __m512 sums[R][T];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) sums[r][t] = _mm512_setzero_ps();
    for (int64_t k = 0; k < width; k += 16) {
      __m512 tokens[T];
      for (int t = 0; t < T; ++t) tokens[t] = _mm512_loadu_ps(x + t * width + k);
      for (int r = 0; r < R; ++r) {
        const __m512 row = _mm512_loadu_ps(weights + r * width + k);
        for (int t = 0; t < T; ++t) sums[r][t] = _mm512_fmadd_ps(row, tokens[t], sums[r][t]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) out[t * stride + r] = _mm512_reduce_add_ps(sums[r][t]);
  }
};

struct Avx512Bf16 {
  using Number = uint16_t;
  static constexpr int ROWS = 4, TOKENS = 4;
  template <int R, int T>
  AVX512BF16 static void tile(const uint16_t* weights, const uint16_t* x, int64_t width, float* out, int64_t stride) {
    __m512 sums[R][T];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) sums[r][t] = _mm512_setzero_ps();
    for (int64_t k = 0; k < width; k += 32) {
      __m512i tokens[T];
      for (int t = 0; t < T; ++t) tokens[t] = _mm512_loadu_si512(x + t * width + k);
      for (int r = 0; r < R; ++r) {
        const __m512i row = _mm512_loadu_si512(weights + r * width + k);
        for (int t = 0; t < T; ++t) sums[r][t] = _mm512_dpbf16_ps(sums[r][t], (__m512bh)row, (__m512bh)tokens[t]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) out[t * stride + r] = _mm512_reduce_add_ps(sums[r][t]);
  }
};

#endif

template <typename Kernel, int R>
void tokens_of(const typename Kernel::Number* weights, const typename Kernel::Number* x, int64_t width, int64_t tokens,
               float* out, int64_t stride) {
  int64_t t = 0;
  for (; t + Kernel::TOKENS <= tokens; t += Kernel::TOKENS)
    Kernel::template tile<R, Kernel::TOKENS>(weights, x + t * width, width, out + t * stride, stride);
  for (; t < tokens; ++t) Kernel::template tile<R, 1>(weights, x + t * width, width, out + t * stride, stride);
}

template <typename Kernel>
void multiply(const uint8_t* blocks, const uint8_t* scales, const typename Kernel::Number* x, float* out, int64_t rows,
              int64_t groups, int64_t tokens, int level, int threads) {
  const int64_t width = groups * GROUP;
  const int64_t tile = Kernel::ROWS * (tokens > 16 ? 8 : 1);
  const int64_t tiles = (rows + tile - 1) / tile;
#pragma omp parallel num_threads(threads)
  {
    std::vector<typename Kernel::Number> weights(tile * width);
#pragma omp for schedule(static)
    for (int64_t each = 0; each < tiles; ++each) {
      const int64_t first = each * tile, count = rows - first < tile ? rows - first : tile;
      expand(blocks + first * groups * BYTES, scales + first * groups, count * groups, weights.data(), level);
      for (int64_t t = 0; t < tokens; t += Kernel::TOKENS) {
        const int64_t some = tokens - t < Kernel::TOKENS ? tokens - t : Kernel::TOKENS;
        int64_t r = 0;
        for (; r + Kernel::ROWS <= count; r += Kernel::ROWS)
          tokens_of<Kernel, Kernel::ROWS>(weights.data() + r * width, x + t * width, width, some,
                                          out + t * rows + first + r, rows);
        for (; r < count; ++r)
          tokens_of<Kernel, 1>(weights.data() + r * width, x + t * width, width, some, out + t * rows + first + r, rows);
      }
    }
  }
}

template <typename Number>
void expand_all(const uint8_t* blocks, const uint8_t* scales, int64_t groups, Number* out, int level, int threads) {
  constexpr int64_t CHUNK = 1024;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t first = 0; first < groups; first += CHUNK) {
    const int64_t count = groups - first < CHUNK ? groups - first : CHUNK;
    expand(blocks + first * BYTES, scales + first, count, out + first * GROUP, level);
  }
}

}  // namespace

extern "C" {

void glassformer_mxfp4_expand_bfloat16(const uint8_t* blocks, const uint8_t* scales, uint16_t* out, int64_t groups,
                                       int level, int threads) {
  expand_all(blocks, scales, groups, out, level, threads);
}

void glassformer_mxfp4_expand_float32(const uint8_t* blocks, const uint8_t* scales, float* out, int64_t groups,
                                      int level, int threads) {
  expand_all(blocks, scales, groups, out, level, threads);
}

// out [tokens, rows] = x [tokens, 32 groups] times the transposed weights [rows, 32 groups]. Only level 3 takes bfloat16.
void glassformer_mxfp4_multiply_bfloat16(const uint8_t* blocks, const uint8_t* scales, const uint16_t* x, float* out,
                                         int64_t rows, int64_t groups, int64_t tokens, int level, int threads) {
#ifdef GLASSFORMER_X86
  multiply<Avx512Bf16>(blocks, scales, x, out, rows, groups, tokens, level, threads);
#endif
}

void glassformer_mxfp4_multiply_float32(const uint8_t* blocks, const uint8_t* scales, const float* x, float* out,
                                        int64_t rows, int64_t groups, int64_t tokens, int level, int threads) {
#ifdef GLASSFORMER_X86
  if (level >= WITH_AVX512) return multiply<Avx512>(blocks, scales, x, out, rows, groups, tokens, level, threads);
  if (level >= WITH_AVX2) return multiply<Avx2>(blocks, scales, x, out, rows, groups, tokens, level, threads);
#endif
  multiply<Plain>(blocks, scales, x, out, rows, groups, tokens, level, threads);
}
}
#endif
