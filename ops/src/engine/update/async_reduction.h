// The overlapped reduction: gradients are handed over one by one as the step computes them. A communication thread
// sums them over ranks while the computation continues, transfer by transfer in the order of the layout (layout.h).
//
// Gradients may become ready in another order on each rank, but all ranks must make the same sums in the same order. So
// the script announces an update before its gradients are ready, by a collective of the sequence (rendezvous.h), and
// the thread reduces updates in the order of their announcements. Before each transfer the ranks agree, asleep and on a
// communicator of their own, that its gradients are ready on all ranks or will not come.
//
// An update may be announced in parts. Each is reduced like an update with its own layout; only the last counts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/sequence/mismatch.h"

namespace matex {

// A gradient that is handed over. `done` is called once, by any thread; without an error `output` then holds the sum
// over ranks. `output` may be `input`. The caller keeps both unchanged until `done`.
struct HandedOver {
  const void* input = nullptr;  // this rank's gradient
  void* output = nullptr;
  std::function<void(const Error&)> done;
};

// Announces an update, or a part of one, with the weight and batch of `ReduceInline`. A rendezvous: all ranks must
// announce the same. `ticket` becomes the number under which its gradients are handed over.
Error Announce(const UpdatePart& part, double weight, Batch batch, int64_t* ticket);

// Hands over gradient `entry` of update `ticket`. Each must be handed over exactly once, or the update given up.
void HandOver(int64_t ticket, int entry, HandedOver gradient);

// Gives up the rest of the update because of `why`, an error on all ranks. No effect if the update has ended.
void GiveUp(int64_t ticket, const std::string& why);

// Gives up all updates announced so far; called at the end of the script and when a step has failed.
void GiveUpAll(const std::string& why);

// Returns when the thread has finished all updates.
void FinishUpdates();

// Whether gradients travel now, or did within a few milliseconds, so that the next transfer may follow at once. It
// becomes false while this rank waits for gradients, its own or another rank's. So a thread may wait until it is false
// without a deadlock.
bool GradientsTravel();

}  // namespace matex
