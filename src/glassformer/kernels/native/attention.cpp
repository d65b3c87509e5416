// Attention in float32, causal, windowed or to all keys, with grouped heads and sinks; forward and backward.
//
// Scores are [key, query]: vectors lie along queries, so that nothing is summed across a vector, and keys and values
// are read where they are. One kernel, which keeps its sums in registers, computes all products. Softmax is computed
// tile by tile (Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135). A query's result
// does not depend on other queries or on the number of threads.

#include "vector.h"

#include <cmath>

namespace {

constexpr int64_t ROWS = 6;                 // of a register tile
constexpr int64_t QUERIES = 48, KEYS = 96;  // of a tile: multiples of ROWS and of every WIDTH

inline int64_t rounded_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// c [ROWS, N vectors] = (c +) a b, where a is [ROWS, depth] with any strides and the rows of b are contiguous.
template <int N>
inline void multiply_tile(int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b,
                          int64_t b_row, float* c, int64_t c_row, bool add) {
  Floats total[ROWS][N];
#pragma GCC unroll 6
  for (int64_t r = 0; r < ROWS; ++r)
    for (int n = 0; n < N; ++n) total[r][n] = add ? load(c + r * c_row + n * WIDTH) : Floats{};
  for (int64_t i = 0; i < depth; ++i, a += a_column, b += b_row) {
    Floats row[N];
    for (int n = 0; n < N; ++n) row[n] = load(b + n * WIDTH);
#pragma GCC unroll 6
    for (int64_t r = 0; r < ROWS; ++r) {
      const Floats factor = filled(a[r * a_row]);
      for (int n = 0; n < N; ++n) total[r][n] += factor * row[n];
    }
  }
#pragma GCC unroll 6
  for (int64_t r = 0; r < ROWS; ++r)
    for (int n = 0; n < N; ++n) store(c + r * c_row + n * WIDTH, total[r][n]);
}

// The same for `rows` and `columns` that are multiples of ROWS and WIDTH.
void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row, int64_t a_column,
              const float* b, int64_t b_row, float* c, int64_t c_row, bool add) {
  for (int64_t n = 0; n < columns;) {
    const bool two = n + 2 * WIDTH <= columns;
    for (int64_t m = 0; m < rows; m += ROWS) {
      const float* from = a + m * a_row;
      if (two)
        multiply_tile<2>(depth, from, a_row, a_column, b + n, b_row, c + m * c_row + n, c_row, add);
      else
        multiply_tile<1>(depth, from, a_row, a_column, b + n, b_row, c + m * c_row + n, c_row, add);
    }
    n += two ? 2 * WIDTH : WIDTH;
  }
}

struct Scratch {
  Buffer<float> memory;
  float* next;
  explicit Scratch(int64_t floats) : memory(floats), next(memory) {}
  float* take(int64_t floats) {
    float* part = next;
    next += floats;
    return part;
  }
};

struct Strides {
  int64_t batch, head, position;
};

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, width, causal, window;
  float scale;

  int64_t padded() const { return rounded_up(width, WIDTH); }
  int64_t last(int64_t query) const { return causal ? query + keys - queries : keys - 1; }
  int64_t first(int64_t query) const {
    const int64_t first = query + keys - queries - window + 1;
    return causal && first > 0 ? first : 0;
  }
};

// A tile [key, query], whose rows are QUERIES apart.
inline void multiply_keys(int64_t keys, int64_t queries, int64_t depth, const float* a, int64_t stride, const float* b,
                          float* scores) {
  multiply(keys, queries, depth, a, stride, 1, b, QUERIES, scores, QUERIES, false);
}

// Rows [have, width] times `scale`, as [width, QUERIES]; columns from `have` on are 0.
void copy_transposed(const float* from, int64_t stride, int64_t have, int64_t width, float scale, float* to) {
  if (have < QUERIES) std::memset(to, 0, width * QUERIES * sizeof(float));
  for (int64_t row = 0; row < have; ++row)
    for (int64_t i = 0; i < width; ++i) to[i * QUERIES + row] = from[row * stride + i] * scale;
}

struct Rows {
  const float* start;
  int64_t stride;
};

// Rows that the products can read: the rows themselves if they are whole vectors of `count` rows, else a copy with zeros.
Rows whole_rows(const float* from, int64_t stride, int64_t have, int64_t count, int64_t width, float* copy) {
  if (width % WIDTH == 0 && have >= count) return {from, stride};
  const int64_t padded = rounded_up(width, WIDTH);
  std::memset(copy, 0, count * padded * sizeof(float));
  for (int64_t row = 0; row < have; ++row) std::memcpy(copy + row * padded, from + row * stride, width * sizeof(float));
  return {copy, padded};
}

// e^x of x <= 0; 0 below -87.
inline Floats decay(Floats x) {
  const Ints vanishes = x < -87.0f;
  x = vanishes ? filled(-87.0f) : x;
  const Floats shifted = x * 1.44269504088896341f + 12582912.0f;
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const Floats power = (Floats)((Ints)polynomial(r) + ((Ints)shifted << 23));
  return (Floats)(~vanishes & (Ints)power);
}

// Scores of pairs that are not allowed become -inf: keys from `key`, queries from `query`.
void forbid(float* scores, int64_t keys, int64_t seen, int64_t queries, int64_t key, int64_t query, const Sizes& s) {
  for (int64_t row = 0; row < keys; ++row) {
    // Key j is seen by queries from j - shift to j - shift + window - 1.
    const int64_t from = s.causal ? key + row - (s.keys - s.queries) - query : 0;
    const int64_t to = s.causal ? from + s.window : queries;
    float* line = scores + row * QUERIES;
    for (int64_t i = 0; i < queries; ++i)
      if (row >= seen || i < from || i >= to) line[i] = -INFINITY;
  }
}

inline bool has_forbidden(int64_t key, int64_t keys, int64_t seen, int64_t from, int64_t to, const Sizes& s) {
  return keys > seen || s.last(from) < key + seen - 1 || s.first(to - 1) > key;
}

// Each query's largest score so far and sum of exponentials; scores become weights, and earlier sums are rescaled.
void soften(float* scores, int64_t keys, int64_t have, float* most, float* total, float* out, int64_t padded) {
  for (int64_t i = 0; i < have; i += WIDTH) {
    const Floats before = load(most + i);
    Floats now = before, sums = {};
    for (int64_t row = 0; row < keys; ++row) now = larger(load(scores + row * QUERIES + i), now);
    const Floats shift = now == -INFINITY ? Floats{} : now;  // no key so far: every weight is 0
    for (int64_t row = 0; row < keys; ++row) {
      float* at = scores + row * QUERIES + i;
      const Floats weight = decay(load(at) - shift);
      sums += weight;
      store(at, weight);
    }
    const Floats factor = decay(before - shift);
    store(most + i, now);
    store(total + i, load(total + i) * factor + sums);
    for (int64_t row = 0; row < WIDTH; ++row)
      if (factor[row] != 1.0f)
        for (int64_t n = 0; n < padded; n += WIDTH) {
          float* at = out + (i + row) * padded + n;
          store(at, load(at) * factor[row]);
        }
  }
}

int64_t forward(const float* q, const float* k, const float* v, float* out, float* lse, const float* sink, Sizes s,
             Strides qs, Strides ks, Strides vs, Strides os, int64_t threads) {
  const int64_t group = s.heads / s.kv_heads, padded = s.padded(), blocks = (s.queries + QUERIES - 1) / QUERIES;
  const int64_t items = s.batch * s.kv_heads * blocks, tile = QUERIES * padded;
  int64_t result = DONE;
#pragma omp parallel num_threads(threads) if (items > 1)
  {
    Scratch scratch(2 * KEYS * padded + QUERIES * KEYS + group * (2 * tile + 2 * QUERIES));
    float *k_copy = scratch.take(KEYS * padded), *v_copy = scratch.take(KEYS * padded);
    float *scores = scratch.take(QUERIES * KEYS), *queries = scratch.take(group * tile);
    float *sums = scratch.take(group * tile), *most = scratch.take(group * QUERIES);
    float* total = scratch.take(group * QUERIES);
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < items; ++item) {
      if (scratch.memory == nullptr) {
#pragma omp atomic write
        result = NO_MEMORY;
        continue;
      }
      // The last queries of a causal attention take longest, so they come first.
      const int64_t begin = (blocks - 1 - item / (s.batch * s.kv_heads)) * QUERIES;
      const int64_t pair = item % (s.batch * s.kv_heads), b = pair / s.kv_heads, shared = pair % s.kv_heads;
      const int64_t have = s.queries - begin < QUERIES ? s.queries - begin : QUERIES, rows = rounded_up(have, ROWS);
      const int64_t across = rounded_up(have, WIDTH);
      for (int64_t g = 0; g < group; ++g) {
        const float* from = q + b * qs.batch + (shared * group + g) * qs.head + begin * qs.position;
        copy_transposed(from, qs.position, have, s.width, s.scale, queries + g * tile);
      }
      std::memset(sums, 0, group * tile * sizeof(float));
      for (int64_t i = 0; i < group * QUERIES; ++i) most[i] = -INFINITY, total[i] = 0;
      const int64_t last = s.last(begin + have - 1);
      for (int64_t key = s.first(begin) / ROWS * ROWS; key <= last; key += KEYS) {
        const int64_t left = s.keys - key, seen = last + 1 - key < KEYS ? last + 1 - key : KEYS;
        const int64_t count = rounded_up(seen, ROWS);
        const Rows keys = whole_rows(k + b * ks.batch + shared * ks.head + key * ks.position, ks.position,
                                     left < count ? left : count, count, s.width, k_copy);
        const Rows values = whole_rows(v + b * vs.batch + shared * vs.head + key * vs.position, vs.position,
                                       left < count ? left : count, count, s.width, v_copy);
        const bool edge = has_forbidden(key, count, seen, begin, begin + have, s);
        for (int64_t g = 0; g < group; ++g) {
          multiply_keys(count, across, s.width, keys.start, keys.stride, queries + g * tile, scores);
          if (edge) forbid(scores, count, seen, across, key, begin, s);
          soften(scores, count, have, most + g * QUERIES, total + g * QUERIES, sums + g * tile, padded);
          multiply(rows, padded, count, scores, 1, QUERIES, values.start, values.stride, sums + g * tile, padded, true);
        }
      }
      for (int64_t g = 0; g < group; ++g)
        for (int64_t row = 0; row < have; ++row) {
          const int64_t head = shared * group + g;
          float highest = most[g * QUERIES + row], whole = total[g * QUERIES + row], factor = 1;
          if (sink != nullptr) {
            const float now = sink[head] > highest ? sink[head] : highest;
            factor = std::exp(highest - now);
            whole = whole * factor + std::exp(sink[head] - now);
            highest = now;
          }
          lse[(b * s.heads + head) * s.queries + begin + row] = highest + std::log(whole);
          const float inverse = whole == 0 ? 0 : factor / whole;
          const float* from = sums + g * tile + row * padded;
          float* to = out + b * os.batch + head * os.head + (begin + row) * os.position;
          for_vectors(s.width, [&](int64_t i, int64_t size) { store(to + i, load(from + i) * inverse, size); });
        }
    }
  }
  return result;
}

// Gradients of q, and of k and v for each query head apart, which are [batch, head, key, width].
int64_t backward(const float* grad, const float* q, const float* k, const float* v, const float* out, const float* lse,
              float* d_q, float* d_k, float* d_v, Sizes s, Strides gs, Strides qs, Strides ks, Strides vs, Strides os,
              Strides ds, int64_t threads) {
  const int64_t group = s.heads / s.kv_heads, padded = s.padded(), items = s.batch * s.heads;
  const int64_t all = rounded_up(s.queries, QUERIES), tile = KEYS * padded;
  int64_t result = DONE;
#pragma omp parallel num_threads(threads) if (items > 1)
  {
    Scratch scratch(5 * all * padded + 2 * all + 4 * tile + 2 * QUERIES * KEYS);
    float *q_across = scratch.take(all * padded), *g_across = scratch.take(all * padded);
    float *q_copy = scratch.take(all * padded), *g_copy = scratch.take(all * padded);
    float *to_q = scratch.take(all * padded), *level = scratch.take(all), *mean = scratch.take(all);
    float *k_copy = scratch.take(tile), *v_copy = scratch.take(tile);
    float *to_k = scratch.take(tile), *to_v = scratch.take(tile);
    float *weights = scratch.take(QUERIES * KEYS), *flow = scratch.take(QUERIES * KEYS);
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < items; ++item) {
      if (scratch.memory == nullptr) {
#pragma omp atomic write
        result = NO_MEMORY;
        continue;
      }
      const int64_t b = item / s.heads, head = item % s.heads, shared = head / group;
      const float *q_from = q + b * qs.batch + head * qs.head, *g_from = grad + b * gs.batch + head * gs.head;
      const float *k_from = k + b * ks.batch + shared * ks.head, *v_from = v + b * vs.batch + shared * vs.head;
      const Rows queries = whole_rows(q_from, qs.position, s.queries, s.queries, s.width, q_copy);
      const Rows flows = whole_rows(g_from, gs.position, s.queries, s.queries, s.width, g_copy);
      std::memset(to_q, 0, all * padded * sizeof(float));
      for (int64_t begin = 0; begin < s.queries; begin += QUERIES) {
        const int64_t have = s.queries - begin < QUERIES ? s.queries - begin : QUERIES;
        copy_transposed(q_from + begin * qs.position, qs.position, have, s.width, s.scale, q_across + begin * padded);
        copy_transposed(g_from + begin * gs.position, gs.position, have, s.width, 1, g_across + begin * padded);
      }
      for (int64_t row = 0; row < all; ++row) {
        const float* line = out + b * os.batch + head * os.head + row * os.position;
        const bool real = row < s.queries && lse[item * s.queries + row] != -INFINITY;  // NaN stays
        level[row] = real ? lse[item * s.queries + row] : INFINITY;  // every weight is 0
        Floats product = {};
        for (int64_t i = 0; real && i < s.width; i += WIDTH) {
          const int64_t size = s.width - i < WIDTH ? s.width - i : WIDTH;
          product += load(line + i, size) * load(g_from + row * gs.position + i, size);
        }
        mean[row] = sum(product);
      }
      for (int64_t key = 0; key < s.keys; key += KEYS) {
        const int64_t seen = s.keys - key < KEYS ? s.keys - key : KEYS, count = rounded_up(seen, ROWS);
        const Rows keys = whole_rows(k_from + key * ks.position, ks.position, seen, count, s.width, k_copy);
        const Rows values = whole_rows(v_from + key * vs.position, vs.position, seen, count, s.width, v_copy);
        std::memset(to_k, 0, tile * sizeof(float));
        std::memset(to_v, 0, tile * sizeof(float));
        for (int64_t begin = 0; begin < s.queries; begin += QUERIES) {
          const int64_t have = s.queries - begin < QUERIES ? s.queries - begin : QUERIES;
          // Of the tile the keys that these queries see.
          const int64_t low = s.first(begin) > key ? (s.first(begin) - key) / ROWS * ROWS : 0;
          const int64_t end = s.last(begin + have - 1) + 1 - key, high = end < seen ? end : seen;
          if (high <= low) continue;
          const int64_t rows = rounded_up(high - low, ROWS), across = rounded_up(have, WIDTH);
          const float *k_rows = keys.start + low * keys.stride, *v_rows = values.start + low * values.stride;
          multiply_keys(rows, across, s.width, k_rows, keys.stride, q_across + begin * padded, weights);
          multiply_keys(rows, across, s.width, v_rows, values.stride, g_across + begin * padded, flow);
          if (has_forbidden(key + low, rows, high - low, begin, begin + have, s))
            forbid(weights, rows, high - low, across, key + low, begin, s);
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = 0; i < across; i += WIDTH) {
              float *p = weights + row * QUERIES + i, *d = flow + row * QUERIES + i;
              const Floats weight = decay(load(p) - load(level + begin + i));
              store(p, weight);
              store(d, weight * (load(d) - load(mean + begin + i)));
            }
          const float *q_rows = queries.start + begin * queries.stride, *g_rows = flows.start + begin * flows.stride;
          multiply(rows, padded, have, weights, QUERIES, 1, g_rows, flows.stride, to_v + low * padded, padded, true);
          multiply(rows, padded, have, flow, QUERIES, 1, q_rows, queries.stride, to_k + low * padded, padded, true);
          float* to = to_q + begin * padded;
          multiply(rounded_up(have, ROWS), padded, rows, flow, 1, QUERIES, k_rows, keys.stride, to, padded, true);
        }
        for (int64_t row = 0; row < seen; ++row) {
          const int64_t to = (item * s.keys + key + row) * s.width;
          for_vectors(s.width, [&](int64_t i, int64_t size) {
            store(d_k + to + i, load(to_k + row * padded + i) * s.scale, size);
            store(d_v + to + i, load(to_v + row * padded + i), size);
          });
        }
      }
      for (int64_t row = 0; row < s.queries; ++row) {
        float* to = d_q + b * ds.batch + head * ds.head + row * ds.position;
        const float* from = to_q + row * padded;
        for_vectors(s.width, [&](int64_t i, int64_t size) { store(to + i, load(from + i) * s.scale, size); });
      }
    }
  }
  return result;
}

}  // namespace

#define SIZES                                                                                                       \
  int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys, int64_t width, int64_t causal,    \
      int64_t window, double scale, int64_t sinks, int64_t threads
#define STRIDES(x) int64_t x##_batch, int64_t x##_head, int64_t x##_position

// The last axis of tensors with strides is contiguous. Without `sinks` there is none.
EXPORT(attention)
(const float* q, const float* k, const float* v, float* out, float* lse, const float* sink, SIZES, STRIDES(q), STRIDES(k),
 STRIDES(v), STRIDES(o)) {
  const Sizes s{batch, heads, kv_heads, queries, keys, width, causal, window, static_cast<float>(scale)};
  return forward(q, k, v, out, lse, sinks ? sink : nullptr, s, {q_batch, q_head, q_position}, {k_batch, k_head, k_position},
                 {v_batch, v_head, v_position}, {o_batch, o_head, o_position}, threads);
}

EXPORT(attention_backward)
(const float* grad, const float* q, const float* k, const float* v, const float* out, float* d_q, const float* lse,
 float* d_k, float* d_v, SIZES, STRIDES(g), STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(o), STRIDES(d)) {
  const Sizes s{batch, heads, kv_heads, queries, keys, width, causal, window, static_cast<float>(scale)};
  return backward(grad, q, k, v, out, lse, d_q, d_k, d_v, s, {g_batch, g_head, g_position}, {q_batch, q_head, q_position},
                  {k_batch, k_head, k_position}, {v_batch, v_head, v_position}, {o_batch, o_head, o_position},
                  {d_batch, d_head, d_position}, threads);
}
