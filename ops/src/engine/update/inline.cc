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

Call CallOf(const Layout& layout, const Batch& batch, const std::function<std::string()>& place) {
  const Kind kind = batch.is_update() ? Kind::kGradients : Kind::kAllreduce;
  int64_t bytes = 0;
  if (!batch.is_update()) {
    for (const Entry& entry : layout.entries()) bytes += entry.bytes();
  }
  return {kind, Hash(&batch, sizeof batch, layout.key()), place, &layout, batch, nullptr, bytes};
}

}  // namespace

Error ReduceInline(const Layout& layout, const void* const* inputs, void* const* outputs, double weight, Batch batch,
                   const std::function<std::string()>& place, const Scatter* scatter) {
  World& world = TheWorld();
  const Call call = CallOf(layout, batch, place);
  const AddUp add_up = [&world, &place](const Step& step, void* data, float* left) {
    return !world.has_peers() ? Error() : InlineAdder().Sum(step, data, left, place);
  };
  std::lock_guard<std::mutex> lock(world.mutex);
  static std::vector<char>* const buffer = new std::vector<char>;  // kept from update to update
  Error error = Meet(call);
  if (error) return error;
  const auto update = [&place] { return place() + ", update " + std::to_string(CountOf(Kind::kGradients) + 1); };
  SharedMemory* memory = nullptr;
  if (world.has_peers() && !layout.checked()) error = InlineAdder().Shared(&memory, place);
  if (error) return Finish(call, error);
  if (scatter != nullptr && memory != nullptr && !layout.compression()) {
    int code = MPI_SUCCESS;
    for (const Shares& shares : scatter->by_type) {
      if (code == MPI_SUCCESS) code = RunShares(shares, inputs, outputs, weight, memory);
    }
    return Finish(call, MpiError(code, "a sum in shared memory", place()));
  }
  for (const Step& step : layout.steps()) {
    if (memory != nullptr && !step.compressed) {
      error = MpiError(RunStep(step, inputs, outputs, weight, memory), "a sum in shared memory", place());
    } else if (layout.checked()) {
      error = RunStep(layout, step, inputs, outputs, weight, buffer, [&](const Step&, void* data, float* left) {
        return AddUpFinite(layout, step, world.gradients, update, data, left, add_up);
      });
    } else {
      error = RunStep(layout, step, inputs, outputs, weight, buffer, add_up);
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
    const Step& step = layout.steps()[i];
    const Span span(Activity::kTransfer, step.count * static_cast<int64_t>(SizeOf(step.type)));
    code = MPI_Allreduce(MPI_IN_PLACE, addresses[i], static_cast<int>(step.count), MpiType(step.type),
                         MpiOp(step.type, Reduction::kSum), world.gradients);
  }
  return Finish(call, MpiError(code, "MPI_Allreduce", place()));
}

}  // namespace matex
