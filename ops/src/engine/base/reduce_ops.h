// The arithmetic of reductions: scaling a buffer by a weight, and the MPI_Op that combines two of them.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/types.h"

namespace matex {

enum class Reduction { kSum, kMean, kMin, kMax };

const char* NameOf(Reduction reduction);

// The reduction of this name, one of those that the ops allow.
Reduction ReductionOf(const std::string& name);

// Whether sums of `type` go by way of float32, so that they are rounded once, whatever the number of ranks.
bool IsHalf(Type type);

// 16-bit floats as float32, and back.
void Widen(Type type, const void* from, float* to, int64_t count);
void Narrow(Type type, const float* from, void* to, int64_t count);

// The MPI_Op for `type`. Sums of 16-bit floats are rounded wherever two are combined. Minima and maxima of floats
// carry NaN on, whichever rank has it: MPI_MIN and MPI_MAX may give one rank the NaN and another the number.
MPI_Op MpiOp(Type type, Reduction reduction);

// to = weight * from, for float types; `from` may be `to`. A weight of 0 selects zeros: 0 x NaN would be NaN.
void Scale(Type type, const void* from, void* to, int64_t count, double weight);

// to = one + other; `to` may be one of them.
void Add(Type type, const void* one, const void* other, void* to, int64_t count);

// to = the sum of all `parts`, two or more, in their order; `to` may be one of them. 16-bit floats are added in float32 and
// rounded once.
void AddAll(Type type, const std::vector<const void*>& parts, void* to, int64_t count);

// data = data / divisor: integers are cut towards zero, as in tf.reduce_mean.
void Divide(Type type, void* data, int64_t count, int divisor);

}  // namespace matex
