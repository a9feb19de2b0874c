#include "inline.h"

#include <cstring>
#include <memory>
#include <mutex>

#include "hash.h"
#include "reduce_ops.h"
#include "rendezvous.h"
#include "world.h"

namespace matex {
namespace {

// One chunk of memory for fused steps, kept from update to update; the world's mutex guards it.
char* Buffer(int64_t bytes) {
  static std::unique_ptr<char[]>* const memory = new std::unique_ptr<char[]>;
  static int64_t size = 0;
  if (size < bytes) {
    memory->reset(new char[bytes]);
    size = bytes;
  }
  return memory->get();
}

template <typename Byte>
Byte* At(Byte* tensor, int64_t offset, size_t size) {
  return tensor + offset * static_cast<int64_t>(size);
}

Error RunStep(const World& world, const Step& step, const void* const* inputs, void* const* outputs, double weight,
              const std::function<std::string()>& place) {
  const size_t size = SizeOf(step.type);
  const bool fused = step.pieces.size() > 1;
  const Piece& first = step.pieces.front();
  char* const data = fused ? Buffer(step.count * static_cast<int64_t>(size))
                           : At(static_cast<char*>(outputs[first.entry]), first.offset, size);
  // Scaled just before it is sent and, if fused, copied out just after: a chunk is in the cache all the while.
  char* at = data;
  for (const Piece& piece : step.pieces) {
    const char* from = At(static_cast<const char*>(inputs[piece.entry]), piece.offset, size);
    Scale(step.type, from, at, piece.count, weight);
    at = At(at, piece.count, size);
  }
  if (world.size > 1) {
    const int code = MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(step.count), MpiType(step.type),
                                   MpiOp(step.type, Reduction::kSum), world.gradients);
    if (code != MPI_SUCCESS) return MpiError(code, "MPI_Allreduce", place());
  }
  if (!fused) return Error();
  at = data;
  for (const Piece& piece : step.pieces) {
    char* to = At(static_cast<char*>(outputs[piece.entry]), piece.offset, size);
    std::memcpy(to, at, piece.count * size);
    at = At(at, piece.count, size);
  }
  return Error();
}

}  // namespace

Error ReduceInline(const Layout& layout, const void* const* inputs, void* const* outputs, double weight, int64_t rows,
                   const std::function<std::string()>& place) {
  World& world = TheWorld();
  const Call call{Kind::kGradients, Hash(&rows, sizeof rows, layout.key()), place, &layout, rows};
  std::lock_guard<std::mutex> lock(world.mutex);
  Error error = Meet(call);
  if (error) return error;
  for (const Step& step : layout.steps()) {
    error = RunStep(world, step, inputs, outputs, weight, place);
    if (error) break;
  }
  return Finish(call, error);
}

}  // namespace matex
