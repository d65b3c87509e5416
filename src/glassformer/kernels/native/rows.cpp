// The products of rows.h with all rows: out [tokens, rows] = x [tokens, width] times the transposed weights.
#include "rows.h"

#include <cstdlib>

#include "native.h"

namespace {

template <typename Format, typename Number>
void multiply(Format weights, const Number* x, float* out, int64_t rows, int64_t width, int64_t tokens, int64_t threads) {
  const int64_t share = (rows + ROWS * threads - 1) / (ROWS * threads) * ROWS;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t part = 0; part < threads; ++part) {
    const int64_t first = part * share, last = first + share < rows ? first + share : rows;
    multiply_rows(weights, x, width, tokens, first, last, out, rows);
  }
}

template <typename Format>
void multiply_fixed(Format weights, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens,
                    int64_t threads) {
  const int64_t bytes = token_bytes(width);
  char* fixed = static_cast<char*>(std::aligned_alloc(64, tokens * bytes));
#pragma omp parallel for num_threads(threads) if (tokens > 8)
  for (int64_t t = 0; t < tokens; ++t) prepare<Format>(x + t * width, width, fixed + t * bytes);
  multiply(weights, static_cast<const char*>(fixed), out, rows, width, tokens, threads);
  std::free(fixed);
}

}  // namespace

EXPORT(rows_float32)
(const float* weights, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens, int64_t threads) {
  multiply(Dense<float>{weights}, x, out, rows, width, tokens, threads);
}

EXPORT(rows_bfloat16)
(const BFloat16* weights, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens, int64_t threads) {
  multiply(Dense<BFloat16>{weights}, x, out, rows, width, tokens, threads);
}

EXPORT(rows_int8)
(const int8_t* weights, const BFloat16* scales, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens,
 int64_t threads) {
  multiply_fixed(Int8{weights, scales}, x, out, rows, width, tokens, threads);
}

EXPORT(rows_mxfp4)
(const uint8_t* blocks, const uint8_t* scales, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens,
 int64_t threads) {
  multiply_fixed(Mxfp4{blocks, scales}, x, out, rows, width, tokens, threads);
}
