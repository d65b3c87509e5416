// The products of rows.h, of some rows and of all: out [tokens, rows] = x [tokens, width] times the transposed weights.
#include "rows.h"

// multiply_rows, for this source and others, which then need not compile it again.
EXPORT(some_rows)
(int64_t format, const void* weights, const void* scales, const char* tokens, int64_t width, int64_t count, int64_t first,
 int64_t last, float* out, int64_t stride) {
  const auto run = [&](auto matrix, auto x) { return multiply_rows(matrix, x, width, count, first, last, out, stride); };
  const float* x = reinterpret_cast<const float*>(tokens);
  if (in_blocks(format))
    return CALL(block_rows)(format, weights, x, width, count, first, last, out, stride);
  if (format == FLOAT32) run(static_cast<const float*>(weights), x);
  if (format == BFLOAT16) run(static_cast<const BFloat16*>(weights), x);
  if (format == MXFP4_APART)
    return run(Mxfp4{static_cast<const uint8_t*>(weights), static_cast<const uint8_t*>(scales)}, tokens);
  return DONE;
}

// prepare, for several tokens.
EXPORT(prepare)(const float* x, int64_t width, int64_t count, char* tokens) {
  for (int64_t t = 0; t < count; ++t, x += width, tokens += token_bytes(width))
    prepare<Mxfp4>(x, width, tokens);
  return DONE;
}

namespace {

int64_t multiply(int64_t format, const void* weights, const void* scales, const float* x, float* out, int64_t rows,
                 int64_t width, int64_t count, int64_t threads) {
  const int64_t share = (rows + ROWS * threads - 1) / (ROWS * threads) * ROWS, bytes = token_bytes(width);
  const bool prepared = format == MXFP4_APART;
  const Buffer<char> fixed(prepared ? count * bytes : 0);
  if (fixed == nullptr) return NO_MEMORY;
#pragma omp parallel for num_threads(threads) if (count > 8)
  for (int64_t t = 0; t < (prepared ? count : 0); ++t)
    CALL(prepare)(x + t * width, width, 1, fixed + t * bytes);
  const char* tokens = prepared ? fixed : reinterpret_cast<const char*>(x);
  int64_t result = DONE;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t part = 0; part < threads; ++part) {
    const int64_t first = part * share, last = first + share < rows ? first + share : rows;
    const int64_t done = CALL(some_rows)(format, weights, scales, tokens, width, count, first, last, out, rows);
#pragma omp critical
    if (done != DONE) result = done;
  }
  return result;
}

}  // namespace

EXPORT(rows_float32)
(const float* weights, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens, int64_t threads) {
  return multiply(FLOAT32, weights, nullptr, x, out, rows, width, tokens, threads);
}

EXPORT(rows_bfloat16)
(const BFloat16* weights, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens, int64_t threads) {
  return multiply(BFLOAT16, weights, nullptr, x, out, rows, width, tokens, threads);
}

EXPORT(rows_blocks)
(const uint8_t* blocks, const float* x, float* out, int64_t format, int64_t rows, int64_t width, int64_t tokens,
 int64_t threads) {
  return multiply(format, blocks, nullptr, x, out, rows, width, tokens, threads);
}

EXPORT(rows_mxfp4)
(const uint8_t* blocks, const uint8_t* scales, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens,
 int64_t threads) {
  return multiply(MXFP4_APART, blocks, scales, x, out, rows, width, tokens, threads);
}
