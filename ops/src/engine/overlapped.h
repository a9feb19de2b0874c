// The overlapped way of a layout: gradients are handed over one by one as they are computed, and a thread of our own
// reduces them, step by step in the layout's order, while the computation goes on.
//
// Updates are announced in the same order on all ranks and are reduced in that order, each in the order of its layout:
// when which gradient is ready differs from rank to rank and does not matter. The thread meets the other ranks in a
// sequence of its own and sends on a communicator of its own, so that it needs no order with the collectives of others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "error.h"
#include "layout.h"

namespace matex {

// A gradient that is handed over. `done` is called once, by any thread: without an error when `output` holds the sum
// over ranks, which may be `input`; both stay as they are until then.
struct HandedOver {
  const void* input = nullptr;
  void* output = nullptr;
  std::function<void(const Error&)> done;
};

// Says that an update will come, with the weight and rows of `ReduceInline`; returns its ticket.
int64_t Announce(std::shared_ptr<const Layout> layout, double weight, int64_t rows, std::function<std::string()> place);

// Hands over gradient `entry` of the update `ticket`. Each of its gradients must come, and once, or it be given up.
void HandOver(int64_t ticket, int entry, HandedOver gradient);

// The rest of the update will not come, because of `why`: an error for all ranks. Nothing if it is over already.
void GiveUp(int64_t ticket, const std::string& why);

}  // namespace matex
