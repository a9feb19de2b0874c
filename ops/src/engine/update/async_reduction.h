// The overlapped reduction: gradients are handed over one by one as the step computes them. A communication thread
// sums them over ranks while the computation continues, one transfer after another (layout.h: one sum over ranks).
//
// Gradients may become ready in another order on each rank, but all ranks must make the same sums in the same order. So
// the script announces an update before its gradients are ready, by a collective of the sequence (rendezvous.h), and
// the thread reduces updates in the order of their announcements. Before each transfer the threads of all ranks agree
// that its gradients are ready on all ranks or will not come. They use a communicator of their own and sleep meanwhile.
//
// An update may be announced in parts (UpdatePart in layout.h), each with a layout of its own. Each part is reduced
// like an update; only the last one counts as an update in the records.
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

// A gradient that is handed over. `done` is called once, by any thread. If it is called without an error, `output`
// holds the sum over ranks. `output` may be `input`. The caller keeps both in memory and unchanged until `done`.
struct HandedOver {
  const void* input = nullptr;  // this rank's gradient
  void* output = nullptr;
  std::function<void(const Error&)> done;
};

// Announces an update, or a part of one. Each gradient is multiplied by this rank's `weight` before the sum. A
// rendezvous: all ranks must announce the same gradients and rows of `batch`. `announcement` becomes the number, from
// 1, under which the gradients are handed over.
Error Announce(const UpdatePart& part, double weight, Batch batch, int64_t* announcement);

// Hands over gradient `entry` of an announcement. Each must be handed over exactly once, or the announcement given up.
void HandOver(int64_t announcement, int entry, HandedOver gradient);

// Gives up the gradients that are not handed over yet, because of `why`. The first transfer that needs one of them, and
// all later transfers of the update, fail on all ranks. No effect if all gradients are handed over.
void GiveUp(int64_t announcement, const std::string& why);

// Gives up all announcements so far; called at the end of the script and when a step has failed.
void GiveUpAll(const std::string& why);

// Returns when the thread has finished all updates.
void FinishUpdates();

// Whether gradients travel now, or travelled a few milliseconds ago, so that the next transfer may follow at once. It
// becomes false while this rank waits for gradients, its own or another rank's. So a thread may wait until it is false
// without a deadlock.
bool GradientsTravel();

}  // namespace matex
