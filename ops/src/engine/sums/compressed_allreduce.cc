// Sums whose numbers are sent compressed (compressed_allreduce.h). There are two algorithms: ranks send all numbers in
// 16 bits (SumIn16Bits), or the largest numbers with their indices (SumLargest). What was not sent of a number is its
// residual, which is added to the next gradient.
#include "engine/sums/compressed_allreduce.h"

#include <algorithm>

namespace matex {
namespace {

// A number that top-k compression sends, with its index in the buffer.
struct IndexedValue {
  int32_t index;
  float value;
};

// Each rank sums one segment of the buffer for all ranks: rank r sums segment r. `data` is divided into equal segments;
// the first ones have one number more if the division leaves a remainder.
int SumIn16Bits(const Calls& calls, Compression::Kind kind, int64_t count, float* data, float* residual) {
  const int size = calls.size(), mine = calls.rank();
  // The begin and the length of a rank's segment.
  const auto begin = [&](int64_t rank) { return count / size * rank + std::min(rank, count % size); };
  const auto length = [&](int rank) { return begin(rank + 1) - begin(rank); };
  const int64_t bytes = PackedBytes((count + size - 1) / size);  // of the longest segment: messages are equally long
  std::vector<char> packed(bytes * size), received(bytes * size);
  std::vector<float> numbers((count + size - 1) / size);
  // Send to each other rank this rank's numbers of the segment that the other rank sums.
  for (int rank = 0; rank < size; ++rank) {
    if (rank == mine) continue;
    char* const to = packed.data() + rank * bytes;
    const int64_t from = begin(rank);
    Pack(kind, data + from, length(rank), to);
    Unpack(kind, to, length(rank), numbers.data());
    for (int64_t i = 0; i < length(rank); ++i) residual[from + i] = Unsent(data[from + i], numbers[i]);
  }
  if (const int code = calls.Alltoall(packed.data(), received.data(), bytes)) return code;
  // Sum this rank's segment, and send the rounded sum to all ranks. The rounding error is this rank's residual.
  float* const sum = data + begin(mine);
  for (int rank = 0; rank < size; ++rank) {
    if (rank == mine) continue;
    Unpack(kind, received.data() + rank * bytes, length(mine), numbers.data());
    for (int64_t i = 0; i < length(mine); ++i) sum[i] += numbers[i];
  }
  Pack(kind, sum, length(mine), packed.data());
  Unpack(kind, packed.data(), length(mine), numbers.data());
  for (int64_t i = 0; i < length(mine); ++i) residual[begin(mine) + i] = Unsent(sum[i], numbers[i]);
  if (const int code = calls.Allgather(packed.data(), received.data(), bytes)) return code;
  for (int rank = 0; rank < size; ++rank) {
    Unpack(kind, received.data() + rank * bytes, length(rank), data + begin(rank));
  }
  return MPI_SUCCESS;
}

// Gathers the chosen numbers of all ranks in rounds of at most `max_bytes`.
int SumLargest(const Calls& calls, double share, const std::vector<Extent>& extents, int64_t count,
               int64_t max_bytes, float* data, float* residual) {
  // Choose the largest numbers of each gradient; all others become the residual.
  std::vector<int32_t> indices;
  for (const Extent& extent : extents) {
    const int64_t length = extent.end - extent.begin;
    AppendLargest(data + extent.begin, length, CountSent(share, length), static_cast<int32_t>(extent.begin), &indices);
  }
  std::vector<IndexedValue> values;
  values.reserve(indices.size());
  for (const int32_t index : indices) values.push_back({index, data[index]});
  for (int64_t i = 0; i < count; ++i) residual[i] = Unsent(data[i], /*sent=*/0.0f);
  for (const int32_t index : indices) residual[index] = 0.0f;  // these numbers are sent exactly
  std::fill_n(data, count, 0.0f);
  const int size = calls.size();
  const int64_t all = static_cast<int64_t>(values.size());  // equal on all ranks
  const int64_t per_round = std::clamp<int64_t>(max_bytes / static_cast<int64_t>(sizeof(IndexedValue)) / size, 1, all);
  std::vector<IndexedValue> received(per_round * size);
  for (int64_t at = 0; at < all; at += per_round) {
    const int64_t length = std::min(per_round, all - at);
    const int code = calls.Allgather(&values[at], received.data(), length * static_cast<int64_t>(sizeof(IndexedValue)));
    if (code != MPI_SUCCESS) return code;
    for (int64_t i = 0; i < length * size; ++i) data[received[i].index] += received[i].value;
  }
  return MPI_SUCCESS;
}

}  // namespace

int SumCompressed(const Calls& calls, const Compression& compression, const std::vector<Extent>& extents,
                  int64_t count, int64_t max_bytes, float* data, float* residual) {
  if (count == 0) return MPI_SUCCESS;
  if (compression.kind == Compression::Kind::kTopK) {
    return SumLargest(calls, compression.share, extents, count, max_bytes, data, residual);
  }
  return SumIn16Bits(calls, compression.kind, count, data, residual);
}

}  // namespace matex
