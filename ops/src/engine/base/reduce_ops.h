// The arithmetic of reductions: scaling, adding and dividing buffers, and the MPI_Op of each type. Updates, inline and
// overlapped, and the other collectives use it. 16-bit floats are computed in float32.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/types.h"

namespace matex {

enum class Reduction : int { kSum, kMean, kMin, kMax };

const char* NameOf(Reduction reduction);

// The reduction with this name, which the op's attribute has checked.
Reduction ReductionOf(const std::string& name);

// Whether `type` is a 16-bit float. Sums of such types are computed in float32, so that they are rounded once.
bool IsHalf(Type type);

// Conversion of arrays of 16-bit floats to float32 and back.
void Widen(Type type, const void* from, float* to, int64_t count);
void Narrow(Type type, const float* from, void* to, int64_t count);

// The MPI_Op of `type`. Sums of 16-bit floats round at each combination. Minima and maxima propagate NaN, because with
// MPI_MIN and MPI_MAX one rank may get the NaN and another the number.
MPI_Op MpiOp(Type type, Reduction reduction);

// to = weight * from, for float types; `to` may be `from`. Weight 0 gives zeros, also for NaN.
void Scale(Type type, const void* from, void* to, int64_t count, double weight);

// to = one + other; `to` may be one of them.
void Add(Type type, const void* one, const void* other, void* to, int64_t count);

// to = the sum of `parts`, two or more, in order; `to` may be one of them. 16-bit floats are rounded only once.
void AddAll(Type type, const std::vector<const void*>& parts, void* to, int64_t count);

// data = data / divisor; integers are truncated towards zero, as in tf.reduce_mean. No effect on bools.
void Divide(Type type, void* data, int64_t count, int divisor);

}  // namespace matex
