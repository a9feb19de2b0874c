// Collectives on one tensor: the rendezvous (rendezvous.h) and then one MPI call, or several if the tensor is large.
// There is no MPI call without peers: with one rank, or in `matex plan`, where the other ranks do not exist (world.h).
#include "engine/collectives.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>

#include "engine/base/hash.h"
#include "engine/sequence/rendezvous.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

constexpr int64_t kMaxCount = std::numeric_limits<int>::max();  // MPI counts are ints

// For messages: broadcast from rank 0 of float32 [10] 'name'.
std::string PlaceOf(const std::string& operation, const Entry& tensor) {
  return operation + " of " + NameOf(tensor.type) + " " + ShapeText(tensor.shape) +
         (tensor.name.empty() ? "" : " '" + tensor.name + "'");
}

// The key of a collective: the values on which ranks must agree. Dimensions before `first_dimension` may differ.
Hasher KeyOf(const Entry& tensor, size_t first_dimension) {
  Hasher hasher;
  hasher.Add(static_cast<int64_t>(tensor.type)).Add(static_cast<int64_t>(tensor.shape.size()));
  for (size_t i = first_dimension; i < tensor.shape.size(); ++i) hasher.Add(tensor.shape[i]);
  return hasher;
}

// Reduces `data` in place, in chunks. 16-bit floats are summed as float32 (reduce_ops.h).
Error AllreduceChunks(const World& world, const Entry& tensor, Reduction reduction, char* data,
                      const std::function<std::string()>& place) {
  const int64_t size = static_cast<int64_t>(SizeOf(tensor.type));
  const int64_t chunk = std::max<int64_t>(world.chunk_bytes / size, 1);
  const int64_t count = tensor.count();
  const bool widens = IsHalf(tensor.type) && (reduction == Reduction::kSum || reduction == Reduction::kMean);
  const Type type = widens ? Type::kFloat32 : tensor.type;
  std::vector<float> wide(widens ? std::min(chunk, count) : 0);
  for (int64_t offset = 0; offset < count; offset += chunk) {
    const int64_t length = std::min(chunk, count - offset);
    char* const part = data + offset * size;
    void* const reduced = widens ? static_cast<void*>(wide.data()) : part;
    if (widens) Widen(tensor.type, part, wide.data(), length);
    const int code = MPI_Allreduce(MPI_IN_PLACE, reduced, static_cast<int>(length), MpiType(type),
                                   MpiOp(type, reduction), world.gradients);
    if (code != MPI_SUCCESS) return MpiError(code, "MPI_Allreduce", place());
    if (reduction == Reduction::kMean) Divide(type, reduced, length, world.size);
    if (widens) Narrow(tensor.type, wide.data(), part, length);
  }
  return Error();
}

// The exchange of an all-gather: to = the rows of all ranks. rows: the number of rows of each rank.
Error GatherRows(const World& world, const Entry& tensor, const void* from, void* to,
                 const std::vector<int64_t>& rows, const std::string& place) {
  int64_t row_bytes = static_cast<int64_t>(SizeOf(tensor.type));
  for (size_t i = 1; i < tensor.shape.size(); ++i) row_bytes *= tensor.shape[i];
  std::vector<int> counts(world.size), starts(world.size);
  int64_t all = 0;
  for (int rank = 0; rank < world.size; ++rank) {
    counts[rank] = static_cast<int>(rows[rank]);
    starts[rank] = static_cast<int>(all);
    all += rows[rank];
  }
  if (row_bytes == 0 || all == 0) return Error();
  if (all > kMaxCount || row_bytes > kMaxCount) {
    return Error(place + ": " + std::to_string(all) + " rows of " + std::to_string(row_bytes) +
                 " bytes are more than MPI can count (2147483647 of each); gather in smaller parts.");
  }
  // For MPI a row is one element, so the counts, which are ints, are numbers of rows instead of bytes.
  MPI_Datatype row;
  MPI_Type_contiguous(static_cast<int>(row_bytes), MPI_BYTE, &row);
  MPI_Type_commit(&row);
  const int code =
      MPI_Allgatherv(from, counts[world.rank], row, to, counts.data(), starts.data(), row, world.gradients);
  MPI_Type_free(&row);
  return MpiError(code, "MPI_Allgatherv", place);
}

// Returns an error on all ranks if any rank has no memory for the result, so that none waits for this rank. Collective.
Error AgreeOnMemory(const World& world, bool has_memory, const std::string& place) {
  int without = has_memory ? -1 : world.rank;
  if (world.has_peers()) {
    const int code = MPI_Allreduce(MPI_IN_PLACE, &without, 1, MPI_INT, MPI_MAX, world.gradients);
    if (code != MPI_SUCCESS) return MpiError(code, "MPI_Allreduce", place);
  }
  if (without < 0) return Error();
  return Error("rank " + std::to_string(without) + " cannot allocate the result of " + place + ".");
}

}  // namespace

Error Allreduce(const Entry& tensor, Reduction reduction, const void* from, void* to) {
  World& world = TheWorld();
  const std::function<std::string()> place = [&] {
    return PlaceOf(std::string("allreduce (") + NameOf(reduction) + ")", tensor);
  };
  const uint64_t key = KeyOf(tensor, 0).Add(static_cast<int64_t>(reduction)).value();
  const Call call{Kind::kAllreduce, key, place, tensor.bytes()};
  std::lock_guard<std::mutex> lock(world.mutex);
  if (Error error = Meet(call)) return error;
  if (from != to) std::memcpy(to, from, tensor.bytes());
  if (!world.has_peers()) return Finish(call, Error());
  return Finish(call, AllreduceChunks(world, tensor, reduction, static_cast<char*>(to), place));
}

Error Broadcast(const Entry& tensor, int root, void* data) {
  World& world = TheWorld();
  const std::function<std::string()> place = [&] {
    return PlaceOf("broadcast from rank " + std::to_string(root), tensor);
  };
  if (root < 0 || root >= world.size) {
    return Error(place() + ": there is no such rank; the number of ranks is " + std::to_string(world.size) + ".");
  }
  const Call call{Kind::kBroadcast, KeyOf(tensor, 0).Add(root).value(), place, tensor.bytes()};
  std::lock_guard<std::mutex> lock(world.mutex);
  if (Error error = Meet(call)) return error;
  const int64_t bytes = tensor.bytes();
  constexpr int64_t kPart = 1 << 30;
  for (int64_t offset = 0; offset < bytes && world.has_peers(); offset += kPart) {
    const int part = static_cast<int>(std::min(kPart, bytes - offset));
    const int code = MPI_Bcast(static_cast<char*>(data) + offset, part, MPI_BYTE, root, world.gradients);
    if (code != MPI_SUCCESS) return Finish(call, MpiError(code, "MPI_Bcast", place()));
  }
  return Finish(call, Error());
}

Error Allgather(const Entry& tensor, const void* from, const Allocate& allocate) {
  World& world = TheWorld();
  const std::function<std::string()> place = [&] { return PlaceOf("allgather", tensor); };
  const int64_t mine = tensor.shape.empty() ? 1 : tensor.shape[0];
  const Call call{Kind::kAllgather, KeyOf(tensor, 1).value(), place, tensor.bytes()};
  std::lock_guard<std::mutex> lock(world.mutex);
  if (Error error = Meet(call)) return error;
  std::vector<int64_t> rows(world.size, mine);
  if (world.has_peers()) {
    const int code = MPI_Allgather(&mine, 1, MPI_INT64_T, rows.data(), 1, MPI_INT64_T, world.gradients);
    if (code != MPI_SUCCESS) return Finish(call, MpiError(code, "MPI_Allgather", place()));
  }
  void* const to = allocate(rows);
  if (Error error = AgreeOnMemory(world, to != nullptr, place())) return Finish(call, error);
  if (world.has_peers()) return Finish(call, GatherRows(world, tensor, from, to, rows, place()));
  // Without peers: this rank's rows stand for the rows of all ranks.
  for (int rank = 0; rank < world.size; ++rank) {
    std::memcpy(static_cast<char*>(to) + rank * tensor.bytes(), from, tensor.bytes());
  }
  return Finish(call, Error());
}

Error Barrier(const std::string& name) {
  World& world = TheWorld();
  const std::function<std::string()> place = [&] { return name.empty() ? "a barrier" : "barrier '" + name + "'"; };
  const Call call{Kind::kBarrier, 0, place};
  std::lock_guard<std::mutex> lock(world.mutex);
  // The rendezvous is itself a barrier: no rank leaves it before all have come.
  if (Error error = Meet(call)) return error;
  return Finish(call, Error());
}

}  // namespace matex
