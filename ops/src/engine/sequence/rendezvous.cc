// The rendezvous of collectives (rendezvous.h), and the state of this rank's sequence: its number, its counts, and its
// poison. The poison is an error that every later rendezvous returns.
#include "engine/sequence/rendezvous.h"

#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "engine/base/immortal.h"
#include "engine/mpi/failure.h"
#include "engine/mpi/arrivals.h"
#include "engine/sequence/trace.h"
#include "engine/sequence/wait_state.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

using Clock = std::chrono::steady_clock;

struct Sequence {
  std::atomic<int64_t> number{0};  // of the next rendezvous; `Meet` increments it when a rendezvous has ended
  Error poison;                    // none until a rendezvous or a collective fails
  std::array<std::atomic<int64_t>, kKinds> counts{};  // by Kind: the number of completed collectives
  std::atomic<int64_t> rows{0};  // the rows of the global batches of all updates so far
  Clock::time_point begin;       // when this rank has come to the current collective
  std::array<std::atomic<int64_t>, kKinds> nanoseconds{};  // by Kind: the time in collectives, from begin to end
  bool is_prepared = false;            // whether `Prepare` was called
  std::unique_ptr<Arrivals> arrivals;  // the shared memory in which ranks meet; null: they meet by messages of MPI
};

Sequence& TheSequence() { return Immortal<Sequence>(); }

// The report of this rank for the error of a rendezvous at which ranks are at different collectives (mismatch.h).
Report ReportOf(const World& world, const Call& call, int64_t number) {
  Report mine;
  mine.kind = call.kind;
  mine.number = number;
  mine.host = world.host;
  mine.place = call.place();
  if (call.layout != nullptr) {
    mine.chunk_bytes = call.layout->chunk_bytes();
    mine.fuse_bytes = call.layout->fuse_bytes();
    mine.compression = call.layout->compression().ToString();
    mine.compiled = call.layout->compiled();
    mine.checked = call.layout->checked();
    mine.entries = call.layout->entries();
    // How this rank reduces the gradients, in the words of the message. Inline: "reduces them at once". Overlapped: the
    // announcement is of a part of the update, and further parts follow, or it is of the last part or all gradients.
    mine.mode = "reduces them at once";
    if (call.announced != nullptr) mine.mode = call.announced->more ? "will compute more" : "computes no more";
  }
  mine.batch = call.batch;
  mine.exit_code = call.exit_code;
  return mine;
}

// Makes the shared memory of the rendezvous, if all ranks are on one node and use Algorithm::kAuto. If the user or
// MATEX_ELASTIC has chosen another algorithm, ranks meet by messages of MPI. Collective: all ranks call it at their
// first rendezvous. Their settings have not been compared yet and may differ, so the ranks agree here.
int Prepare(const World& world, Sequence* sequence) {
  if (sequence->is_prepared) return MPI_SUCCESS;
  sequence->is_prepared = true;
  int minima[] = {world.algorithm == Algorithm::kAuto, world.node, -world.node};
  const int code = MPI_Allreduce(MPI_IN_PLACE, minima, 3, MPI_INT, MPI_MIN, world.sequence);
  // The minima over ranks: whether all ranks use kAuto, the lowest node, and the negated highest node.
  const bool all_use_auto = minima[0];
  const int lowest_node = minima[1], highest_node = -minima[2];
  const bool can_share = all_use_auto && lowest_node == highest_node;
  if (code != MPI_SUCCESS || !can_share) return code;
  return Arrivals::Make(world.sequence, /*bytes_per_rank=*/0, &sequence->arrivals);
}

// Compares kind, key and number of the collective with the other ranks, in shared memory or by one all-reduce. The key
// is a hash of all values on which ranks must agree. `Check` ends when all ranks have come. If they differ, it returns
// the error that ExplainMismatch (mismatch.h) makes of the reports of all ranks. `is_failed_step` then becomes whether
// a step has failed on some ranks while all others are within a step.
Error Check(const World& world, const Call& call, Sequence* sequence, bool* is_failed_step) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return Error(call.place() + " was called after MPI was finalized.");
  if (Error error = MpiError(Prepare(world, sequence), "the first rendezvous", call.place())) return error;
  const Arrivals::Words mine = {static_cast<int64_t>(call.kind), static_cast<int64_t>(call.key), sequence->number};
  if (sequence->arrivals != nullptr) {
    bool same = false;
    if (Error error = MpiError(sequence->arrivals->Meet(mine, &same), "the rendezvous", call.place())) return error;
    return same ? Error() : ExplainMismatch(ReportOf(world, call, mine.back()), is_failed_step);
  }
  // max(x) and max(~x) over ranks are complements only if x is equal on all ranks.
  constexpr int kWords = mine.size();
  int64_t words[2 * kWords];
  for (int i = 0; i < kWords; ++i) {
    words[i] = mine[i];
    words[kWords + i] = ~mine[i];
  }
  const int code = MPI_Allreduce(MPI_IN_PLACE, words, 2 * kWords, MPI_INT64_T, MPI_MAX, world.sequence);
  if (code != MPI_SUCCESS) return MpiError(code, "MPI_Allreduce", call.place());
  for (int i = 0; i < kWords; ++i) {
    if (words[i] != ~words[kWords + i]) return ExplainMismatch(ReportOf(world, call, mine.back()), is_failed_step);
  }
  return Error();
}

}  // namespace

Error Meet(const Call& call) {
  const World& world = TheWorld();
  Sequence& sequence = TheSequence();
  sequence.begin = Clock::now();
  // After an earlier error other ranks may never come, so no rank waits for them. The error was in this sequence
  // (poison), or in a communication thread: BrokenJobs (failure.h) returns the first MPI error of such a thread.
  if (world.has_peers() && !sequence.poison) sequence.poison = BrokenJobs();
  if (world.has_peers() && sequence.poison) return sequence.poison;
  RecordBegin(call);
  if (!world.has_peers()) return Error();
  NoteWait(Waiter::kSequence, call.place, call.layout);
  bool is_failed_step = false;
  Error error;
  {
    const Span span(Activity::kMeet);
    error = Check(world, call, &sequence, &is_failed_step);
  }
  ++sequence.number;
  if (!error) return Error();  // the noted wait goes on until `Finish`, because the exchange of data may also wait
  NoteWaitEnd(Waiter::kSequence);
  RecordEnd(call);
  if (is_failed_step) {
    ++sequence.counts[static_cast<int>(Kind::kFailure)];  // all ranks know of the failure, so they may continue
  } else {
    sequence.poison = error;
  }
  return error;
}

Error Finish(const Call& call, Error error) {
  Sequence& sequence = TheSequence();
  NoteWaitEnd(Waiter::kSequence);
  RecordEnd(call);
  if (error) {
    sequence.poison = error;
  } else {
    const int kind = static_cast<int>(call.kind);
    // An overlapped update may be announced in parts (UpdatePart in layout.h), each by a collective of its own. Only
    // the last part, without `more`, counts as an update.
    if (call.announced == nullptr || !call.announced->more) {
      ++sequence.counts[kind];
      if (call.reduces_gradients()) sequence.rows += call.batch.rows;
    }
    sequence.nanoseconds[kind] += std::chrono::nanoseconds(Clock::now() - sequence.begin).count();
  }
  return error;
}

void GoOnAt(int64_t number, const int64_t* counts) {
  Sequence& sequence = TheSequence();
  std::lock_guard<std::mutex> lock(TheWorld().mutex);
  NoteWaitEnd(Waiter::kSequence);
  sequence.poison = Error();     // MATEX_ELASTIC turns overlap off, so BrokenJobs has no error
  sequence.is_prepared = false;  // the next rendezvous makes shared memory of the remaining ranks
  sequence.arrivals.reset();
  sequence.number = number;
  for (int kind = 0; kind < kKinds; ++kind) sequence.counts[kind] = counts[kind];
}

Error FailureOfSequence() {
  std::lock_guard<std::mutex> lock(TheWorld().mutex);
  return TheSequence().poison ? TheSequence().poison : BrokenJobs();
}

int64_t NumberInSequence() { return TheSequence().number; }

double SecondsOf(Kind kind) { return TheSequence().nanoseconds[static_cast<int>(kind)] * 1e-9; }

void AddNanoseconds(Kind kind, int64_t nanoseconds) {
  TheSequence().nanoseconds[static_cast<int>(kind)] += nanoseconds;
}

int64_t RowsOfUpdates() { return TheSequence().rows; }

int64_t CountOf(Kind kind) { return TheSequence().counts[static_cast<int>(kind)]; }

}  // namespace matex
