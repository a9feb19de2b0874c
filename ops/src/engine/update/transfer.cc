#include "engine/update/transfer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/sequence/trace.h"
#include "engine/base/reduce_ops.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

template <typename Byte>
Byte* At(Byte* tensor, int64_t offset, size_t size) {
  return tensor + offset * static_cast<int64_t>(size);
}

// Adds the residuals of the transfer's gradients to `data`, and sets them to zero.
void AddResiduals(const Layout& layout, const Step& step, float* data) {
  for (const Piece& piece : step.pieces) {
    std::vector<float>& residual = *layout.residual(piece.entry);
    residual.resize(layout.entries()[piece.entry].count());
    float* const kept = residual.data() + piece.offset;
    for (int64_t i = 0; i < piece.count; ++i) data[i] += kept[i];
    std::fill_n(kept, piece.count, 0.0f);
    data += piece.count;
  }
}

// Adds, because a variable may occur twice in a transfer.
void KeepResiduals(const Layout& layout, const Step& step, const float* left) {
  for (const Piece& piece : step.pieces) {
    float* const kept = layout.residual(piece.entry)->data() + piece.offset;
    for (int64_t i = 0; i < piece.count; ++i) kept[i] += left[i];
    left += piece.count;
  }
}

// Calls `work` for the part of each fragment within [first, first + count) of the transfer, with its offset in the
// transfer.
template <typename Work>
void InPieces(const Step& step, int64_t first, int64_t count, Work work) {
  int64_t at = 0;
  for (const Piece& piece : step.pieces) {
    const int64_t begin = std::max(at, first), end = std::min(at + piece.count, first + count);
    if (begin < end) work(Piece{piece.entry, piece.offset + begin - at, end - begin}, begin);
    at += piece.count;
    if (at >= first + count) break;
  }
}

// The range of this rank's elements in a transfer; the whole transfer if all ranks need all elements.
std::pair<int64_t, int64_t> OwnOf(const Step& step) {
  if (step.owned.empty()) return {0, step.count};
  const auto own = step.owned.begin() + TheWorld().rank;
  const int64_t first = std::accumulate(step.owned.begin(), own, int64_t{0});
  return {first, first + *own};
}

// The bytes of a plain all-reduce that costs as much as this transfer of `bytes`. A reduce-scatter goes around the
// ring once in place of twice.
int64_t Sent(const Step& step, int64_t bytes) {
  if (!step.owned.empty()) return bytes / 2;
  if (!step.compressed) return bytes;
  const World& world = TheWorld();
  if (world.compression.between_nodes) return bytes;
  return static_cast<int64_t>(bytes * world.compression.BytesLeft(world.size));
}

}  // namespace

Error RunStep(const Layout& layout, const Step& step, const void* const* inputs, void* const* outputs, double weight,
              std::vector<char>* buffer, const AddUp& add_up) {
  const size_t size = SizeOf(step.type);
  const bool fused = step.pieces.size() > 1;
  const Piece& first = step.pieces.front();
  const int64_t bytes = step.count * static_cast<int64_t>(size);
  const Span bucket(Activity::kBucket, &step.name, bytes);
  // The residuals follow the fused elements.
  const size_t needed = (fused ? step.count * size : 0) + (step.compressed ? step.count * sizeof(float) : 0);
  if (buffer->size() < needed) buffer->resize(needed);
  float* const left =
      step.compressed ? reinterpret_cast<float*>(buffer->data() + needed) - step.count : nullptr;
  char* const data = fused ? buffer->data() : At(static_cast<char*>(outputs[first.entry]), first.offset, size);
  // Scaled just before the transfer and copied out just after it, so that a chunk stays in the cache.
  {
    const Span span(Activity::kCopyIn, bytes);
    char* at = data;
    for (const Piece& piece : step.pieces) {
      const char* from = At(static_cast<const char*>(inputs[piece.entry]), piece.offset, size);
      Scale(step.type, from, at, piece.count, weight);
      at = At(at, piece.count, size);
    }
    if (step.compressed) AddResiduals(layout, step, reinterpret_cast<float*>(data));
  }
  {
    const Span span(Activity::kTransfer, Sent(step, bytes));
    if (Error error = add_up(step, data, left)) return error;
  }
  if (step.compressed) KeepResiduals(layout, step, left);
  if (!fused) return Error();
  const auto [begin, end] = OwnOf(step);
  const Span span(Activity::kCopyOut, (end - begin) * static_cast<int64_t>(size));
  InPieces(step, begin, end - begin, [&](const Piece& piece, int64_t at) {
    char* to = At(static_cast<char*>(outputs[piece.entry]), piece.offset, size);
    std::memcpy(to, At(data, at, size), piece.count * size);
  });
  return Error();
}

int GatherStep(const Step& step, void* const* wholes, std::vector<char>* buffer, const Gather& gather) {
  const size_t size = SizeOf(step.type);
  const Piece& first = step.pieces.front();
  if (step.pieces.size() == 1) return gather(step, At(static_cast<char*>(wholes[first.entry]), first.offset, size));
  if (buffer->size() < step.count * size) buffer->resize(step.count * size);
  const auto copy = [&](int64_t begin, int64_t end, bool out) {
    InPieces(step, begin, end - begin, [&](const Piece& piece, int64_t at) {
      char* const whole = At(static_cast<char*>(wholes[piece.entry]), piece.offset, size);
      char* const fused = At(buffer->data(), at, size);
      std::memcpy(out ? whole : fused, out ? fused : whole, piece.count * size);
    });
  };
  const auto [begin, end] = OwnOf(step);
  copy(begin, end, false);
  if (const int code = gather(step, buffer->data())) return code;
  copy(0, begin, true);
  copy(end, step.count, true);
  return MPI_SUCCESS;
}

int RunStep(const Step& step, const void* const* inputs, void* const* outputs, double weight, SharedMemory* memory) {
  const size_t size = SizeOf(step.type);
  const int64_t bytes = step.count * static_cast<int64_t>(size);
  const Span bucket(Activity::kBucket, &step.name, bytes);
  const Span span(Activity::kTransfer, bytes);
  const auto put = [&](char* to, int64_t first, int64_t count) {
    InPieces(step, first, count, [&](const Piece& piece, int64_t at) {
      const char* const from = At(static_cast<const char*>(inputs[piece.entry]), piece.offset, size);
      Scale(step.type, from, At(to, at - first, size), piece.count, weight);
    });
  };
  return memory->Sum(step.type, step.count, put, [&](const char* one, const char* other, int64_t first, int64_t count) {
    InPieces(step, first, count, [&](const Piece& piece, int64_t at) {
      const char* const more = other == nullptr ? nullptr : At(other, at - first, size);
      char* const to = At(static_cast<char*>(outputs[piece.entry]), piece.offset, size);
      SharedMemory::Write(step.type, At(one, at - first, size), more, to, piece.count);
    });
  });
}

Scatter::Scatter(const Layout& layout, int ranks) {
  const Cuts& cuts = layout.cuts();
  for (int type = 0; type < kTypes; ++type) {
    Shares shares(ranks + 1);
    int64_t all = 0;
    const auto give = [&](Step* to, int entry, int64_t first, int64_t last) {
      if (first == last) return;
      to->pieces.push_back({entry, first, last - first});
      to->count += last - first;
      all += last - first;
    };
    for (int i = 0; i < static_cast<int>(layout.entries().size()); ++i) {
      const Entry& entry = layout.entries()[i];
      if (entry.type != static_cast<Type>(type)) continue;
      if (cuts[i].empty()) give(&shares.back(), i, 0, entry.count());
      for (int rank = 0; rank < ranks && !cuts[i].empty(); ++rank) give(&shares[rank], i, cuts[i][rank], cuts[i][rank + 1]);
    }
    for (Step& share : shares) {
      share.type = static_cast<Type>(type);
      share.name = NameOf(layout.entries(), 0, layout.entries().size());
    }
    if (all > 0) by_type.push_back(std::move(shares));
  }
}

// Each chunk contains equal amounts of each rank's share, so that all ranks sum equally much after each meeting.
int RunShares(const Shares& shares, const void* const* inputs, void* const* outputs, double weight, SharedMemory* memory) {
  const Type type = shares.front().type;
  const size_t size = SizeOf(type);
  int64_t longest = 0, all = 0, filled = 0;
  for (const Step& share : shares) {
    longest = std::max(longest, share.count);
    all += share.count;
    filled += share.count > 0;
  }
  const Span bucket(Activity::kBucket, &shares.front().name, all * static_cast<int64_t>(size));
  const Span span(Activity::kTransfer, all * static_cast<int64_t>(size));
  const int64_t part = memory->PartOf(type) / filled;
  std::vector<SharedMemory::Wanted> wanted;
  for (int64_t first = 0; first < longest; first += part) {
    char* mine = nullptr;
    if (const int code = memory->BeginPart(&mine)) return code;
    int64_t place = 0;
    wanted.clear();
    for (int share = 0; share < static_cast<int>(shares.size()); ++share) {
      const int64_t taken = std::min(std::max(shares[share].count - first, int64_t{0}), part);
      const bool is_wanted = share == memory->rank() || share == static_cast<int>(shares.size()) - 1;
      InPieces(shares[share], first, taken, [&](const Piece& piece, int64_t at) {
        const int64_t within = place + at - first;
        Scale(type, At(static_cast<const char*>(inputs[piece.entry]), piece.offset, size), At(mine, within, size),
              piece.count, weight);
        char* const to = At(static_cast<char*>(outputs[piece.entry]), piece.offset, size);
        if (is_wanted) wanted.push_back({within, piece.count, to});
      });
      place += taken;
    }
    if (const int code = memory->Sum(type, wanted)) return code;
  }
  return MPI_SUCCESS;
}

}  // namespace matex
