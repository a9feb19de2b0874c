// The one numbered sequence of collectives (rule 7): ranks meet here before each, and learn in band whether they are
// all at the same one. Ranks that are not get an error that names their places, never mixed data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/sequence/mismatch.h"

namespace matex {

// A collective that this rank has come to. Calls with equal kind and key are the same collective.
struct Call {
  Kind kind;
  uint64_t key;
  // For people; asked for only when there is something to say.
  const std::function<std::string()>& what;
  const Layout* layout = nullptr;
  int64_t rows = 0;
  const Part* announced = nullptr;  // of an overlapped update, whose gradients come later
  int64_t bytes = 0;                // of this rank's tensor, in a collective that is no update
};

// Meets the other ranks. The caller holds the world's mutex, and goes on holding it until the collective is over.
// After a failure every later meeting fails at once with the same message: nobody waits for ranks that have gone. Where
// ranks within a step meet those on which it has raised an error, this meeting alone fails.
Error Meet(const Call& call);

// To be called, under the same mutex, when the collective that was met for is over: counts it, unless more of its update
// is to come; or, where MPI failed, makes its error the one that later meetings give. Returns `error`.
Error Finish(const Call& call, Error error);

// The error that every later meeting gives, if a collective has failed; to be called without the mutex.
Error FailureOfSequence();

// After ranks were lost: the sequence goes on at `number`, whatever made the last collective fail. `counts` are those of
// each kind that are taken for completed.
void GoOnAt(int64_t number, const int64_t* counts);

// The number of the collective that this process comes to next, or is at.
int64_t NumberInSequence();

// Collectives of `kind` that this process has completed.
int64_t CountOf(Kind kind);

// Rows of the global batches of all updates so far; an update of a batch that nobody sliced adds none.
int64_t RowsOfUpdates();

// How long they took, from meeting to end, with the time that this process waited for the others; of overlapped updates
// what they took when all gradients were computed.
double SecondsOf(Kind kind);
void AddNanoseconds(Kind kind, int64_t nanoseconds);

}  // namespace matex
