// SwiGLU, RMSNorm, the rotation of pairs and the cross entropy, forward and backward, each in one pass over memory.
//
// Everything is computed in float32, for every row in one order, whatever the number of rows or threads is.
// The functions are in elementwise.h, once for each dtype.

#include "vector.h"

#include <cmath>

namespace {

inline Floats clamped(Floats x, float limit) { return x > limit ? filled(limit) : x; }
inline Floats clamped_both(Floats x, float limit) { return clamped(x < -limit ? filled(-limit) : x, limit); }

}  // namespace

#define T float
#define EXPORT_FOR_T(name) EXPORT(name##_float32)
#include "elementwise.h"
#undef T
#undef EXPORT_FOR_T
#define T BFloat16
#define EXPORT_FOR_T(name) EXPORT(name##_bfloat16)
#include "elementwise.h"
