// The sum over ranks of numbers that travel compressed.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/mpi/mpi_calls.h"
#include "engine/layout/compression.h"

namespace matex {

// Numbers [begin, end) of a buffer, which are of one gradient.
struct Extent {
  int64_t begin;
  int64_t end;
};

// data[i] = the sum over the ranks of `calls` of what is sent of their data[i], for i in [0, count); the same bits on
// all. left[i] = what this rank keeps: over all ranks, the exact sum less the one that was made. `extents` are what of
// each gradient lies in [0, count). Of memory it takes a few times that of `data`, and `most_bytes`, whatever the number
// of ranks. Returns an error code of MPI.
//
// In 16 bits each rank gets its segment from all others, adds it up in float32, rounds the sum once and sends it to all:
// two calls that move half the bytes of a ring. Of the largest numbers (Aji and Heafield, Sparse communication for
// distributed gradient descent, 2017, with a threshold for each gradient) each rank gets all ranks' places and values.
int SumCompressed(const Calls& calls, const Compression& compression, const std::vector<Extent>& extents,
                  int64_t count, int64_t most_bytes, float* data, float* left);

}  // namespace matex
