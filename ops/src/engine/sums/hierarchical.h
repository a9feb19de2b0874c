// Sums in two levels: first within each node, where MPI uses shared memory, then between nodes. An Adder (allreduce.h)
// makes `Levels` before its first sum and keeps them. The result has the same bits on all ranks.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/types.h"

namespace matex {

// The communicators of a sum in two levels. The buffer is divided into segments. On each node, each segment has one
// carrier: the rank that sums the segment within the node and then with the carriers of the same segment on the other
// nodes. There are as many segments as the smallest node has ranks, and the first ranks of each node carry them. With 3
// ranks on one node and 2 on another, there are 2 segments; the first two ranks of each node carry them.
struct Levels {
  MPI_Comm within = MPI_COMM_NULL;  // the ranks of this node
  MPI_Comm across = MPI_COMM_NULL;  // the carriers of this rank's segment on all nodes; null if it carries none
  int nodes = 1;                    // the number of nodes
  int carriers = 1;                 // the number of carriers on each node, and of segments
  bool equal_nodes = false;         // whether all nodes have the same number of ranks
  // positions[r]: rank r's position when ranks are ordered by their number within the node, then by node. Filled by
  // MakePositions, for the reduce-scatter and the all-gather below. These sort the elements by the positions of the
  // ranks that own them, because MPI needs the elements of a carrier's segment to be contiguous.
  std::vector<int> positions;
};

// Collective over `communicator`; each rank passes the number of its node. Returns an MPI error code.
int MakeLevels(MPI_Comm communicator, int node, Levels* levels);

// Fills `positions`. Collective over the same communicator; requires `equal_nodes`.
int MakePositions(MPI_Comm communicator, Levels* levels);

// A function that sums one segment over the nodes. `segment` points to elements [first, first + count) of the data,
// which are sums within this node; the function replaces them by the sums over all nodes. Returns an MPI error code.
using AcrossNodes = std::function<int(void* segment, int64_t first, int64_t count)>;

// Replaces `data` by the sum over all ranks, with the same bits on all ranks, in three moves. A reduce-scatter within
// the node gives each carrier its segment, `sum_segment` sums the segment over the nodes, and an all-gather within the
// node gives each rank all segments. `asleep`: sleep during waits instead of polling in MPI, so that other threads can
// compute. `buffer` is working memory, which grows as needed.
int SumInTwoLevels(const Levels& levels, void* data, int64_t count, Type type, bool asleep, std::vector<char>* buffer,
                   const AcrossNodes& sum_segment);

// The two halves of the sum. Rank r owns the elements from data[starts[r]] up to data[starts[r + 1]]. The
// reduce-scatter replaces each rank's own elements by their sums over all ranks. The all-gather takes each rank's own
// elements, and writes the elements of all ranks to `data`. Both need `positions`.
int ReduceScatterInTwoLevels(const Levels& levels, void* data, const std::vector<int64_t>& starts, Type type,
                             bool asleep, std::vector<char>* buffer);
int AllgatherInTwoLevels(const Levels& levels, void* data, const std::vector<int64_t>& starts, Type type, bool asleep,
                         std::vector<char>* buffer);

}  // namespace matex
