// Publishing gives updated variables to all ranks. Each rank has updated only its piece, a range of elements, of each
// variable; afterwards all ranks have all new elements. A publication is a collective: after a rendezvous the ranks
// exchange their pieces in one of three ways.
// 1. `Publish` with homes: each rank copies the pieces of the others. A home is memory for a variable's value that all
//    ranks of a host can read (homes.h).
// 2. `Publish` without homes: by messages (an all-gather), such as between hosts, or before there are homes.
// 3. `PublishLater`: by messages of the pull thread, while the next step computes (pulls.h).
// `variables.Visit(rank, work)` calls `work(i, first, count)` for the elements of each variable `i` that `rank` owns.
#include "engine/store/publish.h"

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "engine/base/immortal.h"
#include "engine/base/hash.h"
#include "engine/base/stream_copy.h"
#include "engine/sequence/rendezvous.h"
#include "engine/sums/allreduce.h"
#include "engine/store/pulls.h"
#include "engine/sums/world.h"
#include "engine/update/transfer.h"

namespace matex {
namespace {

// The address of element `first` of this rank's variable `i`.
char* At(const DividedVariables& variables, int i, int64_t first) {
  return static_cast<char*>(variables.wholes[i]) + first * variables.Width();
}

// Copies the pieces of the other ranks into this rank's variables. Before the rendezvous, each rank has written the
// addresses of its pieces to a table which the others can read (`PublishPiece`). After the barrier every rank has read
// this rank's pieces, so this rank may change them again.
int PublishInMemory(const DividedVariables& variables, const World& world, const Homes& homes) {
  int64_t bytes_of_others = 0;
  for (int rank = 0; rank < world.size; ++rank) {
    if (rank != world.rank) bytes_of_others += variables.Owned(rank) * variables.Width();
  }
  const bool streams = ShouldStream(bytes_of_others);
  // Ranks begin with different ranks, so that not all read the memory of one rank at the same time.
  for (int distance = 1; distance < world.size; ++distance) {
    const int rank = (world.rank + distance) % world.size;
    variables.Visit(rank, [&](int i, int64_t first, int64_t count) {
      char* const to = At(variables, i, first);
      const int64_t bytes = count * variables.Width();
      if (streams) {
        StreamCopy(homes.PieceOf(rank, i), to, bytes);
      } else {
        std::memcpy(to, homes.PieceOf(rank, i), bytes);
      }
    });
  }
  return MPI_Barrier(world.gradients);
}

int PublishByMessages(const DividedVariables& variables) {
  // Kept from update to update, and never destroyed, because a thread may be here when the process ends. The world's
  // mutex guards it.
  static std::vector<char>* const buffer = new std::vector<char>;
  const Gather gather = [](const Transfer& transfer, void* data) { return InlineAdder().Gather(transfer, data); };
  for (const Transfer& transfer : *variables.messages) {
    if (const int code = GatherTransfer(transfer, variables.wholes.data(), buffer, gather)) return code;
  }
  return MPI_SUCCESS;
}

// Identifies these variables: in the rendezvous, where ranks must agree, and among all homes.
uint64_t KeyOf(const DividedVariables& variables) {
  return Hasher().Add(static_cast<int64_t>(variables.layout->key())).Add(variables.holding).value();
}

// All homes created so far, by (holding, `KeyOf`). A holding is a group of variables whose homes are dropped together.
// It comes first, although it is also a part of `KeyOf`, so that the homes of a holding are consecutive (`DropHomes`).
// A null pointer: their creation was tried, but the ranks cannot share memory.
struct AllHomes {
  std::mutex mutex;
  std::map<std::pair<int64_t, uint64_t>, std::shared_ptr<Homes>> homes;
};

AllHomes& TheHomes() { return Immortal<AllHomes>(); }

int MakeHomes(const DividedVariables& variables, const World& world) {
  std::vector<int64_t> bytes;
  for (const Entry& entry : variables.layout->entries()) bytes.push_back(entry.bytes());
  // All buffers of homes have equal size, so the area for copies of pieces fits the rank with the most.
  int64_t pieces_bytes = 0;
  for (int rank = 0; rank < world.size; ++rank)
    pieces_bytes = std::max(pieces_bytes, variables.Owned(rank) * variables.Width());
  std::shared_ptr<Homes> made;
  const int code = Homes::Make(world.gradients, bytes, pieces_bytes, &made);
  std::lock_guard<std::mutex> lock(TheHomes().mutex);
  TheHomes().homes.emplace(std::make_pair(variables.holding, KeyOf(variables)), std::move(made));
  return code;
}

bool WasCreationTried(const DividedVariables& variables) {
  std::lock_guard<std::mutex> lock(TheHomes().mutex);
  return TheHomes().homes.count({variables.holding, KeyOf(variables)}) > 0;
}

}  // namespace

std::shared_ptr<Homes> HomesOf(const DividedVariables& variables) {
  std::lock_guard<std::mutex> lock(TheHomes().mutex);
  const auto found = TheHomes().homes.find({variables.holding, KeyOf(variables)});
  return found == TheHomes().homes.end() ? nullptr : found->second;
}

void DropHomes(int64_t holding) {
  std::lock_guard<std::mutex> lock(TheHomes().mutex);
  auto& homes = TheHomes().homes;
  homes.erase(homes.lower_bound({holding, 0}), homes.lower_bound({holding + 1, 0}));
}

Error Publish(const DividedVariables& variables, Homes* homes) {
  World& world = TheWorld();
  const std::function<std::string()> place = [&variables] { return "publishing " + variables.name; };
  const int64_t bytes = variables.Owned(world.rank) * variables.Width();
  const Call call{Kind::kAllgather, Hasher().Add(KeyOf(variables)).Add(homes != nullptr).value(), place, bytes};
  std::lock_guard<std::mutex> lock(world.mutex);
  if (homes != nullptr) {
    // A piece that is not in its home is copied to memory that the others can read, at this offset, one after another.
    int64_t offset_in_copies = 0;
    variables.Visit(world.rank, [&](int i, int64_t first, int64_t count) {
      homes->PublishPiece(i, At(variables, i, first), count * variables.Width(), offset_in_copies);
      offset_in_copies += count * variables.Width();
    });
  }
  if (Error error = Meet(call)) return error;
  if (!world.has_peers()) return Finish(call, Error());
  int code = homes != nullptr ? PublishInMemory(variables, world, *homes) : PublishByMessages(variables);
  // The first publication goes by messages, and makes the homes for later ones.
  if (code == MPI_SUCCESS && variables.holding >= 0 && !WasCreationTried(variables)) code = MakeHomes(variables, world);
  return Finish(call, MpiError(code, homes != nullptr ? "MPI_Barrier" : "MPI_Allgatherv", place()));
}

Error PublishLater(const DividedVariables& variables, Later later) {
  World& world = TheWorld();
  const std::function<std::string()> place = [&variables] { return "publishing " + variables.name; };
  const int64_t bytes = variables.Owned(world.rank) * variables.Width();
  // ~: differs from the key of Publish, so that it is an error if only some ranks publish later.
  const Call call{Kind::kAllgather, ~KeyOf(variables), place, bytes};
  std::lock_guard<std::mutex> lock(world.mutex);
  if (Error error = Meet(call)) return error;
  if (world.pulls == MPI_COMM_NULL) {
    const int code = MPI_Comm_dup(world.gradients, &world.pulls);
    if (code != MPI_SUCCESS) return Finish(call, MpiError(code, "MPI_Comm_dup", place()));
  }
  AddPull(variables, std::move(later));
  return Finish(call, Error());
}

}  // namespace matex
