// The rendezvous of a publication. `Publish` has two ways to exchange the pieces: copies from homes, which are memory
// that all ranks of a host see (homes.h), or an all-gather. The third way, `PublishLater`, leaves it to the pull thread
// (pulls.h).
#include "engine/store/publish.h"

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "engine/base/hash.h"
#include "engine/sequence/rendezvous.h"
#include "engine/sums/allreduce.h"
#include "engine/store/pulls.h"
#include "engine/sums/world.h"
#include "engine/update/transfer.h"

namespace matex {
namespace {

// The address of element `first` of variable `i`.
char* At(const Shared& shared, int i, int64_t first) {
  return static_cast<char*>(shared.wholes[i]) + first * shared.Width();
}

// Copies the pieces of the other ranks, whose addresses they have shown. After the barrier every rank has read this
// rank's pieces, so this rank may change them again.
int PublishInMemory(const Shared& shared, const World& world, const Homes& homes) {
  for (int distance = 1; distance < world.size; ++distance) {
    const int rank = (world.rank + distance) % world.size;
    shared.Visit(rank, [&](int i, int64_t first, int64_t count) {
      std::memcpy(At(shared, i, first), homes.Shown(rank, i), count * shared.Width());
    });
  }
  return MPI_Barrier(world.gradients);
}

int PublishByMessages(const Shared& shared) {
  static std::vector<char>* const buffer = new std::vector<char>;  // kept from update to update
  const Gather gather = [](const Transfer& transfer, void* data) { return InlineAdder().Gather(transfer, data); };
  for (const Transfer& transfer : *shared.messages) {
    if (const int code = GatherTransfer(transfer, shared.wholes.data(), buffer, gather)) return code;
  }
  return MPI_SUCCESS;
}

uint64_t KeyOf(const Shared& shared) {
  return Hasher().Add(static_cast<int64_t>(shared.layout->key())).Add(shared.holding).value();
}

// All homes created so far, by (holding, `KeyOf`). A holding is a group of variables whose homes are dropped together.
// A null pointer: their creation was tried, but the ranks cannot share memory.
struct AllHomes {
  std::mutex mutex;
  std::map<std::pair<int64_t, uint64_t>, std::shared_ptr<Homes>> homes;
};

AllHomes& TheHomes() {
  static auto* const all = new AllHomes;
  return *all;
}

int MakeHomes(const Shared& shared, const World& world) {
  std::vector<int64_t> bytes;
  for (const Entry& entry : shared.layout->entries()) bytes.push_back(entry.bytes());
  int64_t piece = 0;
  for (int rank = 0; rank < world.size; ++rank) piece = std::max(piece, shared.Owned(rank) * shared.Width());
  std::shared_ptr<Homes> made;
  const int code = Homes::Make(world.gradients, bytes, piece, &made);
  std::lock_guard<std::mutex> lock(TheHomes().mutex);
  TheHomes().homes.emplace(std::make_pair(shared.holding, KeyOf(shared)), std::move(made));
  return code;
}

bool WasCreationTried(const Shared& shared) {
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
  const std::function<std::string()> place = [&shared] { return "publishing " + shared.name; };
  const int64_t bytes = shared.Owned(world.rank) * shared.Width();
  const Call call{Kind::kAllgather, Hasher().Add(KeyOf(shared)).Add(homes != nullptr).value(), place, bytes};
  std::lock_guard<std::mutex> lock(world.mutex);
  if (homes != nullptr) {  // show the addresses of this rank's pieces, which the others read after the rendezvous
    int64_t offset_in_copies = 0;
    shared.Visit(world.rank, [&](int i, int64_t first, int64_t count) {
      homes->Show(i, At(shared, i, first), count * shared.Width(), offset_in_copies);
      offset_in_copies += count * shared.Width();
    });
  }
  if (Error error = Meet(call)) return error;
  if (!world.has_peers()) return Finish(call, Error());
  int code = homes != nullptr ? PublishInMemory(shared, world, *homes) : PublishByMessages(shared);
  // The first publication makes the homes of later ones.
  if (code == MPI_SUCCESS && shared.holding >= 0 && !WasCreationTried(shared)) code = MakeHomes(shared, world);
  return Finish(call, MpiError(code, homes != nullptr ? "MPI_Barrier" : "MPI_Allgatherv", place()));
}

Error PublishLater(const Shared& shared, Later later) {
  World& world = TheWorld();
  const std::function<std::string()> place = [&shared] { return "publishing " + shared.name; };
  const int64_t bytes = shared.Owned(world.rank) * shared.Width();
  // ~: differs from the key of Publish, so that it is an error if only some ranks publish later.
  const Call call{Kind::kAllgather, ~KeyOf(shared), place, bytes};
  std::lock_guard<std::mutex> lock(world.mutex);
  if (Error error = Meet(call)) return error;
  if (world.pulls == MPI_COMM_NULL) {
    const int code = MPI_Comm_dup(world.gradients, &world.pulls);
    if (code != MPI_SUCCESS) return Finish(call, MpiError(code, "MPI_Comm_dup", place()));
  }
  AddPull(shared, std::move(later));
  return Finish(call, Error());
}

}  // namespace matex
