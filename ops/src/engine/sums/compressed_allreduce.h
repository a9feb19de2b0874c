// The sum of a float32 buffer over ranks whose numbers are sent compressed (compression.h). allreduce.cc calls it for
// compressed transfers. Result plus residuals equal the exact sum, so compression delays numbers and loses none.
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
// residual[i] = the error that this rank keeps: summed over ranks, the exact sum minus the result. `extents` are the
// ranges of single gradients in [0, count). Memory: a few times `data`, and `max_bytes`. Returns an MPI error code.
//
// In 16 bits, each rank receives its segment from all others, sums it in float32, rounds the sum once and sends it to
// all: half the bytes of a ring. With top-k (Aji and Heafield, Sparse communication for distributed gradient descent,
// 2017, with a threshold for each gradient) each rank receives the indices and values of all ranks.
int SumCompressed(const Calls& calls, const Compression& compression, const std::vector<Extent>& extents,
                  int64_t count, int64_t max_bytes, float* data, float* residual);

}  // namespace matex
