// GGUF's blocks of packed weights, which blocks.py describes: how their codes, scales and offsets are read.
#pragma once

#include "rows.h"

namespace {

inline float half(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  float size = as_float(static_cast<uint32_t>(bits & 0x7fff) << 13) * 0x1p112f;
  if ((bits & 0x7c00) == 0x7c00) size = as_float(0x7f800000u | (bits & 0x3ffu) << 13);
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

// value(code) = scale * code + offset. No offset is -0, which leaves every number what it is, -0 too.
constexpr float NO_OFFSET = -0.0f;
struct Value {
  float scale, offset;
  INLINE Floats operator()(Floats codes) const { return scale * codes + offset; }
};

// What a block hands its codes to, 16 at a time with their place in the block: this calls use(place, values) for vectors.
template <typename Use>
struct Values {
  const Use& use;

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
  // Of the lower halves of 16 bytes, at `at`, and of the upper ones, `apart` later, plus LEAST.
  template <int8_t LEAST = 0>
  INLINE void put_halves(Codes both, int64_t at, int64_t apart, Value lower, Value upper) const {
#if WITH_AVX512  // the values of all 16 codes are looked up, by four bits of an index
    const Floats all = Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + LEAST;
    const __m512i codes = _mm512_cvtepu8_epi32((__m128i)both);
    use(at, (Floats)_mm512_permutexvar_ps(codes, (__m512)lower(all)));
    use(at + apart, (Floats)_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), (__m512)upper(all)));
#else
    put<(LEAST < 0)>((both & 15) + LEAST, at, lower);
    put<(LEAST < 0)>((both >> 4) + LEAST, at + apart, upper);
#endif
  }
};

// 16 in the place of each of the 16 lowest bits.
INLINE inline Codes fifth_bits(uint32_t bits) {
#if WITH_AVX512
  return (Codes)_mm_maskz_set1_epi8(static_cast<__mmask16>(bits), 16);
#else
  const Codes each = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint64_t copied[2] = {(bits & 255) * 0x0101010101010101u, (bits >> 8 & 255) * 0x0101010101010101u};
  return (Codes)((vector_at<Codes>(copied) & each) != 0) & 16;
#endif
}

// A format of blocks has BLOCK weights in ROOM bytes; each GROUP of them has a scale and, if it has OFFSETS, an offset.
// expand() hands the codes of a block to `use`.

// The lower halves of 16 bytes are the first 16 weights.
template <int BYTES, int8_t LEAST, bool OFFSET, bool FIVE>
struct Simple {  // weight = d * (code + LEAST), or + m
  static constexpr int64_t BLOCK = 32, GROUP = 32, ROOM = BYTES;
  static constexpr bool OFFSETS = OFFSET;
  template <typename Use>
  INLINE static void expand(const uint8_t* b, const Use& use) {
    const uint8_t* high = b + (OFFSET ? 4 : 2);
    const Codes both = codes_at(high + (FIVE ? 4 : 0));
    const Value value = {half(b), OFFSET ? half(b + 2) : NO_OFFSET};
    if (!FIVE) return use.template put_halves<LEAST>(both, 0, 16, value, value);
    const uint32_t bits = four_bytes(high);
    use.template put<!OFFSET>(((both & 15) | fifth_bits(bits)) + LEAST, 0, value);
    use.template put<!OFFSET>((both >> 4 | fifth_bits(bits >> 16)) + LEAST, 16, value);
  }
};

using Q4_0 = Simple<18, -8, false, false>;
using Q4_1 = Simple<20, 0, true, false>;
using Q5_0 = Simple<22, -16, false, true>;
using Q5_1 = Simple<24, 0, true, true>;

struct Q8_0 {
  static constexpr int64_t BLOCK = 32, GROUP = 32, ROOM = 34;
  static constexpr bool OFFSETS = false;
  template <typename Use>
  INLINE static void expand(const uint8_t* b, const Use& use) {
    const Value value = {half(b), NO_OFFSET};
    use.template put<true>(codes_at(b + 2), 0, value);
    use.template put<true>(codes_at(b + 18), 16, value);
  }
};

struct Q2_K {
  static constexpr int64_t BLOCK = 256, GROUP = 16, ROOM = 84;
  static constexpr bool OFFSETS = true;
  template <typename Use>
  INLINE static void expand(const uint8_t* b, const Use& use) {
    const float d = half(b + 80), m = half(b + 82);
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const Codes codes = codes_at(b + 16 + group / 8 * 32 + group % 2 * 16) >> group / 2 % 4 * 2 & 3;
      const float scale = d * static_cast<float>(b[group] & 15), offset = m * static_cast<float>(b[group] >> 4);
      use.put(codes, 16 * group, {scale, -offset});
    }
  }
};

struct Q3_K {
  static constexpr int64_t BLOCK = 256, GROUP = 16, ROOM = 110;
  static constexpr bool OFFSETS = false;
  template <typename Use>
  INLINE static void expand(const uint8_t* b, const Use& use) {
    const float d = half(b + 108);
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const Codes high = codes_at(b + group % 2 * 16) >> group / 2 & 1;
      const Codes codes = codes_at(b + 32 + group / 8 * 32 + group % 2 * 16) >> group / 2 % 4 * 2 & 3;
      const int low = b[96 + group % 8] >> group / 8 * 4 & 15, upper = b[104 + group % 4] >> group / 4 * 2 & 3;
      const float scale = d * static_cast<float>((low | upper << 4) - 32);
      use.template put<true>((codes | high << 2) - 4, 16 * group, {scale, NO_OFFSET});
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
  static constexpr int64_t BLOCK = 256, GROUP = 32, ROOM = FIVE ? 176 : 144;
  static constexpr bool OFFSETS = true;
  template <typename Use>
  INLINE static void expand(const uint8_t* b, const Use& use) {
    const SixBits six(b);
#pragma GCC unroll 4
    for (int pair = 0; pair < 8; pair += 2) {
      const Value lower = {six.scales[pair], -six.offsets[pair]}, upper = {six.scales[pair + 1], -six.offsets[pair + 1]};
#pragma GCC unroll 2
      for (int side = 0; side < 32; side += 16) {
        const Codes both = codes_at(b + (FIVE ? 48 : 16) + 16 * pair + side);
        const int64_t at = 32 * pair + side;
        if (!FIVE) {
          use.put_halves(both, at, 32, lower, upper);
          continue;
        }
        const Codes high = codes_at(b + 16 + side) >> pair;
        use.put((both & 15) | (high & 1) << 4, at, lower);
        use.put(both >> 4 | (high & 2) << 3, at + 32, upper);
      }
    }
  }
};

using Q4_K = Superblock<false>;
using Q5_K = Superblock<true>;

struct Q6_K {
  static constexpr int64_t BLOCK = 256, GROUP = 16, ROOM = 210;
  static constexpr bool OFFSETS = false;
  template <typename Use>
  INLINE static void expand(const uint8_t* b, const Use& use) {
    const float d = half(b + 208);
    const int8_t* scales = reinterpret_cast<const int8_t*>(b + 192);
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const int quarter = group / 2 % 4, side = group % 2 * 16;
      const Codes low = codes_at(b + group / 8 * 64 + quarter % 2 * 32 + side) >> quarter / 2 * 4 & 15;
      const Codes high = codes_at(b + 128 + group / 8 * 32 + side) >> 2 * quarter & 3;
      const float scale = d * static_cast<float>(scales[group]);
      use.template put<true>((low | high << 4) - 32, 16 * group, {scale, NO_OFFSET});
    }
  }
};

alignas(16) constexpr int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
alignas(16) constexpr int8_t FP4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Of 16 bytes those with the indices given, which are below 16.
INLINE inline Codes looked_up(const int8_t* table, Codes indices) {
#if WITH_AVX512 || WITH_AVX2
  return (Codes)_mm_shuffle_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(table)), (__m128i)indices);
#else
  Codes found;
  for (int i = 0; i < 16; ++i) found[i] = table[indices[i]];
  return found;
#endif
}

template <typename Use>
INLINE inline void from_table(const int8_t* table, const uint8_t* codes, float scale, int64_t at, const Use& use) {
  const Codes both = codes_at(codes);
  use.template put<true>(looked_up(table, both & 15), at, {scale, NO_OFFSET});
  use.template put<true>(looked_up(table, both >> 4), at + 16, {scale, NO_OFFSET});
}

struct IQ4_NL {
  static constexpr int64_t BLOCK = 32, GROUP = 32, ROOM = 18;
  static constexpr bool OFFSETS = false;
  template <typename Use>
  INLINE static void expand(const uint8_t* b, const Use& use) { from_table(IQ4, b + 2, half(b), 0, use); }
};

struct IQ4_XS {
  static constexpr int64_t BLOCK = 256, GROUP = 32, ROOM = 136;
  static constexpr bool OFFSETS = false;
  template <typename Use>
  INLINE static void expand(const uint8_t* b, const Use& use) {
    const float d = half(b);
    for (int group = 0; group < 8; ++group) {
      const int low = b[4 + group / 2] >> group % 2 * 4 & 15, high = b[2 + group / 4] >> group % 4 * 2 & 3;
      from_table(IQ4, b + 8 + 16 * group, d * static_cast<float>((low | high << 4) - 32), 32 * group, use);
    }
  }
};

struct MxFp4 {
  static constexpr int64_t BLOCK = 32, GROUP = 32, ROOM = 17;
  static constexpr bool OFFSETS = false;
  template <typename Use>
  INLINE static void expand(const uint8_t* b, const Use& use) {
    from_table(FP4, b + 1, as_float(b[0] < 2 ? 0x200000u << b[0] : (b[0] - 1u) << 23), 0, use);
  }
};

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
