// The numbered sequences of collectives (rule 7): ranks meet here before each, and learn in band whether they are all
// at the same one. Ranks that are not get an error that names their places, never mixed data.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "error.h"
#include "layout.h"
#include "mismatch.h"
#include "world.h"

namespace matex {

// A collective that this rank has come to. Calls with equal kind and key are the same collective.
struct Call {
  Kind kind;
  uint64_t key;
  // For people; asked for only when there is something to say.
  const std::function<std::string()>& what;
  const Layout* layout = nullptr;
  int64_t rows = 0;
};

// One numbered sequence on a communicator of its own.
class Sequence {
 public:
  // `asleep`: wait for the other ranks without holding a core, for a thread that computes nothing itself.
  Sequence(MPI_Comm World::*communicator, bool asleep) : communicator_(communicator), asleep_(asleep) {}

  // Meets the other ranks. The caller lets no other thread meet in this sequence until the collective is over. After a
  // failure every later meeting fails at once with the same message: nobody waits for ranks that have gone.
  Error Meet(const Call& call);

  // To be called when the collective that was met for is over: counts it, or, where MPI failed, makes its error the one
  // that later meetings give. Returns `error`.
  Error Finish(const Call& call, Error error);

  int64_t CountOf(Kind kind) const { return counts_[static_cast<int>(kind)]; }
  double SecondsOf(Kind kind) const { return nanoseconds_[static_cast<int>(kind)] * 1e-9; }

 private:
  Error Check(const World& world, const Call& call) const;

  MPI_Comm World::*const communicator_;
  const bool asleep_;
  int64_t number_ = 0;
  Error poison_;
  std::chrono::steady_clock::time_point met_;
  std::array<std::atomic<int64_t>, kKinds> counts_{};
  std::array<std::atomic<int64_t>, kKinds> nanoseconds_{};
};

// The sequence of all collectives but the gradients of the overlapped way; the world's mutex goes with it.
Sequence& TheSequence();

// The sequence of the updates that are overlapped, which only their thread goes through.
Sequence& TheOverlappedSequence();

// Collectives of `kind` that this process has completed.
int64_t CountOf(Kind kind);

// How long they took, from meeting to end, with the time that this process waited for the others.
double SecondsOf(Kind kind);

}  // namespace matex
