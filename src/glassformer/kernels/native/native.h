// Declarations of every source of the library. LEVEL is the instruction set that it is compiled for (__init__.py).
#pragma once

#include <cstdint>
#include <cstdlib>

#define GLASSFORMER_JOINED(name, level) glassformer_##name##_##level
#define GLASSFORMER_NAMED(name, level) GLASSFORMER_JOINED(name, level)
// Declares this level's copy of a function with C linkage. It takes pointers, int64_t and double, and returns a Result.
#define EXPORT(name) extern "C" int64_t GLASSFORMER_NAMED(name, LEVEL)
// Calls it from another source.
#define CALL(name) GLASSFORMER_NAMED(name, LEVEL)

enum Result : int64_t { DONE, NO_MEMORY, UNKNOWN_TOKEN };

namespace {

// Scratch memory, freed at the end of its scope. It is null if there is too little; the function then returns NO_MEMORY.
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
