// GGUF's blocks of packed weights: their values, and products of a few tokens with their rows.
//
// A product expands some of a row's blocks in the caches and multiplies them by all tokens, in float32: activations are
// not rounded. The products of an output are added in one order for every number of tokens, rows and threads.
#include "rows.h"

namespace {

// Products of a row with T tokens.
template <int T, typename Kind>
inline void tile(const Row<Kind>& row, const float* x, int64_t width, float* out, int64_t stride) {
  constexpr int64_t PARTS = 32 / WIDTH;  // several sums, so that additions do not wait for one another
  Floats sums[T][PARTS] = {};
  row.for_blocks(width, [&](int64_t k, const uint8_t* block) INLINE {
    for (int64_t i = 0; i < Kind::ROOM; i += 64) prefetch_ahead(block + i);
    return in_values([&, k](int64_t i, Floats weights) INLINE {
      for (int t = 0; t < T; ++t) sums[t][i / WIDTH % PARTS] += weights * load(x + t * width + k + i);
    });
  });
  for (int t = 0; t < T; ++t) {
    for (int64_t part = 1; part < PARTS; ++part) sums[t][0] += sums[t][part];
    out[t * stride] = sum(sums[t][0]);
  }
}

template <int T, typename Kind>
inline void tokens_of(const Row<Kind>& row, const float* x, int64_t width, int64_t count, float* out, int64_t stride) {
  int64_t t = 0;
  for (; t + T <= count; t += T) tile<T>(row, x + t * width, width, out + t * stride, stride);
  if constexpr (T > 1)
    if (t < count) tokens_of<T / 2>(row, x + t * width, width, count - t, out + t * stride, stride);
}

}  // namespace

// out[t * stride + r] = row r times token t, for the rows from first to last
EXPORT(block_rows)
(int64_t format, const void* blocks, const float* x, int64_t width, int64_t count, int64_t first, int64_t last,
 float* out, int64_t stride) {
  int64_t result = DONE;
  with_kind(format, [&](auto kind) {
    result = for_rows<decltype(kind)>(static_cast<const uint8_t*>(blocks), width, first, last, [&](int64_t r, auto row) {
      tokens_of<4>(row, x, width, count, out + r, stride);
    });
  });
  return result;
}

// The values of the rows from first to last: out [last - first, width].
EXPORT(expand_blocks)
(const void* blocks, float* out, int64_t format, int64_t, int64_t width, int64_t first, int64_t last, int64_t threads) {
  int64_t result = DONE;
  with_kind(format, [&](auto kind) {
    const int64_t count = last - first;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t part = 0; part < threads; ++part) {
      const int64_t begin = first + count * part / threads, end = first + count * (part + 1) / threads;
      const auto expand = [&](int64_t r, auto row) {
        row.for_blocks(width, [&](int64_t k, const uint8_t*) INLINE {
          return in_values([to = out + (r - first) * width + k](int64_t i, Floats values) INLINE { store(to + i, values); });
        });
      };
      if (for_rows<decltype(kind)>(static_cast<const uint8_t*>(blocks), width, begin, end, expand) == DONE) continue;
#pragma omp atomic write
      result = NO_MEMORY;
    }
  });
  return result;
}
