// The functions of elementwise.cpp for one dtype, T: no header of its own, but a part of that file, read twice.

// ---- SwiGLU: g sigmoid(alpha g) (u + shift) with g <= limit and |u| <= limit ------------------------------------------

EXPORT_FOR_T(swiglu)
(const T* gate, const T* up, T* out, int64_t size, double alpha, double limit, double shift, int64_t threads) {
  const float a = static_cast<float>(alpha), most = static_cast<float>(limit), raised = static_cast<float>(shift);
  in_parallel(size, threads, [=](int64_t first, int64_t last) {
    for_vectors(last - first, [=](int64_t i, int64_t count) {
      const Floats g = clamped(load(gate + first + i, count), most);
      const Floats u = clamped_both(load(up + first + i, count), most);
      store(out + first + i, g * sigmoid(g * a) * (u + raised), count);
    });
  });
  return DONE;
}

EXPORT_FOR_T(swiglu_backward)
(const T* grad, const T* gate, const T* up, T* d_gate, T* d_up, int64_t size, double alpha, double limit, double shift,
 int64_t threads) {
  const float a = static_cast<float>(alpha), most = static_cast<float>(limit), raised = static_cast<float>(shift);
  in_parallel(size, threads, [=](int64_t first, int64_t last) {
    for_vectors(last - first, [=](int64_t i, int64_t count) {
      const Floats d = load(grad + first + i, count);
      const Floats g_in = load(gate + first + i, count), u_in = load(up + first + i, count);
      const Floats g = clamped(g_in, most), u = clamped_both(u_in, most), s = sigmoid(g * a);
      const Floats to_gate = d * (u + raised) * s * (1.0f + g * a * (1.0f - s)), to_up = d * g * s;
      store(d_gate + first + i, g_in > most ? Floats{} : to_gate, count);  // NaN stays
      store(d_up + first + i, ((u_in > most) | (u_in < -most)) ? Floats{} : to_up, count);
    });
  });
  return DONE;
}

// ---- RMSNorm ----------------------------------------------------------------------------------------------------------

// inverse[row] = 1 / sqrt(mean(x^2) + eps);  out = x inverse weight
EXPORT_FOR_T(rms_norm)
(const T* x, const float* weight, T* out, float* inverse, int64_t rows, int64_t size, double eps, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > 1 << 15)
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = x + row * size;
    Floats squares = {};
    for_vectors(size, [&](int64_t i, int64_t count) {
      const Floats value = load(from + i, count);
      squares += value * value;
    });
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + static_cast<float>(eps));
    inverse[row] = scale;
    T* to = out + row * size;
    for_vectors(size, [&](int64_t i, int64_t count) {
      store(to + i, load(from + i, count) * scale * load(weight + i, count), count);
    });
  }
  return DONE;
}

// d_x = inverse (g w - n mean(g w n)) with n = x inverse; d_weight[part] = sum over the part's rows of g n.
EXPORT_FOR_T(rms_norm_backward)
(const T* grad, const T* x, const float* weight, const float* inverse, T* d_x, float* d_weight, int64_t rows,
 int64_t size, int64_t parts, int64_t threads) {
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
  return DONE;
}

// ---- rotation: a' = a cos - b sin, b' = b cos + a sin, for coordinates (a, b) of the first and the second half ---------

EXPORT_FOR_T(rotate)
(const T* x, const T* cos, const T* sin, T* out, int64_t batches, int64_t heads, int64_t positions, int64_t head_dim,
 int64_t threads, int64_t from_batch, int64_t from_head, int64_t from_position, int64_t to_batch, int64_t to_head,
 int64_t to_position) {
  const int64_t half = head_dim / 2;
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (batches * heads * positions * half > 1 << 14)
  for (int64_t batch = 0; batch < batches; ++batch)
    for (int64_t position = 0; position < positions; ++position)
      for (int64_t head = 0; head < heads; ++head) {
        const T* source = x + batch * from_batch + head * from_head + position * from_position;
        T* target = out + batch * to_batch + head * to_head + position * to_position;
        for_vectors(half, [&](int64_t i, int64_t count) {
          const Floats a = load(source + i, count), b = load(source + half + i, count);
          const Floats c = load(cos + position * half + i, count), s = load(sin + position * half + i, count);
          store(target + i, a * c - b * s, count);
          store(target + half + i, b * c + a * s, count);
        });
      }
  return DONE;
}

// ---- cross entropy ----------------------------------------------------------------------------------------------------

// loss[row] = lse[row] - logit of the target with lse = log sum exp; 0 for ignored rows, NaN for an unknown target.
EXPORT_FOR_T(cross_entropy)
(const T* logits, const int64_t* targets, float* loss, float* lse, int64_t rows, int64_t size, int64_t ignored,
 int64_t threads) {
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
  return DONE;
}

// d_logits = (exp(logits - lse) - [target]) scale; 0 for ignored rows.
EXPORT_FOR_T(cross_entropy_backward)
(const T* logits, const int64_t* targets, const float* lse, T* d_logits, int64_t rows, int64_t size, int64_t ignored,
 double scale, int64_t threads) {
  const float factor = static_cast<float>(scale);
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
      store(to + i, exponential(load(from + i, count) - shift) * factor, count);
    });
    store(to + target, (exponential(load(from + target, 1) - shift) - 1.0f) * factor, 1);
  }
  return DONE;
}
