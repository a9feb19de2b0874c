// The sum over ranks of a float32 buffer, whose numbers are sent compressed (compression.h). allreduce.cc calls it for
// compressed transfers. The result plus the residuals of all ranks equals the sum without compression, for finite
// numbers: so compression delays numbers and loses none.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/mpi/mpi_calls.h"
#include "engine/layout/compression.h"

namespace matex {

// Elements [begin, end) of a buffer, all of one gradient.
struct Extent {
  int64_t begin;
  int64_t end;
};

// data[i] = the sum over ranks of the numbers that are sent for data[i], i in [0, count); the same bits on all ranks.
// residual[i] = the error that this rank keeps. The sum of residual[i] over ranks is the sum without compression minus
// the result. `extents` are the ranges of single gradients in [0, count). Memory: a few times `data`, and `max_bytes`.
// Returns an MPI error code.
//
// In 16 bits, each rank receives the numbers of one segment from all other ranks, sums them in float32, rounds the sums
// once and sends them to all ranks: half the bytes of a ring. With top-k (Aji and Heafield, Sparse communication for
// distributed gradient descent, 2017, with a threshold for each gradient) each rank receives all indices and values.
int SumCompressed(const Calls& calls, const Compression& compression, const std::vector<Extent>& extents,
                  int64_t count, int64_t max_bytes, float* data, float* residual);

}  // namespace matex
