// The overlapped way of a layout: gradients are handed over one by one as they are computed, and a thread of our own
// reduces them, step by step in the layout's order, while the computation goes on.
//
// An update is announced before its gradients are there, as one collective of the sequence in which all ranks meet. So
// updates are in the same order on all ranks; the thread takes them in that order, and the steps of each in the order of
// its layout: when which gradient is ready differs from rank to rank and does not matter. Before each step the ranks
// tell each other, asleep until then, that theirs is ready, or that it will not come; on a communicator of its own.
//
// An update may be announced in parts, each with a layout of its own. To all that follows, a part is an update; only
// what counts updates counts the last one.
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

// A gradient that is handed over. `done` is called once, by any thread: without an error when `output` holds the sum
// over ranks, which may be `input`; both stay as they are until then.
struct HandedOver {
  const void* input = nullptr;
  void* output = nullptr;
  std::function<void(const Error&)> done;
};

// Says that an update, or a part of one, will come, with the weight and batch of `ReduceInline`, and meets the other
// ranks, who must say the same; `ticket` is by what its gradients name it.
Error Announce(const Part& part, double weight, Batch batch, int64_t* ticket);

// Hands over gradient `entry` of the update `ticket`. Each of its gradients must come, and once, or it be given up.
void HandOver(int64_t ticket, int entry, HandedOver gradient);

// The rest of the update will not come, because of `why`: an error on all ranks. Nothing if it is over already.
void GiveUp(int64_t ticket, const std::string& why);

// The same for all updates announced by now; the script ends.
void GiveUpAll(const std::string& why);

// Returns when the thread is done with all of them.
void FinishUpdates();

// Whether gradients travel now, or did a moment ago and more may follow at once. Not while this rank waits for another
// one's: so it becomes false, whatever else waits for it.
bool GradientsTravel();

}  // namespace matex
