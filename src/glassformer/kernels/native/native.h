// What every source of the library needs. LEVEL is the instruction set that this copy is compiled for (__init__.py).
#pragma once

#include <cstdint>
#include <cstdlib>

#define GLASSFORMER_JOINED(name, level) glassformer_##name##_##level
#define GLASSFORMER_NAMED(name, level) GLASSFORMER_JOINED(name, level)
// The name of this level's copy of a function, which has C linkage, pointers, int64_t and double as arguments, and a Result.
#define EXPORT(name) extern "C" int64_t GLASSFORMER_NAMED(name, LEVEL)
// To call it from another source.
#define CALL(name) GLASSFORMER_NAMED(name, LEVEL)

enum Result : int64_t { DONE, NO_MEMORY, UNKNOWN_TOKEN };

namespace {

// Memory to work in, which nothing else holds; without any it is null, and the function says NO_MEMORY.
template <typename Number>
struct Buffer {
  Number* data;
  explicit Buffer(int64_t count)
      : data(static_cast<Number*>(std::aligned_alloc(64, (count * sizeof(Number) / 64 + 1) * 64))) {}
  Buffer(const Buffer&) = delete;
  ~Buffer() { std::free(data); }
  operator Number*() const { return data; }
};

}  // namespace
