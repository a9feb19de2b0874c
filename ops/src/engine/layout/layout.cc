// Divides the entries of a layout into transfers, each of which is one sum over ranks. AppendOwned does it for entries
// with cuts, whose elements the ranks own in pieces; AppendShared for all other entries, whose sums go to every rank.
#include "engine/layout/layout.h"

#include <algorithm>
#include <utility>

#include "engine/base/hash.h"

namespace matex {
namespace {

bool IsCompressed(const Entry& entry, const Compression& compression) {
  return compression && entry.variable != 0 && entry.type == Type::kFloat32;
}

// Moves up to `max_count` elements from `unassigned`, a stack whose last fragment is moved first, to `fragments`.
// Returns the number of moved elements; it is less than `max_count` if `unassigned` had fewer elements.
int64_t MoveFragments(std::vector<Fragment>* unassigned, int64_t max_count, std::vector<Fragment>* fragments) {
  int64_t moved = 0;
  while (moved < max_count && !unassigned->empty()) {
    Fragment& next = unassigned->back();
    const int64_t count = std::min(max_count - moved, next.count);
    fragments->push_back({next.entry, next.offset, count});
    next.offset += count;
    next.count -= count;
    if (next.count == 0) unassigned->pop_back();
    moved += count;
  }
  return moved;
}

// For messages: dense/kernel and 2 more; or, for a part of a large entry: dense/kernel from element 4096.
std::string NameOf(const Transfer& transfer, const std::vector<Entry>& entries) {
  const Fragment& first = transfer.fragments.front();
  const Entry& entry = entries[first.entry];
  const std::string from = first.count < entry.count() ? " from element " + std::to_string(first.offset) : "";
  return NameAll(entry.name, transfer.fragments.size()) + from;
}

}  // namespace

int64_t Entry::count() const {
  int64_t count = 1;
  for (int64_t dimension : shape) count *= dimension;
  return count;
}

std::string Entry::ToString() const { return "'" + name + "', " + NameOf(type) + " " + ShapeText(shape); }

bool Entry::operator==(const Entry& other) const {
  return name == other.name && type == other.type && shape == other.shape;
}

std::string UpdatePart::Name() const {
  return place + ": " + (gradients.empty() ? NameOf(layout->entries()) : gradients);
}

std::string NameAll(const std::string& first, size_t count) {
  return first + (count == 1 ? "" : " and " + std::to_string(count - 1) + " more");
}

std::string NameOf(const std::vector<Entry>& entries) {
  return entries.empty() ? "no gradients" : NameAll(entries[0].name, entries.size());
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Layout::Layout(std::vector<Entry> entries, int64_t chunk_bytes, int64_t fuse_bytes, const Compression& compression,
               bool compiled, bool checked, Cuts cuts)
    : entries_(std::move(entries)),
      chunk_bytes_(chunk_bytes),
      fuse_bytes_(fuse_bytes),
      compression_(compression),
      compiled_(compiled),
      checked_(checked),
      cuts_(checked ? Cuts() : std::move(cuts)) {
  // Sums go to all ranks, without cuts, in a checked layout and for compressed entries. A residual is what compression
  // has not sent yet.
  if (!cuts_.empty()) cuts_.resize(entries_.size());  // the last entries may have none
  for (size_t i = 0; i < entries_.size(); ++i) {
    const bool is_compressed = IsCompressed(entries_[i], compression);
    residuals_.push_back(is_compressed ? ResidualOf(entries_[i].variable, entries_[i].count()) : nullptr);
    if (is_compressed && !cuts_.empty()) cuts_[i].clear();
  }
  key_ = ComputeKey();
  Append(0, static_cast<int>(entries_.size()), &transfers_);
}

uint64_t Layout::ComputeKey() const {
  Hasher hasher;
  hasher.Add(compression_.ToString());
  hasher.Add(chunk_bytes_).Add(fuse_bytes_).Add(static_cast<int64_t>(compiled_) | static_cast<int64_t>(checked_) << 1);
  hasher.Add(static_cast<int64_t>(entries_.size()));
  for (const Entry& entry : entries_) {
    hasher.Add(entry.name).Add(static_cast<int64_t>(entry.type)).Add(static_cast<int64_t>(entry.shape.size()));
    for (int64_t dimension : entry.shape) hasher.Add(dimension);
    hasher.Add(static_cast<int64_t>(IsCompressed(entry, compression_)));
  }
  for (const std::vector<int64_t>& of_entry : cuts_) {
    hasher.Add(static_cast<int64_t>(of_entry.size()));
    for (const int64_t cut : of_entry) hasher.Add(cut);
  }
  return hasher.value();
}

int64_t Layout::ElementsPerChunk(Type type) const {
  return std::max<int64_t>(chunk_bytes_ / static_cast<int64_t>(SizeOf(type)), 1);
}

std::vector<Transfer> Layout::TransfersOf(const std::vector<int>& boundaries) const {
  std::vector<Transfer> transfers;
  for (size_t k = 0; k + 1 < boundaries.size(); ++k) Append(boundaries[k], boundaries[k + 1], &transfers);
  return transfers;
}

// A bucket ends as soon as it has `fuse_bytes`.
std::vector<Transfer> Layout::TransfersInOrder() const {
  std::vector<int> boundaries{0};
  const int count = static_cast<int>(entries_.size());
  int64_t bucket_bytes = 0;
  for (int i = 0; i < count; ++i) {
    bucket_bytes += entries_[i].bytes();
    if (bucket_bytes < fuse_bytes_ && i + 1 < count) continue;
    boundaries.push_back(i + 1);
    bucket_bytes = 0;
  }
  return TransfersOf(boundaries);
}

void Layout::Append(int begin, int end, std::vector<Transfer>* transfers) const {
  AppendOwned(begin, end, transfers);
  AppendShared(begin, end, transfers);
}

// Appends the transfers of the entries in [begin, end) that have cuts. A large entry has its own transfers. Small
// entries of one type form a group, which is complete when it has the bytes of a chunk.
void Layout::AppendOwned(int begin, int end, std::vector<Transfer>* transfers) const {
  std::vector<int> groups[kTypes];
  int64_t group_bytes[kTypes] = {};
  for (int i = begin; i < end; ++i) {
    const Entry& entry = entries_[i];
    if (!HasCuts(i) || entry.count() == 0) continue;
    if (entry.bytes() >= fuse_bytes_) {
      AppendOwnedGroup({i}, transfers);
      continue;
    }
    const int type = static_cast<int>(entry.type);
    groups[type].push_back(i);
    group_bytes[type] += entry.bytes();
    if (group_bytes[type] < chunk_bytes_) continue;
    AppendOwnedGroup(groups[type], transfers);
    groups[type].clear();
    group_bytes[type] = 0;
  }
  for (const std::vector<int>& group : groups) {
    if (!group.empty()) AppendOwnedGroup(group, transfers);
  }
}

// Appends the transfers of a group of entries of one type, which have cuts. Each transfer takes elements of every
// owner, equally many while there are any, so all ranks send and receive at once; a contiguous chunk would belong to
// one owner. If two ranks own 6 elements each and a chunk has 4, each of three transfers takes 2 elements of each.
void Layout::AppendOwnedGroup(const std::vector<int>& group, std::vector<Transfer>* transfers) const {
  const Type type = entries_[group[0]].type;
  const size_t ranks = cuts_[group[0]].size() - 1;
  std::vector<std::vector<Fragment>> unassigned(ranks);  // by owner: a stack of the elements without a transfer
  int64_t total = 0, most_owned = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    int64_t owned = 0;
    for (auto i = group.rbegin(); i != group.rend(); ++i) {
      const int64_t offset = cuts_[*i][rank], count = cuts_[*i][rank + 1] - offset;
      if (count > 0) unassigned[rank].push_back({*i, offset, count});
      owned += count;
    }
    total += owned;
    most_owned = std::max(most_owned, owned);
  }
  const int64_t chunk = ElementsPerChunk(type);
  const int64_t transfer_count = (total + chunk - 1) / chunk;
  for (int64_t k = 0; k < transfer_count; ++k) {
    Transfer transfer;
    transfer.type = type;
    transfer.name = NameAll(entries_[group[0]].name, group.size());
    if (transfer_count > 1)
      transfer.name += ", part " + std::to_string(k + 1) + " of " + std::to_string(transfer_count);
    const int64_t max_of_owner = (most_owned + transfer_count - 1) / transfer_count;  // elements in one transfer
    for (std::vector<Fragment>& of_owner : unassigned) {
      transfer.owned.push_back(MoveFragments(&of_owner, max_of_owner, &transfer.fragments));
      transfer.count += transfer.owned.back();
    }
    if (transfer.count > 0) transfers->push_back(std::move(transfer));
  }
}

// Appends the transfers of the entries in [begin, end) that have no cuts. A large entry is cut into transfers of one
// chunk, the last of them shorter. Small entries of one type fill transfers one after another; a transfer is complete
// when it has a chunk. Compressed and uncompressed entries have separate transfers.
void Layout::AppendShared(int begin, int end, std::vector<Transfer>* transfers) const {
  const auto append = [&](Transfer* transfer) {
    transfer->name = NameOf(*transfer, entries_);
    transfers->push_back(std::move(*transfer));
    *transfer = Transfer();
  };
  Transfer fused[2][kTypes];  // incomplete transfers of small entries, by [is_compressed][type]
  for (int i = begin; i < end; ++i) {
    if (HasCuts(i)) continue;
    const Entry& entry = entries_[i];
    const int64_t count = entry.count();
    const int64_t chunk = ElementsPerChunk(entry.type);
    const bool is_compressed = residuals_[i] != nullptr;
    const bool is_small = entry.bytes() < fuse_bytes_;
    Transfer own;
    Transfer& transfer = is_small ? fused[is_compressed][static_cast<int>(entry.type)] : own;
    for (int64_t offset = 0; offset < count;) {
      const int64_t length = std::min(count - offset, chunk - transfer.count);
      transfer.type = entry.type;
      transfer.compressed = is_compressed;
      transfer.fragments.push_back({i, offset, length});
      transfer.count += length;
      offset += length;
      const bool is_last_of_large = !is_small && offset == count;
      if (transfer.count == chunk || is_last_of_large) append(&transfer);
    }
  }
  for (auto& of_all_types : fused) {
    for (Transfer& transfer : of_all_types) {
      if (transfer.count > 0) append(&transfer);
    }
  }
}

}  // namespace matex
