// The nodes that ranks are on, and sums in two levels: within a node by its shared memory, then from node to node.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/types.h"

namespace matex {

// The communicators of a sum in two levels. Of each node the first `carriers` ranks, as many as the smallest node has,
// carry a slice each; those that carry the same one are `across`, one of each node.
struct Levels {
  MPI_Comm within = MPI_COMM_NULL;
  MPI_Comm across = MPI_COMM_NULL;  // null on a rank that carries nothing
  int nodes = 1;
  int carriers = 1;
  bool even = false;  // whether all nodes have as many ranks
  // Of each rank, which it is if the first ranks of all nodes are counted first, then the second ones; empty until
  // `MakePlaces`, which only what ranks own in parts needs.
  std::vector<int> places;
};

// Of the ranks of `communicator`, which call it together, each with the number of its node. Returns an error code of MPI.
int MakeLevels(MPI_Comm communicator, int node, Levels* levels);

// The places of ranks on nodes that are even; of the same communicator, whose ranks call it together.
int MakePlaces(MPI_Comm communicator, Levels* levels);

// Numbers [first, first + count) at `slice`, which are to become their sum over `across`. Returns an error code of MPI.
using AcrossNodes = std::function<int(void* slice, int64_t first, int64_t count)>;

// data = the sum over all ranks, the same bits on all: the node's sum, scattered over its carriers, each carrier's slice
// summed by `across`, and the slices gathered. `asleep`: see await.h. `buffer` grows as it must.
int SumInTwoLevels(const Levels& levels, void* data, int64_t count, Type type, bool asleep, std::vector<char>* buffer,
                   const AcrossNodes& across);

// The halves of it where rank r owns data[starts[r]] up to data[starts[r + 1]], as in ring.h. Levels must have places.
int ReduceScatterInTwoLevels(const Levels& levels, void* data, const std::vector<int64_t>& starts, Type type, bool asleep,
                             std::vector<char>* buffer);
int AllgatherInTwoLevels(const Levels& levels, void* data, const std::vector<int64_t>& starts, Type type, bool asleep,
                         std::vector<char>* buffer);

}  // namespace matex
