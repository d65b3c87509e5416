// GGUF's blocks of packed weights: their values, and products of a few tokens with their rows.
//
// A product expands some of a row's blocks in the caches and multiplies them by all tokens, in float32: activations are
// not rounded. Of an output the products are added in one order for every number of tokens, rows and threads.
#include "blocks.h"

namespace {

// A row with T tokens.
template <typename Kind, int T>
inline void tile(const uint8_t* row, const float* x, int64_t width, float* out, int64_t stride) {
  constexpr int64_t PARTS = 32 / WIDTH;  // sums, for additions not to wait for one another
  Floats sums[T][PARTS] = {};
  for (int64_t k = 0; k < width; k += Kind::BLOCK, row += Kind::ROOM) {
    for (int64_t i = 0; i < Kind::ROOM; i += 64) prefetch_ahead(row + i);
    const auto multiply = [&](int64_t i, Floats weights) INLINE {
      for (int t = 0; t < T; ++t) sums[t][i / WIDTH % PARTS] += weights * load(x + t * width + k + i);
    };
    Kind::expand(row, Values<decltype(multiply)>{multiply});
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
  return DONE;
}

// The values of the rows from first to last: out [last - first, width].
EXPORT(expand_blocks)
(const void* blocks, float* out, int64_t format, int64_t, int64_t width, int64_t first, int64_t last, int64_t threads) {
  with_kind(format, [&](auto kind) {
    using Kind = decltype(kind);
    const int64_t count = width / Kind::BLOCK;
    const uint8_t* from = static_cast<const uint8_t*>(blocks) + first * count * Kind::ROOM;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < last - first; ++r)
      for (int64_t i = 0; i < count; ++i) {
        const auto keep = [&](int64_t at, Floats values) INLINE { store(out + (r * count + i) * Kind::BLOCK + at, values); };
        Kind::expand(from + (r * count + i) * Kind::ROOM, Values<decltype(keep)>{keep});
      }
  });
  return DONE;
}
