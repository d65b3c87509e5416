// The products of rows.h, of some rows and of all: out [tokens, rows] = x [tokens, width] times the transposed weights.
#include "rows.h"

// multiply_rows, for this source and others, which then need not compile it again.
EXPORT(some_rows)
(int64_t format, const void* weights, const void* scales, const char* tokens, int64_t width, int64_t count, int64_t first,
 int64_t last, float* out, int64_t stride) {
  const auto run = [&](auto matrix, auto x) { return multiply_rows(matrix, x, width, count, first, last, out, stride); };
  const float* x = reinterpret_cast<const float*>(tokens);
  const BFloat16* narrow = static_cast<const BFloat16*>(scales);
  if (format >= BLOCKS)
    return CALL(block_rows)(format, weights, x, width, count, first, last, out, stride);
  if (format == FLOAT32) run(static_cast<const float*>(weights), x);
  if (format == BFLOAT16) run(static_cast<const BFloat16*>(weights), x);
  if (format == LOSSLESS) run(Lossless{static_cast<const uint8_t*>(weights), static_cast<const int32_t*>(scales)}, x);
  if (format == INT8) return run(Int8{static_cast<const int8_t*>(weights), narrow}, tokens);
  if (format == MXFP4)
    return run(Mxfp4{static_cast<const uint8_t*>(weights), static_cast<const uint8_t*>(scales)}, tokens);
  return DONE;
}

// prepare, for several tokens.
EXPORT(prepare)(int64_t format, const float* x, int64_t width, int64_t count, char* tokens) {
  for (int64_t t = 0; t < count; ++t, x += width, tokens += token_bytes(width))
    format == INT8 ? prepare<Int8>(x, width, tokens) : prepare<Mxfp4>(x, width, tokens);
  return DONE;
}

namespace {

int64_t multiply(int64_t format, const void* weights, const void* scales, const float* x, float* out, int64_t rows,
                 int64_t width, int64_t count, int64_t threads) {
  const int64_t share = (rows + ROWS * threads - 1) / (ROWS * threads) * ROWS, bytes = token_bytes(width);
  const bool prepared = format >= INT8 && format < BLOCKS;
  const Buffer<char> fixed(prepared ? count * bytes : 0);
  if (fixed == nullptr) return NO_MEMORY;
#pragma omp parallel for num_threads(threads) if (count > 8)
  for (int64_t t = 0; t < (prepared ? count : 0); ++t)
    CALL(prepare)(format, x + t * width, width, 1, fixed + t * bytes);
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

EXPORT(rows_lossless)
(const uint8_t* packed, const int32_t* index, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens,
 int64_t, int64_t threads) {
  return multiply(LOSSLESS, packed, index, x, out, rows, width, tokens, threads);
}

// Of values [rows, width]: packed, and in index each row's top and, in the entry after it, its number of exceptions.
EXPORT(encode_lossless)
(const uint16_t* values, uint8_t* packed, int32_t* index, int64_t rows, int64_t width, int64_t threads) {
  constexpr int64_t GROUP = Lossless::GROUP, CODES = GROUP / 2;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t row = 0; row < rows; ++row) {
    const uint16_t* weights = values + row * width;
    uint8_t* group = packed + row * Lossless::row_bytes(width);
    const uint8_t top = Lossless::top(weights, width);
    int32_t exceptions = 0;
    for (int64_t k = 0; k < width; k += GROUP, group += Lossless::BYTES) {
      uint16_t some[GROUP] = {};
      std::memcpy(some, weights + k, sizeof(uint16_t) * (width - k < GROUP ? width - k : GROUP));
      uint8_t lower[GROUP], codes[GROUP], ordered[GROUP];
      for (int64_t i = 0; i < GROUP; ++i) {
        const uint8_t below = top - (some[i] >> 8 & 127);
        const bool exception = Lossless::is_exception(some[i], top);
        exceptions += exception;
        lower[i] = exception ? 0 : some[i];
        codes[i] = (below < Lossless::CODED ? below : Lossless::CODED) | some[i] >> 15 << 3;
      }
      Lossless::interleave(lower, group);
      Lossless::interleave(codes, ordered);
      for (int64_t i = 0; i < CODES; ++i) group[GROUP + i] = ordered[i] | ordered[i + CODES] << 4;
    }
    index[2 * row] = top, index[2 * row + 3] = exceptions;
  }
  return DONE;
}

// Fill in the entries of index, whose beginning says where those of each row are.
EXPORT(list_exceptions)
(const uint16_t* values, int32_t* index, int64_t rows, int64_t width, int64_t, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t row = 0; row < rows; ++row) {
    int32_t *entry = index + 2 * index[2 * row + 1], *end = index + 2 * index[2 * row + 3];
    const uint16_t top = index[2 * row];
    const uint16_t* weights = values + row * width;
    for (int64_t k = 0; k < width && entry < end; k += 16) {
      uint16_t any = 0;
      for (int64_t i = k; i < k + 16; ++i) any |= Lossless::is_exception(weights[i], top);
      for (int64_t i = k; any && i < k + 16 && entry < end; ++i) {
        if (!Lossless::is_exception(weights[i], top)) continue;
        *entry++ = static_cast<int32_t>(i);
        *entry++ = static_cast<int16_t>(weights[i]);
      }
    }
  }
  return DONE;
}

// The weights of the rows from first to last as they were: out [last - first, width].
EXPORT(expand_lossless)
(const uint8_t* packed, const int32_t* index, uint16_t* out, int64_t, int64_t width, int64_t, int64_t first,
 int64_t last, int64_t threads) {
  const Lossless matrix{packed, index};
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t row = first; row < last; ++row) {
    const Lossless::Table table = matrix.table(row);
    uint16_t* weights = out + (row - first) * width;
    const uint8_t* group = packed + row * Lossless::row_bytes(width);
    for (int64_t k = 0; k < width; k += Lossless::GROUP, group += Lossless::BYTES)
      for (int64_t part = 0; part < Lossless::PARTS; ++part) {
        const Lossless::Weights some = Lossless::unpacked(group, part, table);
        for (int64_t i = 0; i < 4 && k + 16 * i < width; ++i) {
          const Halves upper = __builtin_convertvector(some.quarters[i] >> 16, Halves);
          std::memcpy(weights + k + 16 * i + part * WIDTH, &upper, sizeof upper);
        }
      }
    for (int64_t i = index[2 * row + 1]; i < index[2 * row + 3]; ++i)
      weights[index[2 * i]] = static_cast<uint16_t>(index[2 * i + 1]);
  }
  return DONE;
}

EXPORT(rows_blocks)
(const uint8_t* blocks, const float* x, float* out, int64_t format, int64_t rows, int64_t width, int64_t tokens,
 int64_t threads) {
  return multiply(format, blocks, nullptr, x, out, rows, width, tokens, threads);
}

EXPORT(rows_int8)
(const int8_t* weights, const BFloat16* scales, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens,
 int64_t threads) {
  return multiply(INT8, weights, scales, x, out, rows, width, tokens, threads);
}

EXPORT(rows_mxfp4)
(const uint8_t* blocks, const uint8_t* scales, const float* x, float* out, int64_t rows, int64_t width, int64_t tokens,
 int64_t threads) {
  return multiply(MXFP4, blocks, scales, x, out, rows, width, tokens, threads);
}
