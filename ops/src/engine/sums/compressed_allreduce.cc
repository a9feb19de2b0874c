#include "engine/sums/compressed_allreduce.h"

#include <algorithm>

namespace matex {
namespace {

// A value of top-k compression, as it is sent: its index in the buffer and the number.
struct Sent {
  int32_t place;
  float value;
};

int SumIn16Bits(const Calls& calls, Compression::Kind kind, int64_t count, float* data, float* left) {
  const int size = calls.size(), mine = calls.rank();
  const auto begin = [&](int64_t rank) { return count / size * rank + std::min(rank, count % size); };
  const auto length = [&](int rank) { return begin(rank + 1) - begin(rank); };
  const int64_t bytes = PackedBytes((count + size - 1) / size);
  std::vector<char> packed(bytes * size), received(bytes * size);
  std::vector<float> numbers((count + size - 1) / size);
  for (int rank = 0; rank < size; ++rank) {
    if (rank == mine) continue;  // this rank's part of its own segment is not sent
    char* const to = packed.data() + rank * bytes;
    const int64_t from = begin(rank);
    Pack(kind, data + from, length(rank), to);
    Unpack(kind, to, length(rank), numbers.data());
    for (int64_t i = 0; i < length(rank); ++i) left[from + i] = Left(data[from + i], numbers[i]);
  }
  if (const int code = calls.Alltoall(packed.data(), received.data(), bytes)) return code;
  float* const sum = data + begin(mine);
  for (int rank = 0; rank < size; ++rank) {
    if (rank == mine) continue;
    Unpack(kind, received.data() + rank * bytes, length(mine), numbers.data());
    for (int64_t i = 0; i < length(mine); ++i) sum[i] += numbers[i];
  }
  Pack(kind, sum, length(mine), packed.data());
  Unpack(kind, packed.data(), length(mine), numbers.data());
  for (int64_t i = 0; i < length(mine); ++i) left[begin(mine) + i] = Left(sum[i], numbers[i]);
  if (const int code = calls.Allgather(packed.data(), received.data(), bytes)) return code;
  for (int rank = 0; rank < size; ++rank) {
    Unpack(kind, received.data() + rank * bytes, length(rank), data + begin(rank));
  }
  return MPI_SUCCESS;
}

int SumLargest(const Calls& calls, double share, const std::vector<Extent>& extents, int64_t count,
               int64_t most_bytes, float* data, float* left) {
  std::vector<int32_t> places;
  for (const Extent& one : extents) {
    const int64_t length = one.end - one.begin;
    AppendLargest(data + one.begin, length, Wanted(share, length), static_cast<int32_t>(one.begin), &places);
  }
  std::vector<Sent> sent;
  sent.reserve(places.size());
  for (const int32_t place : places) sent.push_back({place, data[place]});
  for (int64_t i = 0; i < count; ++i) left[i] = Left(data[i], 0.0f);
  for (const int32_t place : places) left[place] = 0.0f;
  std::fill_n(data, count, 0.0f);
  const int size = calls.size();
  const int64_t all = static_cast<int64_t>(sent.size());
  const int64_t round = std::clamp<int64_t>(most_bytes / static_cast<int64_t>(sizeof(Sent)) / size, 1, all);
  std::vector<Sent> received(round * size);
  for (int64_t at = 0; at < all; at += round) {
    const int64_t taken = std::min(round, all - at);
    const int code = calls.Allgather(&sent[at], received.data(), taken * static_cast<int64_t>(sizeof(Sent)));
    if (code != MPI_SUCCESS) return code;
    for (int64_t i = 0; i < taken * size; ++i) data[received[i].place] += received[i].value;
  }
  return MPI_SUCCESS;
}

}  // namespace

int SumCompressed(const Calls& calls, const Compression& compression, const std::vector<Extent>& extents,
                  int64_t count, int64_t most_bytes, float* data, float* left) {
  if (count == 0) return MPI_SUCCESS;
  if (compression.kind == Compression::Kind::kTopK) {
    return SumLargest(calls, compression.share, extents, count, most_bytes, data, left);
  }
  return SumIn16Bits(calls, compression.kind, count, data, left);
}

}  // namespace matex
