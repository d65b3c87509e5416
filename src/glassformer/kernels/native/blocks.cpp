// GGUF's blocks of packed weights (blocks.py describes them): their values, and products of a few tokens with their rows.
//
// A product expands some of a row's blocks in the caches and multiplies them by all tokens, in float32: activations are
// not rounded. Of an output the products are added in one order for every number of tokens, rows and threads.
#include "rows.h"

namespace {

constexpr int64_t CHUNK = 256;  // weights that are expanded at a time, a multiple of every block

inline float half(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  const float size = as_float(static_cast<uint32_t>(bits & 0x7fff) << 13) * 0x1p112f;
  return bits & 0x8000 ? -size : size;
#endif
}

inline uint32_t four_bytes(const uint8_t* from) {
  uint32_t bits;
  std::memcpy(&bits, from, 4);
  return bits;
}

typedef uint8_t Codes __attribute__((vector_size(16)));

INLINE inline Codes codes_at(const uint8_t* from) { return vector_at<Codes>(from); }

// out = value(code) of 16 codes, as vectors of float
template <typename F>
INLINE inline void put(Codes codes, float* out, const F& value) {
#if WITH_AVX512
  store(out, value((Floats)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32((__m128i)codes))));
#elif WITH_AVX2
  const __m128i upper = _mm_unpackhi_epi64((__m128i)codes, (__m128i)codes);
  store(out, value((Floats)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32((__m128i)codes))));
  store(out + 8, value((Floats)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(upper))));
#else
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(codes[i]);
  for (int i = 0; i < 16; i += WIDTH) store(out + i, value(load(out + i)));
#endif
}

// 16 in the place of each of the 16 lowest bits.
INLINE inline Codes fifth_bits(uint32_t bits) {
  const Codes each = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint64_t copied[2] = {(bits & 255) * 0x0101010101010101u, (bits >> 8 & 255) * 0x0101010101010101u};
  return (Codes)((vector_at<Codes>(copied) & each) != 0) & 16;
}

// The lower halves of 16 bytes are the first 16 weights.
template <int BYTES, int LEAST, bool OFFSET, bool FIVE>
struct Simple {  // weight = d * (code + LEAST), or + m
  static constexpr int64_t BLOCK = 32, ROOM = BYTES;
  INLINE static void expand(const uint8_t* b, float* out) {
    const float d = half(b), m = OFFSET ? half(b + 2) : 0.0f;
    const uint8_t* high = b + (OFFSET ? 4 : 2);
    const Codes both = codes_at(high + (FIVE ? 4 : 0));
    Codes first = both & 15, second = both >> 4;
    if (FIVE) {
      const uint32_t bits = four_bytes(high);
      first |= fifth_bits(bits), second |= fifth_bits(bits >> 16);
    }
    const auto value = [&](Floats q) INLINE { return OFFSET ? d * q + m : d * (q + static_cast<float>(LEAST)); };
    put(first, out, value);
    put(second, out + 16, value);
  }
};

using Q4_0 = Simple<18, -8, false, false>;
using Q4_1 = Simple<20, 0, true, false>;
using Q5_0 = Simple<22, -16, false, true>;
using Q5_1 = Simple<24, 0, true, true>;

struct Q8_0 {
  static constexpr int64_t BLOCK = 32, ROOM = 34;
  INLINE static void expand(const uint8_t* b, float* out) {
    const float d = half(b);
    const int8_t* q = reinterpret_cast<const int8_t*>(b + 2);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i]);
  }
};

struct Q2_K {
  static constexpr int64_t BLOCK = 256, ROOM = 84;
  INLINE static void expand(const uint8_t* b, float* out) {
    const float d = half(b + 80), m = half(b + 82);
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const Codes codes = codes_at(b + 16 + group / 8 * 32 + group % 2 * 16) >> group / 2 % 4 * 2 & 3;
      const float scale = d * static_cast<float>(b[group] & 15), offset = m * static_cast<float>(b[group] >> 4);
      put(codes, out + 16 * group, [&](Floats q) INLINE { return scale * q - offset; });
    }
  }
};

struct Q3_K {
  static constexpr int64_t BLOCK = 256, ROOM = 110;
  INLINE static void expand(const uint8_t* b, float* out) {
    const float d = half(b + 108);
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const Codes high = codes_at(b + group % 2 * 16) >> group / 2 & 1;
      const Codes codes = codes_at(b + 32 + group / 8 * 32 + group % 2 * 16) >> group / 2 % 4 * 2 & 3;
      const int low = b[96 + group % 8] >> group / 8 * 4 & 15, upper = b[104 + group % 4] >> group / 4 * 2 & 3;
      const float scale = d * static_cast<float>((low | upper << 4) - 32);
      put(codes | high << 2, out + 16 * group, [&](Floats q) INLINE { return scale * (q - 4.0f); });
    }
  }
};

// The scales and offsets of the 8 groups of Q4_K and Q5_K, of 6 bits each, in 12 bytes.
struct SixBits {
  float scales[8], offsets[8];
  INLINE explicit SixBits(const uint8_t* b) {
    const uint8_t* s = b + 4;
    const float d = half(b), m = half(b + 2);
    for (int j = 0; j < 4; ++j) {
      scales[j] = d * static_cast<float>(s[j] & 63), offsets[j] = m * static_cast<float>(s[j + 4] & 63);
      scales[j + 4] = d * static_cast<float>((s[j + 8] & 15) | s[j] >> 6 << 4);
      offsets[j + 4] = m * static_cast<float>(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
    }
  }
};

template <bool FIVE>
struct Superblock {
  static constexpr int64_t BLOCK = 256, ROOM = FIVE ? 176 : 144;
  INLINE static void expand(const uint8_t* b, float* out) {
    const SixBits six(b);
#pragma GCC unroll 8
    for (int group = 0; group < 8; ++group) {
      const float scale = six.scales[group], offset = six.offsets[group];
      const auto value = [&](Floats q) INLINE { return scale * q - offset; };
#pragma GCC unroll 2
      for (int side = 0; side < 32; side += 16) {
        Codes codes = codes_at(b + (FIVE ? 48 : 16) + group / 2 * 32 + side) >> group % 2 * 4 & 15;
        if (FIVE) codes |= (codes_at(b + 16 + side) >> group & 1) << 4;
        put(codes, out + 32 * group + side, value);
      }
    }
  }
};

using Q4_K = Superblock<false>;
using Q5_K = Superblock<true>;

struct Q6_K {
  static constexpr int64_t BLOCK = 256, ROOM = 210;
  INLINE static void expand(const uint8_t* b, float* out) {
    const float d = half(b + 208);
    const int8_t* scales = reinterpret_cast<const int8_t*>(b + 192);
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const int quarter = group / 2 % 4, side = group % 2 * 16;
      const Codes low = codes_at(b + group / 8 * 64 + quarter % 2 * 32 + side) >> quarter / 2 * 4 & 15;
      const Codes high = codes_at(b + 128 + group / 8 * 32 + side) >> 2 * quarter & 3;
      const float scale = d * static_cast<float>(scales[group]);
      put(low | high << 4, out + 16 * group, [&](Floats q) INLINE { return scale * (q - 32.0f); });
    }
  }
};

constexpr float IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float FP4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

INLINE inline void from_table(const float* table, const uint8_t* codes, float scale, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * table[codes[i] & 15];
    out[i + 16] = scale * table[codes[i] >> 4];
  }
}

struct IQ4_NL {
  static constexpr int64_t BLOCK = 32, ROOM = 18;
  INLINE static void expand(const uint8_t* b, float* out) { from_table(IQ4, b + 2, half(b), out); }
};

struct IQ4_XS {
  static constexpr int64_t BLOCK = 256, ROOM = 136;
  INLINE static void expand(const uint8_t* b, float* out) {
    const float d = half(b);
    for (int group = 0; group < 8; ++group) {
      const int low = b[4 + group / 2] >> group % 2 * 4 & 15, high = b[2 + group / 4] >> group % 4 * 2 & 3;
      from_table(IQ4, b + 8 + 16 * group, d * static_cast<float>((low | high << 4) - 32), out + 32 * group);
    }
  }
};

struct MxFp4 {
  static constexpr int64_t BLOCK = 32, ROOM = 17;
  INLINE static void expand(const uint8_t* b, float* out) {
    from_table(FP4, b + 1, as_float(b[0] < 2 ? 0x200000u << b[0] : (b[0] - 1u) << 23), out);
  }
};

template <typename Kind, int T>
inline void tile(const uint8_t* row, const float* x, int64_t width, float* out, int64_t stride) {
  constexpr int64_t PARTS = 32 / WIDTH;
  alignas(64) float weights[CHUNK];
  Floats sums[T][PARTS] = {};
  for (int64_t k = 0; k < width; k += CHUNK) {
    const int64_t some = width - k < CHUNK ? width - k : CHUNK;
    for (int64_t i = 0; i < some; i += Kind::BLOCK, row += Kind::ROOM) Kind::expand(row, weights + i);
    for (int64_t i = 0; i < some; i += 32)
#pragma GCC unroll 8
      for (int64_t part = 0; part < PARTS; ++part) {
        const Floats weight = load(weights + i + part * WIDTH);
        for (int t = 0; t < T; ++t) sums[t][part] += weight * load(x + t * width + k + i + part * WIDTH);
      }
  }
  for (int t = 0; t < T; ++t) {
    for (int64_t part = 1; part < PARTS; ++part) sums[t][0] += sums[t][part];
    out[t * stride] = sum(sums[t][0]);
  }
}

template <typename Kind, int T>
inline void tokens_of(const uint8_t* row, const float* x, int64_t width, int64_t count, float* out, int64_t stride) {
  int64_t t = 0;
  for (; t + T <= count; t += T) tile<Kind, T>(row, x + t * width, width, out + t * stride, stride);
  if constexpr (T > 1)
    if (t < count) tokens_of<Kind, T / 2>(row, x + t * width, width, count - t, out + t * stride, stride);
}

// f(Kind()) for the format, by its number.
template <typename F>
inline void with_kind(int64_t format, const F& f) {
  switch (format - BLOCKS) {
    case 0: return f(Q4_0());
    case 1: return f(Q4_1());
    case 2: return f(Q5_0());
    case 3: return f(Q5_1());
    case 4: return f(Q8_0());
    case 5: return f(Q2_K());
    case 6: return f(Q3_K());
    case 7: return f(Q4_K());
    case 8: return f(Q5_K());
    case 9: return f(Q6_K());
    case 10: return f(IQ4_NL());
    case 11: return f(IQ4_XS());
    default: return f(MxFp4());
  }
}

}  // namespace

// out[t * stride + r] = row r times token t, for the rows from first to last
EXPORT(block_rows)
(int64_t format, const void* blocks, const float* x, int64_t width, int64_t count, int64_t first, int64_t last,
 float* out, int64_t stride) {
  with_kind(format, [&](auto kind) {
    using Kind = decltype(kind);
    const int64_t bytes = width / Kind::BLOCK * Kind::ROOM;
    const uint8_t* row = static_cast<const uint8_t*>(blocks);
    for (int64_t r = first; r < last; ++r) tokens_of<Kind, 4>(row + r * bytes, x, width, count, out + r, stride);
  });
}

// The values of the rows from first to last: out [last - first, width].
EXPORT(expand_blocks)
(int64_t format, const void* blocks, float* out, int64_t first, int64_t last, int64_t width, int64_t threads) {
  with_kind(format, [&](auto kind) {
    using Kind = decltype(kind);
    const int64_t count = width / Kind::BLOCK;
    const uint8_t* from = static_cast<const uint8_t*>(blocks) + first * count * Kind::ROOM;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < last - first; ++r)
      for (int64_t i = 0; i < count; ++i)
        Kind::expand(from + (r * count + i) * Kind::ROOM, out + (r * count + i) * Kind::BLOCK);
  });
}
