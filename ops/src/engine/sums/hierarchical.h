// Sums in two levels: within each node, where MPI uses shared memory, then between nodes. An Adder makes `Levels`
// before its first sum and keeps them. Node numbers must be known. The result has the same bits on all ranks.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/types.h"

namespace matex {

// The communicators of a sum in two levels. The buffer is divided into segments; on each node one rank, the carrier,
// handles each segment. The carriers are the first `carriers` ranks of the node: the smallest number of ranks on any
// node. With 3 ranks on one node and 2 on another, there are 2 segments; the first two ranks of each node carry them.
// `within` joins the ranks of a node, `across` the carriers of one segment on all nodes.
struct Levels {
  MPI_Comm within = MPI_COMM_NULL;
  MPI_Comm across = MPI_COMM_NULL;  // null on a rank that handles no segment
  int nodes = 1;                    // the number of nodes
  int carriers = 1;
  bool even = false;  // whether all nodes have the same number of ranks
  // positions[r]: rank r's position when ranks are ordered by local rank, then by node. Filled by MakePositions; only
  // the reduce-scatter and the all-gather use it.
  std::vector<int> positions;
};

// Collective over `communicator`; each rank passes the number of its node. Returns an MPI error code.
int MakeLevels(MPI_Comm communicator, int node, Levels* levels);

// Fills `positions`. Collective over the same communicator; all nodes must have the same number of ranks.
int MakePositions(MPI_Comm communicator, Levels* levels);

// Replaces numbers [first, first + count) of the buffer, at `segment`, by their sum. Returns an MPI error code.
using AcrossNodes = std::function<int(void* segment, int64_t first, int64_t count)>;

// data = the sum over all ranks, the same bits on all: a reduce-scatter within the node, `across` for each carrier's
// segment, and an all-gather within the node. `asleep`: see sleeping_wait.h. `buffer` grows as needed.
int SumInTwoLevels(const Levels& levels, void* data, int64_t count, Type type, bool asleep, std::vector<char>* buffer,
                   const AcrossNodes& across);

// The two halves of the sum: rank r owns data[starts[r]] up to data[starts[r + 1]] (ring.h). They need `positions`.
int ReduceScatterInTwoLevels(const Levels& levels, void* data, const std::vector<int64_t>& starts, Type type,
                             bool asleep, std::vector<char>* buffer);
int AllgatherInTwoLevels(const Levels& levels, void* data, const std::vector<int64_t>& starts, Type type, bool asleep,
                         std::vector<char>* buffer);

}  // namespace matex
