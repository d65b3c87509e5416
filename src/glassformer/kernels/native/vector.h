// Vectors of float32 as wide as the registers of LEVEL, of compiler extensions alone, and what is computed with them.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "native.h"

#ifndef VECTOR_BYTES  // given in tests: vectors may be wider than registers
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#endif

// Intrinsics stand only where GCC makes several instructions of one. Beside each is the same in general.
#if VECTOR_BYTES == 64 && defined(__AVX512BW__)
#define WITH_AVX512 1
#elif VECTOR_BYTES == 32 && defined(__AVX2__)
#define WITH_AVX2 1
#endif

namespace {

constexpr int64_t WIDTH = VECTOR_BYTES / 4;
typedef float Floats __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t Bits __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(VECTOR_BYTES / 2)));

struct BFloat16 {
  uint16_t bits;
};

inline Ints lanes() {  // 0, 1, 2, ...
  Ints all;
  for (int i = 0; i < WIDTH; ++i) all[i] = i;
  return all;
}

inline Floats filled(float value) { return value - Floats{}; }

inline Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline Floats load(const BFloat16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
#if WITH_AVX512
  const Bits bits = (Bits)_mm512_cvtepu16_epi32((__m256i)halves);
#elif WITH_AVX2
  const Bits bits = (Bits)_mm256_cvtepu16_epi32((__m128i)halves);
#else
  const Bits bits = __builtin_convertvector(halves, Bits);
#endif
  return (Floats)(bits << 16);
}

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

// Rounded to the nearest, ties to even; NaN stays NaN.
inline void store(BFloat16* to, Floats value) {
  Bits bits = (Bits)value;
  Bits rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  rounded = value == value ? rounded : Bits{} + 0x7fc0;
#if WITH_AVX2
  const __m256i packed = _mm256_packus_epi32((__m256i)rounded, (__m256i)rounded);
  const __m128i halves = _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  const Halves halves = __builtin_convertvector(rounded, Halves);
#endif
  std::memcpy(to, &halves, sizeof halves);
}

// The first `count` numbers, 1 .. WIDTH; the others are 0.
template <class T>
inline Floats load(const T* from, int64_t count) {
  if (count == WIDTH) return load(from);
  T part[WIDTH] = {};
  std::memcpy(part, from, count * sizeof(T));
  return load(part);
}

template <class T>
inline void store(T* to, Floats value, int64_t count) {
  if (count == WIDTH) return store(to, value);
  T part[WIDTH];
  store(part, value);
  std::memcpy(to, part, count * sizeof(T));
}

// Halves are added until one number is left.
inline float sum(Floats value) {
#if WITH_AVX512
  const __m256 upper = _mm512_extractf32x8_ps((__m512)value, 1), half = _mm512_castps512_ps256((__m512)value) + upper;
#elif WITH_AVX2
  const __m256 half = (__m256)value;
#endif
#if WITH_AVX512 || WITH_AVX2
  const __m128 four = _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
  const __m128 two = four + _mm_movehl_ps(four, four);
  return two[0] + two[1];
#else
  float parts[WIDTH];
  store(parts, value);
  for (int64_t half = WIDTH / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) parts[i] += parts[i + half];
  return parts[0];
#endif
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }  // b where a is NaN

inline float largest(Floats value) {
  float most = value[0];
  for (int64_t i = 1; i < WIDTH; ++i) most = value[i] > most ? value[i] : most;
  return most;
}

// e^r for |r| <= ln 2 / 2, to about one unit in the last place.
inline Floats polynomial(Floats r) {
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + r + 1.0f;
}

// e^x to about one unit in the last place: x = n ln 2 + r, a polynomial in r, and 2^n in two factors, because n
// may lie outside the exponents of normal numbers.
inline Floats exponential(Floats x) {
  x = x < -105.0f ? filled(-105.0f) : x;
  x = x > 89.0f ? filled(89.0f) : x;
  const Floats shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: what is below one is rounded away
  const Floats n = shifted - 12582912.0f;
  Floats r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  const Floats p = polynomial(r);
  const Ints whole = (Ints)shifted - 0x4b400000;
  const Ints first = whole >> 1;
  return p * (Floats)((first + 127) << 23) * (Floats)((whole - first + 127) << 23);
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

// f(first, count) for every WIDTH of `size` numbers, and for those that are left.
template <class F>
inline void for_vectors(int64_t size, const F& f) {
  int64_t i = 0;
  for (; i + WIDTH <= size; i += WIDTH) f(i, WIDTH);
  if (i < size) f(i, size - i);
}

// f(first, last) for parts of `size` numbers, on several threads where they pay.
template <class F>
inline void in_parallel(int64_t size, int64_t threads, const F& f) {
  constexpr int64_t PART = 1 << 13;
  const int64_t parts = (size + PART - 1) / PART;
#pragma omp parallel for num_threads(threads) schedule(static) if (parts > 3)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = part * PART, last = first + PART < size ? first + PART : size;
    f(first, last);
  }
}

}  // namespace
