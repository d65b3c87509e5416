// Products of many tokens with GGUF's blocks by matrix registers (AMX), where a processor has them.
//
// A register holds 16 tokens or 16 rows of bfloat16 numbers; the products of two are added to a third in float32. Codes
// are exact in bfloat16, and a number of float32 is the sum of three such numbers, so that each product is exact. The
// products of a group are added, then multiplied by its scale: activations are not rounded. A token's bits do not depend
// on the tokens beside it.
#include "formats.h"

#if defined(__AMX_BF16__)

namespace {

constexpr int64_t SIDE = 16, TERMS = 3;
constexpr int64_t PASS = 512;        // tokens that are prepared at a time
constexpr int64_t CACHED = 1 << 20;  // bytes of codes that a thread multiplies by them
constexpr int64_t BOTH = 2 * SIDE, SUMS = BOTH * BOTH;

// Registers 0 to 3 are sums, 4 and 5 tokens, 6 and 7 pairs of codes, of GROUP weights.
template <int GROUP>
struct Registers {
  struct Shapes {
    uint8_t palette = 1, rest[15] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 2 * GROUP, 2 * GROUP, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, GROUP / 2, GROUP / 2};
  };
  alignas(64) static constexpr Shapes SHAPES = {};
  Registers() { _tile_loadconfig(&SHAPES); }
  ~Registers() { _tile_release(); }
};

// GCC does not know that instructions with registers read memory, so what is written before them has to be ordered before.
// Of the shapes it takes 8 bytes for read: made in place, the others would be left out.
INLINE inline void written() { asm volatile("" ::: "memory"); }

// Prepare 16 tokens. For each group of weights: the three terms [term, token, weight] and the sums of the numbers.
template <int GROUP>
void prepare(const float* x, int64_t width, int64_t last, uint16_t* terms, float* sums) {
  for (int64_t k = 0; k < width; k += GROUP, terms += TERMS * SIDE * GROUP, sums += SIDE)
    for (int64_t t = 0; t < SIDE; ++t) {
      Floats all = {};
      for (int64_t i = 0; i < GROUP; i += WIDTH) {
        __m512 rest = (__m512)load(x + (t < last ? t : last) * width + k + i);
        all += (Floats)rest;
        for (int64_t term = 0; term < TERMS; ++term) {
          // The upper half. What tells NaN from infinity may be in the lower one; of neither anything is left.
          constexpr int INFINITE_OR_NAN = 0x99;
          const __mmask16 nan = _mm512_cmp_ps_mask(rest, rest, _CMP_UNORD_Q);
          const __mmask16 finite = _knot_mask16(_mm512_fpclass_ps_mask(rest, INFINITE_OR_NAN));
          const __m512i bits = _mm512_mask_or_epi32((__m512i)rest, nan, (__m512i)rest, _mm512_set1_epi32(0x400000));
          const __m256i upper = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
          std::memcpy(terms + (term * SIDE + t) * GROUP + i, &upper, sizeof upper);
          rest = _mm512_maskz_sub_ps(finite, rest, (__m512)_mm512_and_epi32(bits, _mm512_set1_epi32(0xffff0000)));
        }
      }
      sums[t] = sum(all);
    }
}

// Some rows unpacked by a thread, 16 after 16.
template <typename Kind>
struct Part {
  static constexpr int GROUP = Kind::GROUP;
  int64_t width;
  Buffer<BFloat16> codes;  // of 16 rows
  Buffer<uint32_t> pairs;
  Buffer<float> scales, offsets;

  Part(int64_t rows, int64_t width)
      : width(width),
        codes(SIDE * width),
        pairs(rows * width / 2),
        scales(rows * width / GROUP),
        offsets(rows * width / GROUP) {}
  bool is_allocated() const { return codes != nullptr && pairs != nullptr && scales != nullptr && offsets != nullptr; }

  bool unpack(const uint8_t* blocks, int64_t first, int64_t count) const {
    const __m512i next_row = (__m512i)(lanes() * static_cast<int32_t>(width / 2));
    float ones[Kind::BLOCK / GROUP], none[Kind::BLOCK / GROUP];  // scales and offsets with which values are the codes
    for (int64_t g = 0; g < Kind::BLOCK / GROUP; ++g) ones[g] = 1, none[g] = NO_OFFSET;
    for (int64_t r = 0; r < count; r += SIDE) {
      const int64_t end = r + SIDE < count ? r + SIDE : count;  // products of rows after it are not stored
      const auto unpack_row = [&](int64_t row, auto packed) {
        const int64_t i = row - first - r, start = r * width / GROUP + i;
        for (int64_t k = 0; k < width; k += Kind::BLOCK, packed.block += Kind::ROOM) {
          const auto narrow = [to = codes + i * width + k](int64_t at, Floats some) INLINE { store(to + at, some); };
          Kind::expand(packed.block, Groups<Kind::OFFSETS>{ones, none}, in_values(narrow));
        }
        for (int64_t g = 0; g < width / GROUP; ++g) {
          scales[start + g * SIDE] = packed.scales[g];
          if (Kind::OFFSETS) offsets[start + g * SIDE] = packed.offsets[g];
        }
      };
      if (for_rows<Kind>(blocks, width, first + r, first + end, unpack_row) != DONE) return false;
      for (int64_t i = 0; i < width / 2; ++i)
        _mm512_store_si512(pairs + r * width / 2 + i * SIDE, _mm512_i32gather_epi32(next_row, codes + 2 * i, 4));
    }
    return true;
  }

  // Sums of products of 32 tokens with the 32 rows from r on.
  void multiply(const uint16_t* terms, const float* token_sums, int64_t r, float* sums) const {
    const int64_t next_terms = TERMS * SIDE * width, next = SIDE * width / GROUP;
    const uint32_t *first_pairs = pairs + r * width / 2, *second_pairs = first_pairs + SIDE * width / 2;
    const float *scale = scales + r * width / GROUP, *offset = offsets + r * width / GROUP;
    alignas(64) float products[SUMS];
    std::memset(sums, 0, sizeof products);
    written();
    for (int64_t k = 0; k < width; k += GROUP) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      _tile_loadd(6, first_pairs, 64);
      _tile_loadd(7, second_pairs, 64);
#pragma GCC unroll 3
      for (int64_t term = 0; term < TERMS; ++term, terms += SIDE * GROUP) {
        _tile_loadd(4, terms, 2 * GROUP);
        _tile_loadd(5, terms + next_terms, 2 * GROUP);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, products, 64);
      _tile_stored(1, products + SIDE * SIDE, 64);
      _tile_stored(2, products + 2 * SIDE * SIDE, 64);
      _tile_stored(3, products + 3 * SIDE * SIDE, 64);
      written();
      for (int64_t tile = 0; tile < 4; ++tile) {
        const Floats scales = load(scale + tile % 2 * next), offsets = load(offset + tile % 2 * next);
        const float* of_token = token_sums + tile / 2 * next;
        for (int64_t t = 0; t < SIDE; ++t) {
          const int64_t at = (tile * SIDE + t) * SIDE;
          Floats sum = load(sums + at) + scales * load(products + at);
          if (Kind::OFFSETS) sum += offsets * of_token[t];
          store(sums + at, sum);
        }
      }
      first_pairs += GROUP / 2 * SIDE, second_pairs += GROUP / 2 * SIDE;
      scale += SIDE, offset += SIDE, token_sums += SIDE;
    }
  }
};

template <typename Kind>
int64_t multiply(const uint8_t* blocks, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens,
                 int64_t threads) {
  constexpr int GROUP = Kind::GROUP;
  const int64_t padded = (tokens < PASS ? tokens + BOTH - 1 : PASS) / BOTH * BOTH;
  const Buffer<uint16_t> terms(padded * width * TERMS);
  const Buffer<float> token_sums(padded * width / GROUP);
  const int64_t parts = (rows * width / threads * 2 / CACHED + 1) * threads, some = (rows / parts / BOTH + 1) * BOTH;
  int64_t result = terms == nullptr || token_sums == nullptr ? NO_MEMORY : DONE;
#pragma omp parallel num_threads(threads)
  {
    const Registers<GROUP> registers;
    const Part<Kind> part(some, width);
    alignas(64) float sums[SUMS];
    const auto require = [&](bool memory) {
      if (memory) return true;
#pragma omp atomic write
      result = NO_MEMORY;
      return false;
    };
    require(part.is_allocated());
#pragma omp barrier  // all threads know the result
    for (int64_t start = 0; result == DONE && start < tokens; start += PASS) {
      const int64_t end = start + PASS < tokens ? start + PASS : tokens;
#pragma omp for schedule(static)
      for (int64_t t = 0; t < (end - start + BOTH - 1) / BOTH * BOTH; t += SIDE) {
        const int64_t first = start + t < end ? start + t : end - 1;
        prepare<GROUP>(x + first * width, width, end - 1 - first, terms + t * width * TERMS, token_sums + t * width / GROUP);
      }
#pragma omp for schedule(dynamic)
      for (int64_t first = 0; first < rows; first += some) {
        const int64_t count = first + some < rows ? some : rows - first;
        if (!require(part.unpack(blocks, first, count))) continue;
        for (int64_t t = 0; start + t < end; t += BOTH)
          for (int64_t r = 0; r < count; r += BOTH) {
            part.multiply(terms + t * width * TERMS, token_sums + t * width / GROUP, r, sums);
            for (int64_t i = 0; i < BOTH && start + t + i < end; ++i)
              for (int64_t half = 0; half < BOTH && r + half < count; half += SIDE) {
                const Floats of_rows = load(sums + (i / SIDE * BOTH + half) * SIDE + i % SIDE * SIDE);
                const int64_t left = count - r - half;
                store(out + (start + t + i) * rows + first + r + half, of_rows, left < SIDE ? left : SIDE);
              }
          }
      }
    }
  }
  return result;
}

}  // namespace

EXPORT(matrix_blocks)
(const uint8_t* blocks, const float* x, float* out, int64_t format, int64_t rows, int64_t width, int64_t tokens,
 int64_t threads) {
  int64_t result = DONE;
  with_kind(format, [&](auto kind) {
    result = multiply<decltype(kind)>(blocks, x, out, rows, width, tokens, threads);
  });
  return result;
}
#endif
