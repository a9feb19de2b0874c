// A transfer, one sum over ranks, is made in one of three forms. RunTransfer with a buffer scales gradients (by this
// rank's weight) into the buffer, where the caller's function sums them. RunTransfer with shared memory scales them
// into this memory and sums them from there. RunShares does the same if each rank needs only some sums, because it
// updates only its pieces of the variables; of two ranks, each scales only what the other needs into this memory.
// GatherTransfer then gives the updated pieces to all ranks.
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

// The address of element `offset` of an array whose elements have `size` bytes.
template <typename Byte>
Byte* At(Byte* array, int64_t offset, size_t size) {
  return array + offset * static_cast<int64_t>(size);
}

// The address of a fragment in its tensor. `tensors`: the inputs or outputs, by entry.
const char* At(const void* const* tensors, const Fragment& fragment, size_t size) {
  return At(static_cast<const char*>(tensors[fragment.entry]), fragment.offset, size);
}
char* At(void* const* tensors, const Fragment& fragment, size_t size) {
  return At(static_cast<char*>(tensors[fragment.entry]), fragment.offset, size);
}

// Writes elements [first, first + count) of the transfer, this rank's gradients times `weight`, to `to`.
void ScaleInto(char* to, const Transfer& transfer, const void* const* inputs, int64_t first, int64_t count,
               double weight) {
  const size_t size = SizeOf(transfer.type);
  InFragments(transfer, first, count, [&](const Fragment& fragment, int64_t at) {
    Scale(transfer.type, At(inputs, fragment, size), At(to, at - first, size), fragment.count, weight);
  });
}

// Adds the residuals, which compression has left out of earlier sums, to the gradients of the transfer in `data`, and
// sets the residuals to zero.
void AddResiduals(const Layout& layout, const Transfer& transfer, float* data) {
  for (const Fragment& fragment : transfer.fragments) {
    std::vector<float>& residual = *layout.residual(fragment.entry);
    residual.resize(layout.entries()[fragment.entry].count());
    float* const from = residual.data() + fragment.offset;
    for (int64_t i = 0; i < fragment.count; ++i) data[i] += from[i];
    std::fill_n(from, fragment.count, 0.0f);
    data += fragment.count;
  }
}

// Adds `residual`, which compression has left out of this sum, to the residuals of the gradients. (A variable may occur
// twice in a transfer.)
void KeepResiduals(const Layout& layout, const Transfer& transfer, const float* residual) {
  for (const Fragment& fragment : transfer.fragments) {
    float* const to = layout.residual(fragment.entry)->data() + fragment.offset;
    for (int64_t i = 0; i < fragment.count; ++i) to[i] += residual[i];
    residual += fragment.count;
  }
}

// The range of the elements that this rank needs: its own elements, or the whole transfer if ranks own none.
std::pair<int64_t, int64_t> OwnOf(const Transfer& transfer) {
  if (transfer.owned.empty()) return {0, transfer.count};
  const auto own = transfer.owned.begin() + TheWorld().rank;
  const int64_t first = std::accumulate(transfer.owned.begin(), own, int64_t{0});
  return {first, first + *own};
}

// The bytes of an uncompressed all-reduce that costs as much as this transfer of `bytes`, for the recorder (trace.h). A
// transfer of owned elements is a reduce-scatter, which goes around the ring once; an all-reduce goes around twice.
int64_t EquivalentBytes(const Transfer& transfer, int64_t bytes) {
  if (!transfer.owned.empty()) return bytes / 2;
  if (!transfer.compressed) return bytes;
  const World& world = TheWorld();
  if (world.compression.between_nodes) return bytes;  // only the part between nodes is compressed
  return static_cast<int64_t>(bytes * world.compression.CompressedFraction(world.size));
}

}  // namespace

Error RunTransfer(const Layout& layout, const Transfer& transfer, const void* const* inputs, void* const* outputs,
                  double weight, std::vector<char>* buffer, const AddUp& add_up) {
  const size_t size = SizeOf(transfer.type);  // of an element
  const bool fused = transfer.fragments.size() > 1;
  const int64_t bytes = transfer.count * static_cast<int64_t>(size);
  const Span bucket(Activity::kBucket, &transfer.name, bytes);
  // The buffer: the fused elements, and then the residuals.
  const size_t fused_bytes = fused ? transfer.count * size : 0;
  const size_t residual_bytes = transfer.compressed ? transfer.count * sizeof(float) : 0;
  if (buffer->size() < fused_bytes + residual_bytes) buffer->resize(fused_bytes + residual_bytes);
  float* const residual = transfer.compressed ? reinterpret_cast<float*>(buffer->data() + fused_bytes) : nullptr;
  char* const data = fused ? buffer->data() : At(outputs, transfer.fragments.front(), size);
  // Each transfer is scaled just before its sum and copied out just after it, so that it stays in the cache.
  {
    const Span span(Activity::kCopyIn, bytes);
    ScaleInto(data, transfer, inputs, 0, transfer.count, weight);
    if (transfer.compressed) AddResiduals(layout, transfer, reinterpret_cast<float*>(data));
  }
  {
    const Span span(Activity::kTransfer, EquivalentBytes(transfer, bytes));
    if (Error error = add_up(transfer, data, residual)) return error;
  }
  if (transfer.compressed) KeepResiduals(layout, transfer, residual);
  if (!fused) return Error();  // the sums are in the output already
  const auto [begin, end] = OwnOf(transfer);
  const Span span(Activity::kCopyOut, (end - begin) * static_cast<int64_t>(size));
  InFragments(transfer, begin, end - begin, [&](const Fragment& fragment, int64_t at) {
    std::memcpy(At(outputs, fragment, size), At(data, at, size), fragment.count * size);
  });
  return Error();
}

int GatherTransfer(const Transfer& transfer, void* const* wholes, std::vector<char>* buffer, const Gather& gather) {
  const size_t size = SizeOf(transfer.type);
  if (transfer.fragments.size() == 1) return gather(transfer, At(wholes, transfer.fragments.front(), size));
  if (buffer->size() < transfer.count * size) buffer->resize(transfer.count * size);
  enum class Direction { kToBuffer, kToVariables };
  // Copies elements [begin, end) of the transfer between the variables and the buffer.
  const auto copy = [&](int64_t begin, int64_t end, Direction direction) {
    InFragments(transfer, begin, end - begin, [&](const Fragment& fragment, int64_t at) {
      char* const whole = At(wholes, fragment, size);
      char* const fused = At(buffer->data(), at, size);
      const bool is_to_buffer = direction == Direction::kToBuffer;
      std::memcpy(is_to_buffer ? fused : whole, is_to_buffer ? whole : fused, fragment.count * size);
    });
  };
  const auto [begin, end] = OwnOf(transfer);
  copy(begin, end, Direction::kToBuffer);
  if (const int code = gather(transfer, buffer->data())) return code;
  copy(0, begin, Direction::kToVariables);  // the elements of other ranks, before and after this rank's own
  copy(end, transfer.count, Direction::kToVariables);
  return MPI_SUCCESS;
}

int RunTransfer(const Transfer& transfer, const void* const* inputs, void* const* outputs, double weight,
                SharedMemory* memory) {
  const size_t size = SizeOf(transfer.type);
  const int64_t bytes = transfer.count * static_cast<int64_t>(size);
  const Span bucket(Activity::kBucket, &transfer.name, bytes);
  const Span span(Activity::kTransfer, bytes);
  const auto produce = [&](char* to, int64_t first, int64_t count) {
    ScaleInto(to, transfer, inputs, first, count, weight);
  };
  // Writes the sums of elements [first, first + count), one + other, or `one` if `other` is null, to the outputs.
  const auto consume = [&](const char* one, const char* other, int64_t first, int64_t count) {
    InFragments(transfer, first, count, [&](const Fragment& fragment, int64_t at) {
      const char* const addend = other == nullptr ? nullptr : At(other, at - first, size);
      SharedMemory::Write(transfer.type, At(one, at - first, size), addend, At(outputs, fragment, size),
                          fragment.count);
    });
  };
  return memory->Sum(transfer.type, transfer.count, produce, consume);
}

// For each type of elements, a share for each rank, of the elements that only this rank needs (layout.cuts()), and one
// for all ranks.
Scatter::Scatter(const Layout& layout, int ranks) {
  const Cuts& cuts = layout.cuts();
  for (int type = 0; type < kTypes; ++type) {
    Shares shares(ranks + 1);
    int64_t total = 0;
    const auto add = [&](Transfer* to, int entry, int64_t first, int64_t last) {  // elements [first, last) of the entry
      if (first == last) return;
      to->fragments.push_back({entry, first, last - first});
      to->count += last - first;
      total += last - first;
    };
    for (int i = 0; i < static_cast<int>(layout.entries().size()); ++i) {
      const Entry& entry = layout.entries()[i];
      if (entry.type != static_cast<Type>(type)) continue;
      if (cuts[i].empty()) {
        add(&shares.back(), i, 0, entry.count());
        continue;
      }
      for (int rank = 0; rank < ranks; ++rank) add(&shares[rank], i, cuts[i][rank], cuts[i][rank + 1]);
    }
    for (Transfer& share : shares) {
      share.type = static_cast<Type>(type);
      share.name = NameOf(layout.entries());
    }
    if (total > 0) by_type.push_back(std::move(shares));
  }
}

namespace {

// RunShares for two ranks. A rank writes only the elements that the other rank needs, and adds the other rank's
// elements to its own gradients, which stay where they are.
int ExchangeShares(const Shares& shares, const void* const* inputs, void* const* outputs, double weight,
                   SharedMemory* memory) {
  const Transfer& mine = shares[memory->rank()];
  const Transfer& theirs = shares[1 - memory->rank()];
  const Transfer& for_all = shares.back();
  const Type type = mine.type;
  const size_t size = SizeOf(type);
  const int64_t bytes = (mine.count + theirs.count) * static_cast<int64_t>(size);
  if (bytes > 0) {
    const Span bucket(Activity::kBucket, &mine.name, bytes);
    const Span span(Activity::kTransfer, bytes);
    const auto produce = [&](char* to, int64_t first, int64_t count) {
      ScaleInto(to, theirs, inputs, first, count, weight);
    };
    const auto consume = [&](const char* other, int64_t first, int64_t count) {
      InFragments(mine, first, count, [&](const Fragment& fragment, int64_t at) {
        const char* own = At(inputs, fragment, size);
        char* const to = At(outputs, fragment, size);
        if (weight != 1) {
          Scale(type, own, to, fragment.count, weight);
          own = to;
        }
        Add(type, own, At(other, at - first, size), to, fragment.count);
      });
    };
    if (const int code = memory->Exchange(type, theirs.count, mine.count, produce, consume)) return code;
  }
  return for_all.count > 0 ? RunTransfer(for_all, inputs, outputs, weight, memory) : MPI_SUCCESS;
}

}  // namespace

// The shares of more than two ranks pass through shared memory in chunks. Each chunk contains equally many elements of
// each share, so that all ranks sum equally many after each meeting. With three ranks, shares of 5, 5, 5 and 2 elements
// and room for 12 elements in a chunk, the first chunk has elements 0-2 of three shares and 0-1 of the last, the second
// chunk elements 3-4 of three shares.
int RunShares(const Shares& shares, const void* const* inputs, void* const* outputs, double weight,
              SharedMemory* memory) {
  if (memory->size() == 2) return ExchangeShares(shares, inputs, outputs, weight, memory);
  const Type type = shares.front().type;
  const size_t size = SizeOf(type);
  int64_t longest = 0, total = 0, nonempty = 0;
  for (const Transfer& share : shares) {
    longest = std::max(longest, share.count);
    total += share.count;
    nonempty += share.count > 0;
  }
  const Span bucket(Activity::kBucket, &shares.front().name, total * static_cast<int64_t>(size));
  const Span span(Activity::kTransfer, total * static_cast<int64_t>(size));
  const int64_t max_of_share = memory->ElementsPerChunk(type) / nonempty;  // elements of a share in one chunk
  std::vector<SharedMemory::Needed> needed_ranges;
  for (int64_t first = 0; first < longest; first += max_of_share) {
    char* const mine = memory->BeginChunk();
    // This rank writes its elements of all shares, and then sums only the ranges that this rank needs.
    int64_t share_start = 0;  // within the chunk
    needed_ranges.clear();
    for (int share = 0; share < static_cast<int>(shares.size()); ++share) {
      const int64_t count = std::clamp<int64_t>(shares[share].count - first, 0, max_of_share);
      ScaleInto(At(mine, share_start, size), shares[share], inputs, first, count, weight);
      const bool is_for_all = share == static_cast<int>(shares.size()) - 1;
      if (is_for_all || share == memory->rank()) {
        InFragments(shares[share], first, count, [&](const Fragment& fragment, int64_t at) {
          needed_ranges.push_back({share_start + at - first, fragment.count, At(outputs, fragment, size)});
        });
      }
      share_start += count;
    }
    if (const int code = memory->SumNeeded(type, needed_ranges)) return code;
  }
  return MPI_SUCCESS;
}

}  // namespace matex
