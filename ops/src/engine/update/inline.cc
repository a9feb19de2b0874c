// The inline reduction (inline.h): the rendezvous of the collective, and then the sums of all transfers. They are made
// in shared memory where possible, else by the Adder (allreduce.h).
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

// The collective of a reduction, for the rendezvous.
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
  const AddUp add_up = [&world, &place](const Transfer& transfer, void* data, float* residual) {
    return world.has_peers() ? InlineAdder().Sum(transfer, data, residual, place) : Error();
  };
  std::lock_guard<std::mutex> lock(world.mutex);
  static std::vector<char>* const buffer = new std::vector<char>;  // kept from update to update
  Error error = Meet(call);
  if (error) return error;
  // The place and number of the update, for errors of the check of finite numbers.
  const auto numbered = [&place] { return place() + ", update " + std::to_string(CountOf(Kind::kGradients) + 1); };
  SharedMemory* memory = nullptr;  // stays null if the layout is checked, or if the Adder does not use it
  if (world.has_peers() && !layout.checked()) error = InlineAdder().Shared(&memory, place);
  if (error) return Finish(call, error);
  // In shared memory, each rank can sum only the elements that it needs.
  if (scatter != nullptr && memory != nullptr && !layout.compression()) {
    int code = MPI_SUCCESS;
    for (const Shares& shares : scatter->by_type) {
      if (code == MPI_SUCCESS) code = RunShares(shares, inputs, outputs, weight, memory);
    }
    return Finish(call, MpiError(code, "the all-reduce in shared memory", place()));
  }
  // Each transfer: through shared memory, or by the Adder, with or without a check of its numbers.
  for (const Transfer& transfer : layout.transfers()) {
    if (memory != nullptr && !transfer.compressed) {
      error =
          MpiError(RunTransfer(transfer, inputs, outputs, weight, memory), "the all-reduce in shared memory", place());
    } else if (layout.checked()) {
      error = RunTransfer(layout, transfer, inputs, outputs, weight, buffer,
                          [&](const Transfer&, void* data, float* residual) {
                            return AddUpFinite(layout, transfer, world.gradients, numbered, data, residual, add_up);
                          });
    } else {
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
  for (size_t i = 0; i < addresses.size() && code == MPI_SUCCESS && world.has_peers(); ++i) {
    const Transfer& transfer = layout.transfers()[i];
    const Span span(Activity::kTransfer, transfer.count * static_cast<int64_t>(SizeOf(transfer.type)));
    code = MPI_Allreduce(MPI_IN_PLACE, addresses[i], static_cast<int>(transfer.count), MpiType(transfer.type),
                         MpiOp(transfer.type, Reduction::kSum), world.gradients);
  }
  return Finish(call, MpiError(code, "MPI_Allreduce", place()));
}

}  // namespace matex
