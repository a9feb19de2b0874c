#include "engine/store/publish.h"

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "engine/base/hash.h"
#include "engine/mpi/mpi_calls.h"
#include "engine/sequence/rendezvous.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

// Of one rank's numbers in a message, at least: less would take more time to begin than to send.
constexpr int64_t kLeastBytes = 64 << 10;

char* At(const Shared& shared, int i, int64_t first) { return shared.wholes[i].data + first * shared.Width(); }

// Every rank reads the others' pieces; none changes its own before all have.
int PublishInMemory(const Shared& shared, const World& world, const Homes& homes) {
  for (int one = 1; one < world.size; ++one) {
    const int rank = (world.rank + one) % world.size;
    shared.Visit(shared.starts[rank], shared.starts[rank + 1], [&](int i, int64_t first, int64_t count) {
      std::memcpy(At(shared, i, first), homes.Shown(rank, i), count * shared.Width());
    });
  }
  return MPI_Barrier(world.gradients);
}

// Of each rank's numbers as many at a time, as long as it has some.
int PublishByMessages(const Shared& shared, const World& world) {
  static std::vector<char>* const buffer = new std::vector<char>;  // kept from update to update
  const int64_t width = shared.Width(), part = std::max(world.chunk_bytes / world.size, kLeastBytes) / width;
  int64_t longest = 0;
  for (int rank = 0; rank < world.size; ++rank) longest = std::max(longest, shared.Owned(rank));
  std::vector<int> counts(world.size), places(world.size);
  for (int64_t first = 0; first < longest; first += part) {
    int all = 0;
    for (int rank = 0; rank < world.size; ++rank) {
      counts[rank] = static_cast<int>(std::min(std::max(shared.Owned(rank) - first, int64_t{0}), part));
      places[rank] = all;
      all += counts[rank];
    }
    buffer->resize((all + counts[world.rank]) * width);
    const auto copy = [&](int rank, char* at, bool out) {
      const int64_t begin = shared.starts[rank] + first;
      shared.Visit(begin, begin + counts[rank], [&](int i, int64_t offset, int64_t count) {
        char* const whole = At(shared, i, offset);
        std::memcpy(out ? at : whole, out ? whole : at, count * width);
        at += count * width;
      });
    };
    char* const mine = buffer->data() + all * width;
    copy(world.rank, mine, true);
    const Calls calls{world.gradients, false};
    if (const int code = calls.Allgatherv(mine, buffer->data(), counts.data(), places.data(), shared.type)) return code;
    for (int rank = 0; rank < world.size; ++rank) {
      if (rank != world.rank) copy(rank, buffer->data() + places[rank] * width, false);
    }
  }
  return MPI_SUCCESS;
}

uint64_t KeyOf(const Shared& shared) {
  Hasher hasher;
  hasher.Add(static_cast<int64_t>(shared.type)).Add(static_cast<int64_t>(shared.wholes.size())).Add(shared.holding);
  for (const Shared::Whole& whole : shared.wholes) hasher.Add(whole.count);
  for (const int64_t start : shared.starts) hasher.Add(start);
  return hasher.value();
}

// Those made so far, by holding and variables; null where ranks could have none.
struct KnownHomes {
  std::mutex mutex;
  std::map<std::pair<int64_t, uint64_t>, std::shared_ptr<Homes>> homes;
};

KnownHomes& TheHomes() {
  static auto* const known = new KnownHomes;
  return *known;
}

int MakeHomes(const Shared& shared, const World& world) {
  std::vector<int64_t> bytes;
  for (const Shared::Whole& whole : shared.wholes) bytes.push_back(whole.count * shared.Width());
  int64_t piece = 0;
  for (int rank = 0; rank < world.size; ++rank) piece = std::max(piece, shared.Owned(rank) * shared.Width());
  std::shared_ptr<Homes> made;
  const int code = Homes::Make(world.gradients, bytes, piece, &made);
  std::lock_guard<std::mutex> lock(TheHomes().mutex);
  TheHomes().homes.emplace(std::make_pair(shared.holding, KeyOf(shared)), std::move(made));
  return code;
}

bool AreTried(const Shared& shared) {
  std::lock_guard<std::mutex> lock(TheHomes().mutex);
  return TheHomes().homes.count({shared.holding, KeyOf(shared)}) > 0;
}

}  // namespace

std::shared_ptr<Homes> HomesOf(const Shared& shared) {
  std::lock_guard<std::mutex> lock(TheHomes().mutex);
  const auto found = TheHomes().homes.find({shared.holding, KeyOf(shared)});
  return found == TheHomes().homes.end() ? nullptr : found->second;
}

void DropHomes(int64_t holding) {
  std::lock_guard<std::mutex> lock(TheHomes().mutex);
  auto& homes = TheHomes().homes;
  homes.erase(homes.lower_bound({holding, 0}), homes.lower_bound({holding + 1, 0}));
}

Error Publish(const Shared& shared, Homes* homes) {
  World& world = TheWorld();
  const std::function<std::string()> what = [&shared] { return "publishing " + shared.name; };
  const int64_t bytes = shared.Owned(world.rank) * shared.Width();
  const Call call{Kind::kAllgather, Hasher().Add(KeyOf(shared)).Add(homes != nullptr).value(), what, nullptr, 0, nullptr, bytes};
  std::lock_guard<std::mutex> lock(world.mutex);
  if (homes != nullptr) {
    const int64_t begin = shared.starts[world.rank];
    int64_t aside = 0;
    shared.Visit(begin, shared.starts[world.rank + 1], [&](int i, int64_t first, int64_t count) {
      homes->Show(i, At(shared, i, first), count * shared.Width(), aside);
      aside += count * shared.Width();
    });
  }
  if (Error error = Meet(call)) return error;
  if (!world.has_peers()) return Finish(call, Error());
  int code = homes != nullptr ? PublishInMemory(shared, world, *homes) : PublishByMessages(shared, world);
  if (code == MPI_SUCCESS && shared.holding >= 0 && !AreTried(shared)) code = MakeHomes(shared, world);
  return Finish(call, MpiError(code, homes != nullptr ? "MPI_Barrier" : "MPI_Allgatherv", what()));
}

}  // namespace matex
