// Sums in two levels: within nodes, then between nodes. The elements are divided into segments; one rank of each node,
// the segment's carrier, sums it between nodes (hierarchical.h). For a reduce-scatter or all-gather, `Segments` first
// sorts the elements of all ranks, so that the carriers of a segment are the ranks that own its elements.
// Example: ranks 0 and 1 are on one node, ranks 2 and 3 on another. One segment has the elements of ranks 0 and 2, the
// first ranks of their nodes; the other has the elements of ranks 1 and 3. So the ranks' positions are 0, 2, 1, 3.
#include "engine/sums/hierarchical.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/mpi/mpi_calls.h"
#include "engine/sums/ring.h"

namespace matex {
namespace {

// The elements that ranks own, sorted by the ranks' positions (Levels::positions). The segment of a carrier contains
// the elements of the ranks with its local rank: one rank of each node.
struct Segments {
  Segments(const Levels& levels, const std::vector<int64_t>& starts, Type type, bool asleep, std::vector<char>* buffer)
      : levels(levels),
        starts(starts),
        width(static_cast<int64_t>(SizeOf(type))),
        within{levels.within, asleep},
        starts_by_position(levels.positions.size() + 1, 0),
        segment_counts(levels.carriers, 0),
        segment_starts(levels.carriers, 0) {
    // First the length at each position, shifted by one; then the sums of these lengths, which are the starts.
    for (size_t rank = 0; rank < levels.positions.size(); ++rank)
      starts_by_position[levels.positions[rank] + 1] = starts[rank + 1] - starts[rank];
    std::partial_sum(starts_by_position.begin(), starts_by_position.end(), starts_by_position.begin());
    for (int carrier = 0; carrier < levels.carriers; ++carrier) {
      const int64_t begin = starts_by_position[carrier * levels.nodes];
      segment_starts[carrier] = static_cast<int>(begin);
      segment_counts[carrier] = static_cast<int>(starts_by_position[(carrier + 1) * levels.nodes] - begin);
    }
    const int64_t all = starts_by_position.back() * width;
    if (static_cast<int64_t>(buffer->size()) < 2 * all) buffer->resize(2 * all);
    sorted = buffer->data();
    mine = buffer->data() + all;
    const int64_t* const own = starts_by_position.data() + within.rank() * levels.nodes;  // of this rank's segment
    for (int node = 0; node <= levels.nodes; ++node) starts_by_node.push_back(own[node] - own[0]);
  }

  enum class Direction { kFromData, kToData };

  // Copies the elements of all ranks between `data`, in rank order, and the sorted buffer.
  void Sort(char* data, Direction direction) const {
    for (size_t rank = 0; rank < levels.positions.size(); ++rank)
      CopyRank(rank, data, sorted + starts_by_position[levels.positions[rank]] * width, direction);
  }

  // Copies this rank's own elements between `data` and the segment that this rank carries.
  void CopyOwn(char* data, Direction direction) const {
    const int node = Calls{levels.across, false}.rank();
    // This rank's number in the data, found by its position: in `within` and `across` it has other numbers.
    const auto begin = levels.positions.begin(), end = levels.positions.end();
    const auto rank = std::find(begin, end, within.rank() * levels.nodes + node) - begin;
    CopyRank(rank, data, mine + starts_by_node[node] * width, direction);
  }

  // Copies the elements of `rank` between `data` and `buffer`, where they begin.
  void CopyRank(size_t rank, char* data, char* buffer, Direction direction) const {
    char* const of_rank = data + starts[rank] * width;
    const bool is_to_data = direction == Direction::kToData;
    const int64_t bytes = (starts[rank + 1] - starts[rank]) * width;
    std::memcpy(is_to_data ? of_rank : buffer, is_to_data ? buffer : of_rank, bytes);
  }

  const Levels& levels;
  const std::vector<int64_t>& starts;               // of each rank's elements in the data
  const int64_t width;                              // the bytes of an element
  const Calls within;                               // the calls on the ranks of this node
  std::vector<int64_t> starts_by_position;          // in the sorted buffer
  std::vector<int64_t> starts_by_node;              // in this rank's segment
  std::vector<int> segment_counts, segment_starts;  // of each carrier, in the sorted buffer
  char* sorted = nullptr;                           // the sorted buffer
  char* mine = nullptr;                             // the segment that this rank carries
};

}  // namespace

int MakeLevels(MPI_Comm communicator, int node, Levels* levels) {
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  if (const int code = MPI_Comm_split(communicator, node, rank, &levels->within)) return code;
  int local = 0, local_size = 1;
  MPI_Comm_rank(levels->within, &local);
  MPI_Comm_size(levels->within, &local_size);
  // The size of the smallest node is the negated maximum of the negated sizes. The number of nodes is the number of
  // ranks that are the first of their node.
  int negated_minimum = -local_size, nodes = local == 0;
  if (const int code = MPI_Allreduce(MPI_IN_PLACE, &negated_minimum, 1, MPI_INT, MPI_MAX, communicator)) return code;
  if (const int code = MPI_Allreduce(MPI_IN_PLACE, &nodes, 1, MPI_INT, MPI_SUM, communicator)) return code;
  levels->carriers = -negated_minimum;
  levels->nodes = nodes;
  const int segment = local < levels->carriers ? local : MPI_UNDEFINED;
  if (const int code = MPI_Comm_split(communicator, segment, rank, &levels->across)) return code;
  levels->equal_nodes = Calls{communicator, false}.size() == nodes * levels->carriers;
  return MPI_SUCCESS;
}

int MakePositions(MPI_Comm communicator, Levels* levels) {
  const Calls all{communicator, false};
  const int local_rank = Calls{levels->within, false}.rank(), node = Calls{levels->across, false}.rank();
  const int mine = local_rank * levels->nodes + node;
  std::vector<int> positions(all.size());
  const int code = all.Allgather(&mine, positions.data(), sizeof mine);
  if (code == MPI_SUCCESS) levels->positions = std::move(positions);
  return code;
}

int ReduceScatterInTwoLevels(const Levels& levels, void* data, const std::vector<int64_t>& starts, Type type,
                             bool asleep, std::vector<char>* buffer) {
  const Segments segments(levels, starts, type, asleep, buffer);
  segments.Sort(static_cast<char*>(data), Segments::Direction::kFromData);
  int code = segments.within.ReduceScatter(segments.sorted, segments.mine, segments.segment_counts.data(), type);
  if (code != MPI_SUCCESS) return code;
  std::vector<char> received;
  code = RingReduceScatter(levels.across, segments.mine, segments.starts_by_node, type, asleep, &received);
  if (code == MPI_SUCCESS) segments.CopyOwn(static_cast<char*>(data), Segments::Direction::kToData);
  return code;
}

int AllgatherInTwoLevels(const Levels& levels, void* data, const std::vector<int64_t>& starts, Type type, bool asleep,
                         std::vector<char>* buffer) {
  const Segments segments(levels, starts, type, asleep, buffer);
  segments.CopyOwn(static_cast<char*>(data), Segments::Direction::kFromData);
  int code = RingAllgather(levels.across, segments.mine, segments.starts_by_node, type, asleep);
  if (code != MPI_SUCCESS) return code;
  code = segments.within.Allgatherv(segments.mine, segments.sorted, segments.segment_counts.data(),
                                    segments.segment_starts.data(), type);
  if (code == MPI_SUCCESS) segments.Sort(static_cast<char*>(data), Segments::Direction::kToData);
  return code;
}

int SumInTwoLevels(const Levels& levels, void* data, int64_t count, Type type, bool asleep, std::vector<char>* buffer,
                   const AcrossNodes& sum_segment) {
  const Calls within{levels.within, asleep};
  const int size = within.size(), mine = within.rank();
  if (size == 1) return sum_segment(data, 0, count);
  // The segments of the node's ranks. Only carriers have one; the segments of the other ranks are empty.
  std::vector<int> counts(size, 0), starts(size, static_cast<int>(count));
  for (int64_t rank = 0, start = 0; rank < levels.carriers; ++rank) {
    counts[rank] = static_cast<int>(count / levels.carriers + (rank < count % levels.carriers));
    starts[rank] = static_cast<int>(start);
    start += counts[rank];
  }
  const size_t bytes = std::max<size_t>(counts[mine] * SizeOf(type), 1);  // not 0, so that the buffer has an address
  if (buffer->size() < bytes) buffer->resize(bytes);
  void* const segment = buffer->data();
  if (const int code = within.ReduceScatter(data, segment, counts.data(), type)) return code;
  if (levels.across != MPI_COMM_NULL && levels.nodes > 1) {
    if (const int code = sum_segment(segment, starts[mine], counts[mine])) return code;
  }
  return within.Allgatherv(segment, data, counts.data(), starts.data(), type);
}

}  // namespace matex
