#include "engine/store/publish.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include "engine/base/hash.h"
#include "engine/mpi/mpi_calls.h"
#include "engine/sequence/rendezvous.h"
#include "engine/sums/allreduce.h"
#include "engine/sums/shared_memory.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

// Of one rank's numbers in a call of MPI, at least: less would cost more time to begin than to send.
constexpr int64_t kLeastBytes = 64 << 10;

void CopyFrom(const Shared& shared, int64_t begin, int64_t end, char* to) {
  shared.Visit(begin, end, [&](const char* at, int64_t bytes) {
    std::memcpy(to, at, bytes);
    to += bytes;
  });
}

void CopyTo(const Shared& shared, int64_t begin, int64_t end, const char* from) {
  shared.Visit(begin, end, [&](char* at, int64_t bytes) {
    std::memcpy(at, from, bytes);
    from += bytes;
  });
}

// Of each rank's numbers, `part` at a time: those of a rank that has fewer come to an end sooner.
struct Stretches {
  const Shared& shared;
  int64_t first;
  int64_t part;

  int64_t Begin(int rank) const { return std::min(shared.starts[rank] + first, shared.starts[rank + 1]); }
  int64_t End(int rank) const { return std::min(shared.starts[rank] + first + part, shared.starts[rank + 1]); }
};

void PublishInMemory(const Stretches& stretches, int rank, SharedMemory* memory) {
  CopyFrom(stretches.shared, stretches.Begin(rank), stretches.End(rank), memory->Mine());
  memory->Show([&stretches](int other, const char* theirs) {
    CopyTo(stretches.shared, stretches.Begin(other), stretches.End(other), theirs);
  });
}

int PublishByMpi(const Stretches& stretches, const World& world, std::vector<char>* buffer) {
  const size_t width = SizeOf(stretches.shared.type);
  std::vector<int> counts(world.size), starts(world.size);
  int all = 0;
  for (int rank = 0; rank < world.size; ++rank) {
    counts[rank] = static_cast<int>(stretches.End(rank) - stretches.Begin(rank));
    starts[rank] = all;
    all += counts[rank];
  }
  buffer->resize((all + counts[world.rank]) * width);
  char* const mine = buffer->data() + all * width;
  CopyFrom(stretches.shared, stretches.Begin(world.rank), stretches.End(world.rank), mine);
  const int code = Calls{world.gradients, false}.Allgatherv(mine, buffer->data(), counts.data(), starts.data(),
                                                            stretches.shared.type);
  for (int rank = 0; code == MPI_SUCCESS && rank < world.size; ++rank) {
    if (rank == world.rank) continue;
    CopyTo(stretches.shared, stretches.Begin(rank), stretches.End(rank), buffer->data() + starts[rank] * width);
  }
  return code;
}

uint64_t KeyOf(const Shared& shared) {
  Hasher hasher;
  hasher.Add(static_cast<int64_t>(shared.type)).Add(static_cast<int64_t>(shared.wholes.size()));
  for (const Shared::Whole& whole : shared.wholes) hasher.Add(whole.count);
  for (const int64_t start : shared.starts) hasher.Add(start);
  return hasher.value();
}

}  // namespace

Error Publish(const Shared& shared) {
  World& world = TheWorld();
  const int64_t width = static_cast<int64_t>(SizeOf(shared.type));
  const std::function<std::string()> what = [&shared] { return "publishing " + shared.name; };
  const int64_t bytes = (shared.starts[world.rank + 1] - shared.starts[world.rank]) * width;
  const Call call{Kind::kAllgather, KeyOf(shared), what, nullptr, 0, nullptr, bytes};
  std::lock_guard<std::mutex> lock(world.mutex);
  static std::vector<char>* const buffer = new std::vector<char>;  // kept from update to update
  if (Error error = Meet(call)) return error;
  if (!world.has_peers()) return Finish(call, Error());
  SharedMemory* memory = nullptr;
  if (Error error = InlineAdder().Shared(&memory, what)) return Finish(call, error);
  int64_t longest = 0;
  for (int rank = 0; rank < world.size; ++rank) longest = std::max(longest, shared.starts[rank + 1] - shared.starts[rank]);
  const int64_t part =
      memory != nullptr ? SharedMemory::PartOf(shared.type) : std::max(world.chunk_bytes / world.size, kLeastBytes) / width;
  for (int64_t first = 0; first < longest; first += part) {
    const Stretches stretches{shared, first, part};
    if (memory != nullptr) {
      PublishInMemory(stretches, world.rank, memory);
    } else if (const int code = PublishByMpi(stretches, world, buffer)) {
      return Finish(call, MpiError(code, "MPI_Allgatherv", what()));
    }
  }
  return Finish(call, Error());
}

}  // namespace matex
