// SwiGLU, RMSNorm, the rotation of pairs and the cross entropy, forward and backward, each in one pass over memory.
//
// Everything is computed in float32, for every row in one order, whatever the number of rows or threads is.

#include "vector.h"

#include <cmath>

namespace {

// ---- SwiGLU: g sigmoid(alpha g) (u + shift) with g <= limit and |u| <= limit ------------------------------------------

struct Gate {
  float alpha, limit, shift;
};

inline Floats clamped(Floats x, float limit) { return x > limit ? filled(limit) : x; }
inline Floats clamped_both(Floats x, float limit) { return clamped(x < -limit ? filled(-limit) : x, limit); }

template <class T>
void swiglu(const T* gate, const T* up, T* out, int64_t size, Gate k, int64_t threads) {
  in_parallel(size, threads, [=](int64_t first, int64_t last) {
    for_vectors(last - first, [=](int64_t i, int64_t count) {
      const Floats g = clamped(load(gate + first + i, count), k.limit);
      const Floats u = clamped_both(load(up + first + i, count), k.limit);
      store(out + first + i, g * sigmoid(g * k.alpha) * (u + k.shift), count);
    });
  });
}

template <class T>
void swiglu_backward(const T* grad, const T* gate, const T* up, T* d_gate, T* d_up, int64_t size, Gate k,
                     int64_t threads) {
  in_parallel(size, threads, [=](int64_t first, int64_t last) {
    for_vectors(last - first, [=](int64_t i, int64_t count) {
      const Floats d = load(grad + first + i, count);
      const Floats g_in = load(gate + first + i, count), u_in = load(up + first + i, count);
      const Floats g = clamped(g_in, k.limit), u = clamped_both(u_in, k.limit), s = sigmoid(g * k.alpha);
      const Floats to_gate = d * (u + k.shift) * s * (1.0f + g * k.alpha * (1.0f - s)), to_up = d * g * s;
      store(d_gate + first + i, g_in > k.limit ? Floats{} : to_gate, count);  // NaN stays
      store(d_up + first + i, ((u_in > k.limit) | (u_in < -k.limit)) ? Floats{} : to_up, count);
    });
  });
}

// ---- RMSNorm ----------------------------------------------------------------------------------------------------------

// inverse[row] = 1 / sqrt(mean(x^2) + eps);  out = x inverse weight
template <class T>
void rms_norm(const T* x, const float* weight, T* out, float* inverse, int64_t rows, int64_t size, float eps,
              int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > 1 << 15)
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = x + row * size;
    Floats squares = {};
    for_vectors(size, [&](int64_t i, int64_t count) {
      const Floats value = load(from + i, count);
      squares += value * value;
    });
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps);
    inverse[row] = scale;
    T* to = out + row * size;
    for_vectors(size, [&](int64_t i, int64_t count) {
      store(to + i, load(from + i, count) * scale * load(weight + i, count), count);
    });
  }
}

// d_x = inverse (g w - n mean(g w n)) with n = x inverse; d_weight[part] = sum over the part's rows of g n.
template <class T>
void rms_norm_backward(const T* grad, const T* x, const float* weight, const float* inverse, T* d_x, float* d_weight,
                       int64_t rows, int64_t size, int64_t parts, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > 1 << 15)
  for (int64_t part = 0; part < parts; ++part) {
    float* sums = d_weight + part * size;
    std::memset(sums, 0, size * sizeof(float));
    for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) {
      const T *g = grad + row * size, *from = x + row * size;
      const float scale = inverse[row];
      Floats products = {};
      for_vectors(size, [&](int64_t i, int64_t count) {
        const Floats flow = load(g + i, count) * (load(from + i, count) * scale);
        store(sums + i, load(sums + i, count) + flow, count);
        products += flow * load(weight + i, count);
      });
      const float mean = sum(products) / static_cast<float>(size);
      T* to = d_x + row * size;
      for_vectors(size, [&](int64_t i, int64_t count) {
        const Floats normed = load(from + i, count) * scale;
        store(to + i, (load(g + i, count) * load(weight + i, count) - normed * mean) * scale, count);
      });
    }
  }
}

// ---- rotation: a' = a cos - b sin, b' = b cos + a sin, for coordinates (a, b) of the first and the second half ---------

template <class T>
void rotate(const T* x, const T* cos, const T* sin, T* out, const int64_t* size, const int64_t* from,
            const int64_t* to, int64_t threads) {
  const int64_t heads = size[1], positions = size[2], half = size[3] / 2;
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (size[0] * heads * positions * half > 1 << 14)
  for (int64_t batch = 0; batch < size[0]; ++batch)
    for (int64_t position = 0; position < positions; ++position)
      for (int64_t head = 0; head < heads; ++head) {
        const T* source = x + batch * from[0] + head * from[1] + position * from[2];
        T* target = out + batch * to[0] + head * to[1] + position * to[2];
        for_vectors(half, [&](int64_t i, int64_t count) {
          const Floats a = load(source + i, count), b = load(source + half + i, count);
          const Floats c = load(cos + position * half + i, count), s = load(sin + position * half + i, count);
          store(target + i, a * c - b * s, count);
          store(target + half + i, b * c + a * s, count);
        });
      }
}

// ---- cross entropy ----------------------------------------------------------------------------------------------------

// loss[row] = lse[row] - logit of the target with lse = log sum exp; 0 for ignored rows, NaN for an unknown target.
template <class T>
void cross_entropy(const T* logits, const int64_t* targets, float* loss, float* lse, int64_t rows, int64_t size,
                   int64_t ignored, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > 1 << 14)
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = logits + row * size;
    Floats most = filled(-INFINITY), total = {};
    const int64_t whole = size / WIDTH * WIDTH;
    float highest = -INFINITY, rest = 0;
    for (int64_t i = 0; i < whole; i += WIDTH) most = larger(load(from + i), most);
    highest = largest(most);
    float tail[WIDTH];
    for (int64_t i = 0; i < WIDTH; ++i) tail[i] = -INFINITY;
    if (whole < size) {
      store(tail, load(from + whole, size - whole));
      for (int64_t i = size - whole; i < WIDTH; ++i) tail[i] = -INFINITY;
      const float last = largest(load(tail));
      highest = last > highest ? last : highest;
    }
    for (int64_t i = 0; i < whole; i += WIDTH) total += exponential(load(from + i) - highest);
    if (whole < size) total += exponential(load(tail) - highest);
    rest = highest + std::log(sum(total));
    lse[row] = rest;
    const int64_t target = targets[row];
    const bool known = target >= 0 && target < size;
    loss[row] = target == ignored ? 0.0f : known ? rest - load(from + target, 1)[0] : NAN;
  }
}

// d_logits = (exp(logits - lse) - [target]) scale; 0 for ignored rows.
template <class T>
void cross_entropy_backward(const T* logits, const int64_t* targets, const float* lse, T* d_logits, int64_t rows,
                            int64_t size, int64_t ignored, float scale, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > 1 << 14)
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = logits + row * size;
    T* to = d_logits + row * size;
    const int64_t target = targets[row];
    if (target == ignored) {
      std::memset(to, 0, size * sizeof(T));
      continue;
    }
    const float shift = lse[row];
    for_vectors(size, [&](int64_t i, int64_t count) {
      store(to + i, exponential(load(from + i, count) - shift) * scale, count);
    });
    store(to + target, (exponential(load(from + target, 1) - shift) - 1.0f) * scale, 1);
  }
}

}  // namespace

#define BOTH_DTYPES(function)    \
  function(float32, float)       \
  function(bfloat16, BFloat16)

#define FUNCTIONS(dtype, T)                                                                                             \
  EXPORT(swiglu_##dtype)                                                                                                \
  (const T* gate, const T* up, T* out, int64_t size, double alpha, double limit, double shift, int64_t threads) {       \
    swiglu(gate, up, out, size, Gate{(float)alpha, (float)limit, (float)shift}, threads);                               \
    return DONE;                                                                                                        \
  }                                                                                                                     \
  EXPORT(swiglu_backward_##dtype)                                                                                       \
  (const T* grad, const T* gate, const T* up, T* d_gate, T* d_up, int64_t size, double alpha, double limit,             \
   double shift, int64_t threads) {                                                                                     \
    swiglu_backward(grad, gate, up, d_gate, d_up, size, Gate{(float)alpha, (float)limit, (float)shift}, threads);       \
    return DONE;                                                                                                        \
  }                                                                                                                     \
  EXPORT(rms_norm_##dtype)                                                                                              \
  (const T* x, const float* weight, T* out, float* inverse, int64_t rows, int64_t size, double eps, int64_t threads) {  \
    rms_norm(x, weight, out, inverse, rows, size, (float)eps, threads);                                                 \
    return DONE;                                                                                                        \
  }                                                                                                                     \
  EXPORT(rms_norm_backward_##dtype)                                                                                     \
  (const T* grad, const T* x, const float* weight, const float* inverse, T* d_x, float* d_weight, int64_t rows,         \
   int64_t size, int64_t parts, int64_t threads) {                                                                      \
    rms_norm_backward(grad, x, weight, inverse, d_x, d_weight, rows, size, parts, threads);                             \
    return DONE;                                                                                                        \
  }                                                                                                                     \
  EXPORT(rotate_##dtype)                                                                                                \
  (const T* x, const T* cos, const T* sin, T* out, int64_t batch, int64_t heads, int64_t positions, int64_t head_dim,   \
   int64_t threads, int64_t from_batch, int64_t from_head, int64_t from_position, int64_t to_batch, int64_t to_head,    \
   int64_t to_position) {                                                                                               \
    const int64_t size[] = {batch, heads, positions, head_dim}, from[] = {from_batch, from_head, from_position};        \
    const int64_t to[] = {to_batch, to_head, to_position};                                                              \
    rotate(x, cos, sin, out, size, from, to, threads);                                                                  \
    return DONE;                                                                                                        \
  }                                                                                                                     \
  EXPORT(cross_entropy_##dtype)                                                                                         \
  (const T* logits, const int64_t* targets, float* loss, float* lse, int64_t rows, int64_t size, int64_t ignored,       \
   int64_t threads) {                                                                                                   \
    cross_entropy(logits, targets, loss, lse, rows, size, ignored, threads);                                            \
    return DONE;                                                                                                        \
  }                                                                                                                     \
  EXPORT(cross_entropy_backward_##dtype)                                                                                \
  (const T* logits, const int64_t* targets, const float* lse, T* d_logits, int64_t rows, int64_t size,                  \
   int64_t ignored, double scale, int64_t threads) {                                                                    \
    cross_entropy_backward(logits, targets, lse, d_logits, rows, size, ignored, (float)scale, threads);                 \
    return DONE;                                                                                                        \
  }

BOTH_DTYPES(FUNCTIONS)
