#include "step.h"

#include <cstring>

#include "record.h"
#include "reduce_ops.h"

namespace matex {
namespace {

template <typename Byte>
Byte* At(Byte* tensor, int64_t offset, size_t size) {
  return tensor + offset * static_cast<int64_t>(size);
}

}  // namespace

Error RunStep(const Step& step, const void* const* inputs, void* const* outputs, double weight,
              std::vector<char>* buffer, const AddUp& add_up) {
  const size_t size = SizeOf(step.type);
  const bool fused = step.pieces.size() > 1;
  const Piece& first = step.pieces.front();
  const int64_t bytes = step.count * static_cast<int64_t>(size);
  const Span bucket(Activity::kBucket, &step.name, bytes);
  if (fused && buffer->size() < step.count * size) buffer->resize(step.count * size);
  char* const data = fused ? buffer->data() : At(static_cast<char*>(outputs[first.entry]), first.offset, size);
  // Scaled just before it is sent and, if fused, copied out just after: a chunk is in the cache all the while.
  {
    const Span span(Activity::kCopyIn, bytes);
    char* at = data;
    for (const Piece& piece : step.pieces) {
      const char* from = At(static_cast<const char*>(inputs[piece.entry]), piece.offset, size);
      Scale(step.type, from, at, piece.count, weight);
      at = At(at, piece.count, size);
    }
  }
  {
    const Span span(Activity::kTransfer, bytes);
    if (Error error = add_up(data, step.count, step.type)) return error;
  }
  if (!fused) return Error();
  const Span span(Activity::kCopyOut, bytes);
  const char* at = data;
  for (const Piece& piece : step.pieces) {
    char* to = At(static_cast<char*>(outputs[piece.entry]), piece.offset, size);
    std::memcpy(to, at, piece.count * size);
    at = At(at, piece.count, size);
  }
  return Error();
}

}  // namespace matex
