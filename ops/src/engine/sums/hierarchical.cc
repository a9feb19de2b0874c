#include "engine/sums/hierarchical.h"

#include <algorithm>

#include "engine/mpi/mpi_calls.h"

namespace matex {

int MakeLevels(MPI_Comm communicator, int node, Levels* levels) {
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  if (const int code = MPI_Comm_split(communicator, node, rank, &levels->within)) return code;
  int local = 0, local_size = 1;
  MPI_Comm_rank(levels->within, &local);
  MPI_Comm_size(levels->within, &local_size);
  // The smallest node, by the largest of the negative, and how many nodes there are, by their first ranks.
  int least = -local_size, nodes = local == 0;
  if (const int code = MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_INT, MPI_MAX, communicator)) return code;
  if (const int code = MPI_Allreduce(MPI_IN_PLACE, &nodes, 1, MPI_INT, MPI_SUM, communicator)) return code;
  levels->carriers = -least;
  levels->nodes = nodes;
  const int slice = local < levels->carriers ? local : MPI_UNDEFINED;
  return MPI_Comm_split(communicator, slice, rank, &levels->across);
}

int SumInTwoLevels(const Levels& levels, void* data, int64_t count, Type type, bool asleep, std::vector<char>* buffer,
                   const AcrossNodes& across) {
  const Calls within{levels.within, asleep};
  const int size = within.size(), mine = within.rank();
  if (size == 1) return across(data, 0, count);
  std::vector<int> counts(size, 0), starts(size, static_cast<int>(count));
  for (int64_t rank = 0, start = 0; rank < levels.carriers; ++rank) {
    counts[rank] = static_cast<int>(count / levels.carriers + (rank < count % levels.carriers));
    starts[rank] = static_cast<int>(start);
    start += counts[rank];
  }
  const size_t bytes = std::max<size_t>(counts[mine] * SizeOf(type), 1);
  if (buffer->size() < bytes) buffer->resize(bytes);
  void* const slice = buffer->data();
  if (const int code = within.ReduceScatter(data, slice, counts.data(), type)) return code;
  if (levels.across != MPI_COMM_NULL && levels.nodes > 1) {
    if (const int code = across(slice, starts[mine], counts[mine])) return code;
  }
  return within.Allgatherv(slice, data, counts.data(), starts.data(), type);
}

}  // namespace matex
