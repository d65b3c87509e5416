// What every source of the library needs. LEVEL is the instruction set that this copy is compiled for (__init__.py).
#pragma once

#include <cstdint>

#define GLASSFORMER_JOINED(name, level) glassformer_##name##_##level
#define GLASSFORMER_NAMED(name, level) GLASSFORMER_JOINED(name, level)
// The name of this level's copy of a function, which has C linkage, no result, pointers and int64_t as arguments.
#define EXPORT(name) extern "C" void GLASSFORMER_NAMED(name, LEVEL)
// To call it from another source.
#define CALL(name) GLASSFORMER_NAMED(name, LEVEL)
