// The numbered sequence of collectives. Every collective calls `Meet` first: a rendezvous in which ranks compare the
// number, the kind and the key of the collective. If ranks are at different collectives, `Meet` returns the same error
// on all of them, and they never mix data. Otherwise the collective exchanges its data and then calls `Finish`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/sequence/mismatch.h"

namespace matex {

// A collective that this rank has reached. Calls with equal kind and key are the same collective.
struct Call {
  Kind kind;
  uint64_t key;  // a hash of all values on which ranks must agree
  // The place in the program, for messages; called only if there is a message.
  const std::function<std::string()>& place;
  int64_t bytes = 0;               // of this rank's tensors, if the collective is no update
  const Layout* layout = nullptr;  // of a reduction
  Batch batch{};                   // of a reduction: the rows of the global batch
  // The update that the collective announces, to be summed by another thread (async_reduction.h); null: none.
  const UpdatePart* announced = nullptr;
  int exit_code = 0;  // of the script, at its end

  bool reduces_gradients() const { return layout != nullptr && batch.is_update(); }
};

// The rendezvous with the other ranks. The caller locks the world's mutex until the collective has ended. If `Meet`
// returns an error, the collective has ended, and the caller does not call `Finish`. After a failure every later
// rendezvous fails at once with the same message, so no rank waits for a lost rank. One exception: if a step has raised
// an error on some ranks and all others are within a step, only this rendezvous fails.
Error Meet(const Call& call);

// Ends the collective after its exchange of data; called under the same mutex. Counts it; of an update in parts, only
// the last part counts. If `error` is set, all later rendezvous return it. Returns `error`.
Error Finish(const Call& call, Error error);

// The error that all later rendezvous return, or none. Called without the mutex.
Error FailureOfSequence();

// After ranks were lost: the sequence continues at `number`, and the earlier failure is cleared. `counts`: the
// completed collectives of each kind.
void GoOnAt(int64_t number, const int64_t* counts);

// The number, from 0, of the collective whose rendezvous is under way or is the next one.
int64_t NumberInSequence();

// The number of completed collectives of `kind`.
int64_t CountOf(Kind kind);

// The rows of the global batches of all updates so far; an update whose batch was not sliced adds none.
int64_t RowsOfUpdates();

// The seconds that collectives of `kind` took, from rendezvous to end, including the wait for other ranks. For
// overlapped updates: the time after the last gradient was computed.
double SecondsOf(Kind kind);
void AddNanoseconds(Kind kind, int64_t nanoseconds);

}  // namespace matex
