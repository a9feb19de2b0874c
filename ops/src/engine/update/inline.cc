// The inline reduction (inline.h): the calling thread sums gradients over ranks, and returns when all are summed. Its
// opposite is the overlapped reduction (async_reduction.h), in which another thread sums while the step computes. After
// the rendezvous of the collective, ReduceInline sums the gradients in one of four ways. Way 1 sums all gradients of a
// type together. The other ways sum one transfer (layout.h) after another: a gradient, a part of one, or several small
// ones.
// 1. In shared memory, if ranks own pieces of variables: each rank gets only the sums that it needs (RunShares).
// 2. In shared memory: gradients are scaled directly into it, and sums are written directly to the outputs.
// 3. By the Adder (allreduce.h): gradients are scaled into a buffer or the outputs, and summed there.
// 4. By the Adder, with a check that gradients and sums are finite numbers (finite_check.h), for checked layouts.
// Compressed transfers always take way 3 or 4.
//
// SumInPlace is for buffers in device memory: MPI makes all its sums.
#include "engine/update/inline.h"

#include <mutex>
#include <vector>

#include "engine/base/hash.h"
#include "engine/update/finite_check.h"
#include "engine/sequence/rendezvous.h"
#include "engine/update/transfer.h"
#include "engine/sums/allreduce.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

// The collective of a reduction, for the rendezvous: the gradients of an update, or a plain all-reduce. Its bytes are
// for the trace: 0 for an update, of which the trace adds up the bytes of the transfers.
Call CallOf(const Layout& layout, const Batch& batch, const std::function<std::string()>& place) {
  const Kind kind = batch.is_update() ? Kind::kGradients : Kind::kAllreduce;
  int64_t bytes = 0;
  if (!batch.is_update()) {
    for (const Entry& entry : layout.entries()) bytes += entry.bytes();
  }
  return {kind, Hash(&batch, sizeof batch, layout.key()), place, bytes, &layout, batch};
}

}  // namespace

Error ReduceInline(const Layout& layout, const void* const* inputs, void* const* outputs, double weight, Batch batch,
                   const std::function<std::string()>& place, const Scatter* scatter) {
  World& world = TheWorld();
  const Call call = CallOf(layout, batch, place);
  // Ways 3 and 4: the sum of one transfer. `residual`: what compression leaves out, which this rank adds to its next
  // gradient; null if the transfer is not compressed.
  const AddUp add_up = [&world, &place](const Transfer& transfer, void* data, float* residual) {
    return world.has_peers() ? InlineAdder().Sum(transfer, data, residual, place) : Error();
  };
  std::lock_guard<std::mutex> lock(world.mutex);
  // Kept from update to update, and never destroyed, because a thread may be here when the process ends.
  static std::vector<char>* const buffer = new std::vector<char>;
  Error error = Meet(call);
  if (error) return error;
  // The place and number of the update, for errors of the check of finite numbers.
  const auto numbered = [&place] { return place() + ", update " + std::to_string(CountOf(Kind::kGradients) + 1); };
  // Stays null if the Adder does not sum in shared memory, or if the layout is checked; then only ways 3 and 4 remain.
  // The check needs a rank's own gradients in memory before the sum, and the sums in the same memory after it. Ways 1
  // and 2 have no such memory.
  SharedMemory* memory = nullptr;
  if (world.has_peers() && !layout.checked()) error = InlineAdder().GetSharedMemory(&memory, place);
  if (error) return Finish(call, error);
  // Way 1. A `scatter` says which elements each rank needs.
  if (scatter != nullptr && memory != nullptr && !layout.compression()) {
    int code = MPI_SUCCESS;
    for (const Shares& shares : scatter->by_type) {
      if (code == MPI_SUCCESS) code = RunShares(shares, inputs, outputs, weight, memory);
    }
    return Finish(call, MpiError(code, "the all-reduce in shared memory", place()));
  }
  // RunTransfer with `memory` sums in it (way 2). With a layout and a function it sums by the function (ways 3 and 4).
  for (const Transfer& transfer : layout.transfers()) {
    if (memory != nullptr && !transfer.compressed) {  // way 2
      error =
          MpiError(RunTransfer(transfer, inputs, outputs, weight, memory), "the all-reduce in shared memory", place());
    } else if (layout.checked()) {  // way 4
      error = RunTransfer(layout, transfer, inputs, outputs, weight, buffer,
                          [&](const Transfer&, void* data, float* residual) {
                            return AddUpFinite(layout, transfer, world.gradients, numbered, data, residual, add_up);
                          });
    } else {  // way 3
      error = RunTransfer(layout, transfer, inputs, outputs, weight, buffer, add_up);
    }
    if (error) break;
  }
  return Finish(call, error);
}

Error SumInPlace(const Layout& layout, const std::vector<void*>& addresses, Batch batch,
                 const std::function<std::string()>& place) {
  World& world = TheWorld();
  const Call call = CallOf(layout, batch, place);
  std::lock_guard<std::mutex> lock(world.mutex);
  Error error = Meet(call);
  if (error) return error;
  int code = MPI_SUCCESS;
  // The buffers may be in device memory, which only MPI can access.
  for (size_t i = 0; i < addresses.size() && code == MPI_SUCCESS && world.has_peers(); ++i) {
    const Transfer& transfer = layout.transfers()[i];
    const Span span(Activity::kTransfer, transfer.count * static_cast<int64_t>(SizeOf(transfer.type)));
    code = MPI_Allreduce(MPI_IN_PLACE, addresses[i], static_cast<int>(transfer.count), MpiType(transfer.type),
                         MpiOp(transfer.type, Reduction::kSum), world.gradients);
  }
  return Finish(call, MpiError(code, "MPI_Allreduce", place()));
}

}  // namespace matex
