// One step of a decoder: the newest token of each of `batch` texts, from its embedding to the logits.
//
// The formulas are those of layers/ and kernels/, under their names. Activations are float32 throughout; weights and
// the cache have the model's dtype, experts may be packed. A sum has one order, whatever the number of texts and of
// threads is.
//
// All threads run the same code in one parallel region. Cheap results are computed by every thread. Each thread has a
// range of the rows of a product and of the heads, and helps others when its range is done. Barriers stand between writes
// of one thread and reads of others.

#include <cmath>
#include <cstring>

#include "rows.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

// ---- the structures of decode_step.py; vectors are in the model's dtype, and null where there is none ---------------

struct Matrix {  // rows of weights, one after the other
  const void *data, *scales;
  int64_t format, width;
};

struct Norm {  // without a weight there is none
  const void *weight, *bias;
  int64_t centred, bfloat16;  // LayerNorm, otherwise RMSNorm; its weights may be float32 beside others of bfloat16
  double eps;
};

struct Rotation {
  const float* frequencies;  // radians per position, of each pair of coordinates
  int64_t pairs;             // of the first 2 * pairs coordinates of a head
  double concentration;
};

enum Activation { SILU, CLAMPED, GELU, GELU_TANH, RELU, RELU_SQUARED };

struct Layer {
  Norm attention_norm, attention_post_norm, ffn_norm, ffn_post_norm;
  Norm query_norm, key_norm;  // of each head, or of all heads together
  Matrix query, key, value, output;
  const void *query_bias, *key_bias, *value_bias, *output_bias, *key_weights, *sinks;
  void *keys, *values;  // [batch, num_kv_heads, slots, head_dim]
  Matrix router;        // without it there is one expert, for all tokens
  Matrix gate, up, down;  // [expert, out, in]; without `up`, rows of gate and up are in turns in `gate`, if it gates
  const void *router_bias, *gate_bias, *up_bias, *down_bias;
  // Without `ff_dim` the layer is attention only, without `gated` activation(gate(n)) is all that `down` reads.
  int64_t num_heads, num_kv_heads, slots, ff_dim, num_experts, top_k, activation, gated, parallel, norm_of_all_heads;
  int64_t rotation;  // an index, or -1
  double alpha, limit, scale, cap;  // no cap: 0
};

struct Decoder {
  Matrix embedding, positions, output;
  Norm embedding_norm, final_norm;
  const Rotation* rotations;
  const Layer* layers;
  int64_t num_rotations, num_layers, bfloat16, vocab_size, hidden_dim, head_dim, interleaved;
  double embedding_scale, logit_cap;  // no cap: 0
};

// ---- vectors ---------------------------------------------------------------------------------------------------------

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

// A vector of the model's dtype.
struct Numbers {
  const void* data;
  int64_t bfloat16;
  explicit operator bool() const { return data != nullptr; }
  float operator[](int64_t i) const {
    return bfloat16 ? as_float(static_cast<const uint16_t*>(data)[i] << 16) : static_cast<const float*>(data)[i];
  }
};

// activation(gate) * up, or activation(gate)
inline Floats activated(const Layer& l, Floats gate, Floats up) {
  switch (l.activation) {
    case CLAMPED: {
      const Floats limit = filled(static_cast<float>(l.limit));
      gate = gate > limit ? limit : gate;
      up = up > limit ? limit : up < -limit ? -limit : up;
      return gate * sigmoid(static_cast<float>(l.alpha) * gate) * (up + 1.0f);
    }
    case GELU:
      for (int64_t i = 0; i < WIDTH; ++i) gate[i] *= 0.5f + 0.5f * std::erf(gate[i] * 0.70710678f);
      break;
    case GELU_TANH:  // (1 + tanh(u)) / 2 = sigmoid(2 u)
      gate *= sigmoid(1.5957691f * (gate + 0.044715f * gate * gate * gate));
      break;
    case RELU:
    case RELU_SQUARED:
      gate = gate < 0.0f ? Floats{} : gate;
      if (l.activation == RELU_SQUARED) gate *= gate;
      break;
    default:
      gate *= sigmoid(gate);
  }
  return l.gated ? gate * up : gate;
}

inline float capped(float x, double cap) { return static_cast<float>(cap * std::tanh(x / cap)); }

// RMSNorm: x / sqrt(mean(x ** 2) + eps) * weight; LayerNorm: the same of x - mean(x), + bias; of every token
void normalise(const Norm& norm, const float* x, int64_t tokens, int64_t width, float* out) {
  const Numbers weight = {norm.weight, norm.bfloat16}, bias = {norm.bias, norm.bfloat16};
  for (int64_t t = 0; t < tokens; ++t, x += width, out += width) {
    double mean = 0, sum = 0;
    if (norm.centred) {
      for (int64_t i = 0; i < width; ++i) mean += x[i];
      mean /= width;
    }
    const float middle = static_cast<float>(mean);
    float squares[16] = {};
    for (int64_t i = 0; i < width; ++i) squares[i % 16] += (x[i] - middle) * (x[i] - middle);
    for (const float square : squares) sum += square;
    const float inverse = static_cast<float>(1 / std::sqrt(sum / width + norm.eps));
    for (int64_t i = 0; i < width; ++i) out[i] = (x[i] - middle) * inverse * weight[i];
    for (int64_t i = 0; bias && i < width; ++i) out[i] += bias[i];
  }
}

// Tokens as products with a matrix take them: numbers, or in fixed point.
struct Tokens {
  const char* data;
  int64_t bytes, count;  // bytes of a token
};

inline Tokens tokens_for(const Matrix& m, const float* x, int64_t count, char* room) {
  if (m.format != MXFP4_APART) return {reinterpret_cast<const char*>(x), m.width * 4, count};
  CALL(prepare)(x, m.width, count, room);
  return {room, token_bytes(m.width), count};
}

// The numbers of a row, of FLOAT32, BFLOAT16 or in blocks.
inline int64_t row_of(const Matrix& m, int64_t row, float* out) {
  const Numbers table{m.data, m.format == BFLOAT16};
  if (in_blocks(m.format)) return CALL(expand_blocks)(m.data, out, m.format, 0, m.width, row, row + 1, 1);
  for (int64_t i = 0; i < m.width; ++i) out[i] = table[row * m.width + i];
  return DONE;
}

// ---- the step -------------------------------------------------------------------------------------------------------

constexpr int64_t TILE = 64;    // rows of a product whose results a thread holds before it goes on with them
constexpr int64_t KEYS = 256;  // keys whose weights are in memory at a time

struct Span {
  int64_t first, last;
};

struct Step {
  const Decoder& d;
  const int64_t* tokens;    // [batch]
  const uint8_t* padding;   // [batch, position + 1], 1 where a position is real; null: all are
  float* logits;            // [batch, vocab_size]
  int64_t batch, position;  // position of the tokens
  // Shared by threads: the residual stream [token, hidden_dim]; queries, keys and values of a token; the output of
  // attend; the router's scores; gated activations [token-expert pair, ff_dim]; the sum of a part before its norm.
  float *x, *heads, *attended, *scores, *hidden, *added;
  int64_t* taken;  // for each shared loop and thread: parts that are taken, and those of them taken from the end
  int64_t* result;

  Numbers vector(const void* data) const { return {data, d.bfloat16}; }
};

// The memory and the code of one thread.
struct Thread {
  const Step& s;
  const Decoder& d;
  int index, threads;
  int64_t loop = 0;  // shared loops so far
  Buffer<float> normed, tile, turn, attention, share;
  Buffer<char> prepared, gathered;
  Buffer<int64_t> expert_of, first_pair, token_of;

  Thread(const Step& step, int index, int threads, int64_t experts, int64_t top_k, int64_t group, int64_t widest)
      : s(step),
        d(step.d),
        index(index),
        threads(threads),
        normed(s.batch * d.hidden_dim),
        tile(s.batch * 4 * TILE),
        turn(d.num_rotations * d.head_dim),
        attention(group * (KEYS + d.head_dim + 2)),
        share(2 * s.batch * top_k),
        prepared(s.batch * top_k * token_bytes(widest)),
        gathered(s.batch * larger(token_bytes(d.hidden_dim), 4 * d.hidden_dim)),
        expert_of(s.batch * top_k),
        first_pair(experts + 1),
        token_of(s.batch * top_k) {}

  void barrier() const {
#pragma omp barrier
  }

  Tokens tokens_of(const Matrix& m, const float* x, int64_t count) const { return tokens_for(m, x, count, prepared); }

  void require(bool memory) const {
    if (memory) return;
#pragma omp atomic write
    *s.result = NO_MEMORY;
  }

  // out[t * stride + r - first] = row r times token t, for the rows from first to last
  void multiply(const Matrix& m, Tokens x, int64_t first, int64_t last, float* out, int64_t stride) const {
    require(CALL(some_rows)(m.format, m.data, m.scales, x.data, m.width, x.count, first, last, out - first, stride) == DONE);
  }

  // Calls f(span) for `count` rows or heads, `some` at a time, each of them in one thread. A thread goes through its range
  // from the start to the end, because memory is read fastest so, and then helps others from the end of their ranges.
  template <typename F>
  void take(int64_t count, int64_t some, const F& f) {
    int64_t* taken = s.taken + 2 * threads * loop++;
    const int64_t parts = (count + some - 1) / some;
    for (int64_t i = 0; i < threads; ++i) {
      const int64_t owner = (index + i) % threads, first = parts * owner / threads, last = parts * (owner + 1) / threads;
      int64_t &all = taken[2 * owner], &from_end = taken[2 * owner + 1];
      for (int64_t own = first; __atomic_fetch_add(&all, 1, __ATOMIC_RELAXED) < last - first; ++own) {
        const int64_t part = i == 0 ? own : last - 1 - __atomic_fetch_add(&from_end, 1, __ATOMIC_RELAXED);
        f(Span{part * some, smaller((part + 1) * some, count)});
      }
    }
  }
  // Several parts for each thread, with whole cache lines of results.
  template <typename F>
  void take_rows(int64_t rows, const F& f) {
    const int64_t lines = rows / (8 * 16 * threads) + 1;
    take(rows, threads == 1 ? rows : smaller(16 * lines, TILE), f);
  }

  void run() {
    require(normed && tile && turn && attention && share && prepared && gathered && expert_of && first_pair && token_of);
    barrier();
    if (*s.result != DONE) return;
    const float scale = static_cast<float>(d.embedding_scale);
    for (int64_t t = index; t < s.batch; t += threads) {
      float* x = s.x + t * d.hidden_dim;
      require(row_of(d.embedding, s.tokens[t], x) == DONE);
      for (int64_t i = 0; i < d.hidden_dim; ++i) x[i] *= scale;
      if (d.positions.data != nullptr) {
        require(row_of(d.positions, s.position, normed) == DONE);
        for (int64_t i = 0; i < d.hidden_dim; ++i) x[i] += normed[i];
      }
      if (d.embedding_norm.weight != nullptr) normalise(d.embedding_norm, x, 1, d.hidden_dim, x);
    }
    // Cosines and sines of the position; an angle is rounded to float32, as in RotaryEmbedding.
    for (int64_t r = 0; r < d.num_rotations; ++r) {
      const Rotation& rotation = d.rotations[r];
      float* angles = turn + r * d.head_dim;
      for (int64_t pair = 0; pair < rotation.pairs; ++pair) {
        const double angle = static_cast<float>(s.position) * rotation.frequencies[pair];
        angles[2 * pair] = static_cast<float>(std::cos(angle) * rotation.concentration);
        angles[2 * pair + 1] = static_cast<float>(std::sin(angle) * rotation.concentration);
      }
    }
    barrier();
    for (int64_t layer = 0; layer < d.num_layers; ++layer) {
      attention_of(d.layers[layer]);
      if (d.layers[layer].ff_dim > 0) feed_forward(d.layers[layer]);
    }
    norm_stream(d.final_norm);
    const Tokens last = tokens_of(d.output, normed, s.batch);
    take_rows(d.vocab_size, [&](Span rows) {
      multiply(d.output, last, rows.first, rows.last, s.logits + rows.first, d.vocab_size);
      for (int64_t t = 0; d.logit_cap > 0 && t < s.batch; ++t)
        for (float* x = s.logits + t * d.vocab_size + rows.first; x < s.logits + t * d.vocab_size + rows.last; ++x)
          *x = capped(*x, d.logit_cap);
    });
  }

  // normed = norm(x), or x where there is none
  void norm_stream(const Norm& norm) {
    if (norm.weight != nullptr) normalise(norm, s.x, s.batch, d.hidden_dim, normed);
    else std::memcpy(normed, s.x, s.batch * d.hidden_dim * sizeof(float));
  }

  // Where a part adds its output: to the stream, or to memory of its own if a norm comes first.
  float* sum_of(const Norm& post_norm) const { return post_norm.weight != nullptr ? s.added : s.x; }
  void clear(const Norm& post_norm) const {  // before a barrier
    if (post_norm.weight == nullptr) return;
    for (int64_t t = index; t < s.batch; t += threads)
      std::memset(s.added + t * d.hidden_dim, 0, d.hidden_dim * sizeof(float));
  }
  void add(const Norm& post_norm) const {  // after the barrier that ends the part
    if (post_norm.weight == nullptr) return;
    for (int64_t t = index; t < s.batch; t += threads) {
      float *x = s.x + t * d.hidden_dim, *added = s.added + t * d.hidden_dim;
      normalise(post_norm, added, 1, d.hidden_dim, added);
      for (int64_t i = 0; i < d.hidden_dim; ++i) x[i] += added[i];
    }
    barrier();
  }

  // ---- x + output(attend(rotate(query(n)), rotate(key(n)), value(n))) with n = attention_norm(x) --------------------

  void attention_of(const Layer& l) {
    norm_stream(l.attention_norm);
    const int64_t queries = l.num_heads * d.head_dim, keys = l.num_kv_heads * d.head_dim, all = queries + 2 * keys;
    project(l.query, l.query_bias, 0, queries, all);
    project(l.key, l.key_bias, queries, keys, all);
    project(l.value, l.value_bias, queries + keys, keys, all);
    clear(l.attention_post_norm);
    barrier();
    if (l.parallel) norm_stream(l.ffn_norm);  // of the same stream
    if (l.norm_of_all_heads) {
      for (int64_t t = index; t < s.batch; t += threads) {
        float *q = s.heads + t * all, *k = q + queries;
        normalise(l.query_norm, q, 1, queries, q);
        normalise(l.key_norm, k, 1, keys, k);
      }
      barrier();
    }
    take(s.batch * l.num_kv_heads, 1, [&](Span head) {
      if (d.bfloat16) attend<BFloat16>(l, head.first / l.num_kv_heads, head.first % l.num_kv_heads);
      else attend<float>(l, head.first / l.num_kv_heads, head.first % l.num_kv_heads);
    });
    barrier();
    const Numbers bias = s.vector(l.output_bias);
    const Tokens attended = tokens_of(l.output, s.attended, s.batch);
    take_rows(d.hidden_dim, [&](Span rows) {
      for (int64_t r = rows.first; r < rows.last; r += TILE) {
        const int64_t some = smaller(TILE, rows.last - r);
        multiply(l.output, attended, r, r + some, tile, TILE);
        for (int64_t t = 0; t < s.batch; ++t) {
          float* x = sum_of(l.attention_post_norm) + t * d.hidden_dim + r;
          for (int64_t i = 0; i < some; ++i) x[i] += tile[t * TILE + i] + (bias ? bias[r + i] : 0.0f);
        }
      }
    });
    barrier();
    add(l.attention_post_norm);
  }

  // A projection of `normed`, which is columns `at` .. of `heads`.
  void project(const Matrix& weight, const void* bias_data, int64_t at, int64_t all_rows, int64_t all) {
    const Tokens tokens = tokens_of(weight, normed, s.batch);
    const Numbers bias = s.vector(bias_data);
    take_rows(all_rows, [&](Span rows) {
      float* out = s.heads + at + rows.first;
      multiply(weight, tokens, rows.first, rows.last, out, all);
      for (int64_t t = 0; bias && t < s.batch; ++t)
        for (int64_t r = rows.first; r < rows.last; ++r) out[t * all + r - rows.first] += bias[r];
    });
  }

  // a' = a cos - b sin, b' = b cos + a sin, for every pair (a, b) of coordinates that rotates
  void rotate(const Layer& l, float* head) const {
    if (l.rotation < 0) return;
    const int64_t pairs = d.rotations[l.rotation].pairs;
    const int64_t step = d.interleaved ? 2 : 1, other = d.interleaved ? 1 : pairs;
    const float* angles = turn + l.rotation * d.head_dim;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      float &a = head[step * pair], &b = head[step * pair + other];
      const float cos = angles[2 * pair], sin = angles[2 * pair + 1], before = a;
      a = before * cos - b * sin;
      b = b * cos + before * sin;
    }
  }

  // The query heads of a text that read one key-value head. The position is put into the cache before its queries attend,
  // so that a windowed layer, whose cache is a ring, holds what they see and nothing else.
  template <typename Number>
  void attend(const Layer& l, int64_t text, int64_t kv_head) {
    const int64_t group = l.num_heads / l.num_kv_heads, dim = d.head_dim, all = (l.num_heads + 2 * l.num_kv_heads) * dim;
    Number* keys = static_cast<Number*>(l.keys) + (text * l.num_kv_heads + kv_head) * l.slots * dim;
    Number* values = static_cast<Number*>(l.values) + (text * l.num_kv_heads + kv_head) * l.slots * dim;
    const Numbers key_weights = s.vector(l.key_weights), sinks = s.vector(l.sinks);
    float *weights = attention, *out = weights + group * KEYS, *top = out + group * dim, *sum = top + group;
    const float scale = static_cast<float>(l.scale);
    const bool norms = l.query_norm.weight != nullptr && !l.norm_of_all_heads;
    const int64_t slot = s.position % l.slots;
    float* q = s.heads + text * all + kv_head * group * dim;
    float* k = s.heads + text * all + (l.num_heads + kv_head) * dim;
    const float* v = k + l.num_kv_heads * dim;
    if (norms) normalise(l.key_norm, k, 1, dim, k);
    rotate(l, k);
    for_vectors(dim, [&](int64_t c, int64_t some) {
      store(keys + slot * dim + c, load(k + c, some), some);
      store(values + slot * dim + c, load(v + c, some), some);
    });
    for (int64_t h = 0; h < group; ++h) {
      const int64_t head = kv_head * group + h;
      if (norms) normalise(l.query_norm, q + h * dim, 1, dim, q + h * dim);
      rotate(l, q + h * dim);
      for (int64_t c = 0; c < dim; ++c) q[h * dim + c] *= key_weights ? scale * key_weights[head] : scale;
      top[h] = sinks ? sinks[head] : -INFINITY;
      sum[h] = top[h] > -INFINITY ? 1.0f : 0.0f;
    }
    std::memset(out, 0, group * dim * sizeof(float));
    const int64_t filled = smaller(s.position + 1, l.slots);
    for (int64_t first = 0; first < filled; first += KEYS) {
      const int64_t some = smaller(KEYS, filled - first);
      const Matrix block = {keys + first * dim, nullptr, d.bfloat16 ? BFLOAT16 : FLOAT32, dim};
      multiply(block, tokens_of(block, q, group), 0, some, weights, KEYS);
      for (int64_t h = 0; l.cap > 0 && h < group; ++h)
        for (int64_t j = 0; j < some; ++j) weights[h * KEYS + j] = capped(weights[h * KEYS + j], l.cap);
      if (s.padding != nullptr) hide(l, text, first, some, group);
      for (int64_t h = 0; h < group; ++h) soften(weights + h * KEYS, some, top[h], sum[h], out + h * dim);
      int64_t h = 0;
      for (; h + 2 <= group; h += 2) add_values<2>(weights + h * KEYS, some, values + first * dim, out + h * dim);
      for (; h < group; ++h) add_values<1>(weights + h * KEYS, some, values + first * dim, out + h * dim);
    }
    float* to = s.attended + text * l.num_heads * dim + kv_head * group * dim;
    for (int64_t c = 0; c < group * dim; ++c) to[c] = sum[c / dim] == 0.0f ? 0.0f : out[c] / sum[c / dim];
  }

  // -inf as the score of padding.
  void hide(const Layer& l, int64_t text, int64_t first, int64_t some, int64_t group) const {
    const uint8_t* real = s.padding + text * (s.position + 1);
    for (int64_t j = 0; j < some; ++j) {
      const int64_t position = s.position - (s.position - (first + j) + l.slots) % l.slots;
      if (real[position]) continue;
      for (int64_t h = 0; h < group; ++h) attention[h * KEYS + j] = -INFINITY;
    }
  }

  // Scores of a block of keys become exp(score - top), where `top` is the largest so far; sum and output follow it.
  void soften(float* weights, int64_t some, float& top, float& sum, float* out) const {
    for (int64_t j = some; j % WIDTH != 0; ++j) weights[j] = -INFINITY;
    float larger_top = top;
    for (int64_t j = 0; j < some; ++j) larger_top = weights[j] > larger_top ? weights[j] : larger_top;
    const float shift = larger_top > -INFINITY ? larger_top : 0.0f;  // all keys are padding so far
    const float factor = std::exp(top - shift);
    Floats sums = {};
    for (int64_t j = 0; j < some; j += WIDTH) {
      const Floats exponentials = exponential(load(weights + j) - shift);
      store(weights + j, exponentials);
      sums += exponentials;
    }
    sum = sum * factor + ::sum(sums);
    if (factor != 1.0f)
      for (int64_t c = 0; c < d.head_dim; ++c) out[c] *= factor;
    top = larger_top;
  }

  // out += weights @ values, for HEADS heads
  template <int HEADS, typename Number>
  void add_values(const float* weights, int64_t some, const Number* values, float* out) const {
    constexpr int VECTORS = 4;
    int64_t c = 0;
    for (; c + VECTORS * WIDTH <= d.head_dim; c += VECTORS * WIDTH)
      add_columns<HEADS, VECTORS>(weights, some, values + c, out + c, WIDTH);
    for (; c < d.head_dim; c += WIDTH)
      add_columns<HEADS, 1>(weights, some, values + c, out + c, smaller(WIDTH, d.head_dim - c));
  }
  template <int HEADS, int VECTORS, typename Number>
  void add_columns(const float* weights, int64_t some, const Number* values, float* out, int64_t count) const {
    Floats sums[HEADS][VECTORS];
    for (int h = 0; h < HEADS; ++h)
      for (int i = 0; i < VECTORS; ++i) sums[h][i] = load(out + h * d.head_dim + i * WIDTH, count);
    for (int64_t j = 0; j < some; ++j) {
      for (int i = 0; i < VECTORS; ++i) {
        const Floats value = load(values + j * d.head_dim + i * WIDTH, count);
        for (int h = 0; h < HEADS; ++h) sums[h][i] += weights[h * KEYS + j] * value;
      }
    }
    for (int h = 0; h < HEADS; ++h)
      for (int i = 0; i < VECTORS; ++i) store(out + h * d.head_dim + i * WIDTH, sums[h][i], count);
  }

  // ---- x + sum over chosen experts e of weight_e * down_e(act(gate_e(n)) * up_e(n)) with n = ffn_norm(x) ------------

  void feed_forward(const Layer& l) {
    if (!l.parallel) norm_stream(l.ffn_norm);
    clear(l.ffn_post_norm);
    route(l);
    const Tokens tokens = tokens_of(l.gate, normed, s.batch);
    int64_t chosen = 0;
    for (int64_t e = 0; e < l.num_experts; ++e) chosen += first_pair[e] < first_pair[e + 1];
    take_rows(chosen * l.ff_dim, [&](Span units) {
      for (int64_t e = 0; e < l.num_experts && units.last > 0; ++e) {
        if (first_pair[e] == first_pair[e + 1]) continue;
        if (units.first < l.ff_dim) activate(l, e, tokens, {larger(units.first, 0), smaller(units.last, l.ff_dim)});
        units = {units.first - l.ff_dim, units.last - l.ff_dim};
      }
    });
    barrier();
    const Tokens hidden = tokens_of(l.down, s.hidden, first_pair[l.num_experts]);
    take_rows(d.hidden_dim, [&](Span rows) {
      for (int64_t e = 0; e < l.num_experts; ++e)
        if (first_pair[e] < first_pair[e + 1]) add_expert(l, e, hidden, rows);
    });
    barrier();
    add(l.ffn_post_norm);
  }

  // Which experts each token gets: the pairs of expert e are first_pair[e] .. first_pair[e + 1] - 1.
  void route(const Layer& l) {
    if (l.router.data == nullptr) {
      first_pair[0] = 0, first_pair[1] = s.batch;
      for (int64_t t = 0; t < s.batch; ++t) token_of[t] = t, share[t] = 1.0f;
      return;
    }
    const Tokens tokens = tokens_of(l.router, normed, s.batch);
    const Numbers bias = s.vector(l.router_bias);
    take_rows(l.num_experts, [&](Span rows) {
      multiply(l.router, tokens, rows.first, rows.last, s.scores + rows.first, l.num_experts);
      for (int64_t t = 0; bias && t < s.batch; ++t)
        for (int64_t e = rows.first; e < rows.last; ++e) s.scores[t * l.num_experts + e] += bias[e];
    });
    barrier();
    float* weights = share + s.batch * l.top_k;  // by token and choice; sorted by expert into `share`
    for (int64_t t = 0; t < s.batch; ++t)
      choose(l, s.scores + t * l.num_experts, expert_of + t * l.top_k, weights + t * l.top_k);
    int64_t pair = 0;
    for (int64_t e = 0; e < l.num_experts; ++e) {
      first_pair[e] = pair;
      for (int64_t choice = 0; choice < s.batch * l.top_k; ++choice)
        if (expert_of[choice] == e) token_of[pair] = choice / l.top_k, share[pair++] = weights[choice];
    }
    first_pair[l.num_experts] = pair;
  }

  // The experts with the largest scores, best first (NaN is the largest, as in torch), and the softmax of their scores.
  static void choose(const Layer& l, const float* scores, int64_t* experts, float* weights) {
    float sum = 0;
    for (int64_t k = 0; k < l.top_k; ++k) {
      int64_t best = -1;
      for (int64_t e = 0; e < l.num_experts; ++e) {
        bool taken = false;
        for (int64_t before = 0; before < k; ++before) taken = taken || experts[before] == e;
        if (taken) continue;
        if (best < 0 || scores[e] > scores[best] || (scores[e] != scores[e] && scores[best] == scores[best])) best = e;
      }
      experts[k] = best;
      weights[k] = std::exp(scores[best] - scores[experts[0]]);
      sum += weights[k];
    }
    for (int64_t k = 0; k < l.top_k; ++k) weights[k] /= sum;
  }

  // hidden = act(gate(tokens)) * up(tokens) of some units of an expert, for its tokens
  void activate(const Layer& l, int64_t e, Tokens tokens, Span units) {
    const int64_t pair = first_pair[e], count = first_pair[e + 1] - pair;
    if (count < s.batch) {
      for (int64_t n = 0; n < count; ++n)
        std::memcpy(gathered + n * tokens.bytes, tokens.data + token_of[pair + n] * tokens.bytes, tokens.bytes);
      tokens = {gathered, tokens.bytes, count};
    }
    const bool in_turns = l.gated && l.up.data == nullptr;
    const Numbers gate_bias = s.vector(l.gate_bias), up_bias = s.vector(in_turns ? l.gate_bias : l.up_bias);
    const int64_t step = in_turns ? 2 : 1;
    for (int64_t u = units.first; u < units.last; u += TILE) {
      const int64_t some = smaller(TILE, units.last - u), at = e * l.ff_dim + u;
      float *gates = tile, *ups = tile + (in_turns ? 1 : 2 * TILE * s.batch);
      multiply(l.gate, tokens, step * at, step * (at + some), gates, 2 * TILE);
      if (l.gated && !in_turns) multiply(l.up, tokens, at, at + some, ups, 2 * TILE);
      for (int64_t n = 0; n < count; ++n) {
        float gate[TILE] = {}, up[TILE] = {};
        pick(gate, gates + n * 2 * TILE, some, step, gate_bias, step * at);
        if (l.gated) pick(up, ups + n * 2 * TILE, some, step, up_bias, step * at + step - 1);
        if (l.activation == SILU && l.gated) {  // most models, and a loop without branches
          for (int64_t i = 0; i < some; i += WIDTH) store(gate + i, load(gate + i) * sigmoid(load(gate + i)) * load(up + i));
        } else {
          for (int64_t i = 0; i < some; i += WIDTH) store(gate + i, activated(l, load(gate + i), load(up + i)));
        }
        std::memcpy(s.hidden + (pair + n) * l.ff_dim + u, gate, some * sizeof(float));
      }
    }
  }

  // Every number, or every second one, and its bias.
  static void pick(float* to, const float* from, int64_t some, int64_t step, Numbers bias, int64_t at) {
    if (step == 1) std::memcpy(to, from, some * sizeof(float));
    for (int64_t i = 0; step == 2 && i < some; ++i) to[i] = from[2 * i];
    for (int64_t i = 0; bias && i < some; ++i) to[i] += bias[at + step * i];
  }

  // x += weight * down(hidden) in some rows, for the tokens of an expert
  void add_expert(const Layer& l, int64_t e, Tokens all, Span rows) {
    const int64_t pair = first_pair[e], count = first_pair[e + 1] - pair;
    const Numbers bias = s.vector(l.down_bias);
    const Tokens hidden = {all.data + pair * all.bytes, all.bytes, count};
    for (int64_t r = rows.first; r < rows.last; r += TILE) {
      const int64_t some = smaller(TILE, rows.last - r), at = e * d.hidden_dim + r;
      multiply(l.down, hidden, at, at + some, tile, TILE);
      for (int64_t n = 0; n < count; ++n) {
        float* x = sum_of(l.ffn_post_norm) + token_of[pair + n] * d.hidden_dim + r;
        for (int64_t i = 0; i < some; ++i)
          x[i] += share[pair + n] * (tile[n * TILE + i] + (bias ? bias[at + i] : 0.0f));
      }
    }
  }
};

}  // namespace

// Nothing is written if a token is none of the vocabulary.
EXPORT(decode_step)
(const int64_t* tokens, const uint8_t* padding, float* logits, const Decoder* decoder, int64_t batch, int64_t position,
 int64_t, int64_t, int64_t threads) {
  const Decoder& d = *decoder;
  for (int64_t t = 0; t < batch; ++t)
    if (tokens[t] < 0 || tokens[t] >= d.vocab_size) return UNKNOWN_TOKEN;
  int64_t heads = 0, attended = 0, group = 0, experts = 1, top_k = 1, hidden = 0, widest = d.hidden_dim;
  for (int64_t i = 0; i < d.num_layers; ++i) {
    const Layer& l = d.layers[i];
    heads = larger(heads, (l.num_heads + 2 * l.num_kv_heads) * d.head_dim);
    attended = larger(attended, l.num_heads * d.head_dim);
    group = larger(group, l.num_heads / l.num_kv_heads);
    widest = larger(widest, larger(l.output.width, l.down.width));
    if (l.ff_dim == 0) continue;
    experts = larger(experts, l.num_experts);
    top_k = larger(top_k, l.top_k);
    hidden = larger(hidden, l.top_k * l.ff_dim);
  }
  int64_t result = DONE;
  const Buffer<float> shared(batch * (2 * d.hidden_dim + heads + attended + experts + hidden));
  float* x = shared;
  float* at_heads = x + batch * d.hidden_dim;
  float* at_attended = at_heads + batch * heads;
  float* at_scores = at_attended + batch * attended;
  float* at_hidden = at_scores + batch * experts;
  float* at_added = at_hidden + batch * hidden;
  const int64_t counts = 2 * threads * (8 * d.num_layers + 1);  // of shared loops; the last one is for the output
  const Buffer<int64_t> taken(counts);
  if (shared == nullptr || taken == nullptr) return NO_MEMORY;
  std::memset(taken, 0, counts * sizeof(int64_t));
  const Step step = {d, tokens, padding, logits, batch, position, x, at_heads, at_attended, at_scores, at_hidden,
                     at_added, taken, &result};
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
#ifdef _OPENMP
    Thread(step, omp_get_thread_num(), omp_get_num_threads(), experts, top_k, group, widest).run();
#else
    Thread(step, 0, 1, experts, top_k, group, widest).run();
#endif
  }
  return result;
}
