// Divides the entries of a layout into transfers: entries that all ranks need (Append) and entries whose elements the
// ranks own in pieces (AppendOwned).
#include "engine/layout/layout.h"

#include <algorithm>
#include <utility>

#include "engine/base/hash.h"

namespace matex {
namespace {

bool IsCompressed(const Entry& entry, const Compression& compression) {
  return compression && entry.variable != 0 && entry.type == Type::kFloat32;
}

uint64_t KeyOf(const std::vector<Entry>& entries, int64_t chunk_bytes, int64_t fuse_bytes,
               const Compression& compression, bool compiled, bool checked, const Cuts& cuts) {
  Hasher hasher;
  hasher.Add(compression.ToString());
  hasher.Add(chunk_bytes).Add(fuse_bytes).Add(static_cast<int64_t>(compiled) | static_cast<int64_t>(checked) << 1);
  hasher.Add(static_cast<int64_t>(entries.size()));
  for (const Entry& entry : entries) {
    hasher.Add(entry.name).Add(static_cast<int64_t>(entry.type)).Add(static_cast<int64_t>(entry.shape.size()));
    for (int64_t dimension : entry.shape) hasher.Add(dimension);
    hasher.Add(static_cast<int64_t>(IsCompressed(entry, compression)));
  }
  for (const std::vector<int64_t>& of_entry : cuts) {
    hasher.Add(static_cast<int64_t>(of_entry.size()));
    for (const int64_t cut : of_entry) hasher.Add(cut);
  }
  return hasher.value();
}

// Moves up to `room` elements from the end of `unassigned` to `fragments`; returns their number.
int64_t MoveFragments(std::vector<Fragment>* unassigned, int64_t room, std::vector<Fragment>* fragments) {
  const int64_t wanted = room;
  while (room > 0 && !unassigned->empty()) {
    Fragment& next = unassigned->back();
    const int64_t taken = std::min(room, next.count);
    fragments->push_back({next.entry, next.offset, taken});
    next.offset += taken;
    next.count -= taken;
    if (next.count == 0) unassigned->pop_back();
    room -= taken;
  }
  return wanted - room;
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
  return place + ": " + (gradients.empty() ? NameOf(layout->entries(), 0, layout->entries().size()) : gradients);
}

std::string NameOf(const std::vector<Entry>& entries, size_t begin, size_t end) {
  if (begin == end) return "no gradients";
  return entries[begin].name + (end - begin == 1 ? "" : " and " + std::to_string(end - begin - 1) + " more");
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
  if (!cuts_.empty()) cuts_.resize(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) {
    const bool is_compressed = IsCompressed(entries_[i], compression);
    residuals_.push_back(is_compressed ? ResidualOf(entries_[i].variable, entries_[i].count()) : nullptr);
    if (is_compressed && !cuts_.empty()) cuts_[i].clear();
  }
  key_ = KeyOf(entries_, chunk_bytes, fuse_bytes, compression, compiled, checked, cuts_);
  Append(0, static_cast<int>(entries_.size()), &transfers_);
}

std::vector<Transfer> Layout::TransfersOf(const std::vector<int>& boundaries) const {
  std::vector<Transfer> transfers;
  for (size_t k = 0; k + 1 < boundaries.size(); ++k) Append(boundaries[k], boundaries[k + 1], &transfers);
  return transfers;
}

std::vector<Transfer> Layout::TransfersInOrder() const {
  std::vector<int> boundaries{0};
  int64_t bytes = 0;
  for (int i = 0; i < static_cast<int>(entries_.size()); ++i) {
    bytes += entries_[i].bytes();
    if (bytes < fuse_bytes_ && i + 1 < static_cast<int>(entries_.size())) continue;
    boundaries.push_back(i + 1);
    bytes = 0;
  }
  return TransfersOf(boundaries);
}

// Appends the transfers of a group of entries of one type, which have cuts. Each transfer takes a share of every
// owner's elements, so all ranks send and receive at once; a contiguous chunk would belong to one owner.
void Layout::AppendGroup(const std::vector<int>& group, std::vector<Transfer>* transfers) const {
  if (group.empty()) return;
  const Entry& first = entries_[group[0]];
  const size_t ranks = cuts_[group[0]].size() - 1;
  // For each rank: its fragments that are in no transfer yet, in reverse order.
  std::vector<std::vector<Fragment>> unassigned(ranks);
  int64_t all = 0, longest = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    int64_t owned = 0;
    for (auto i = group.rbegin(); i != group.rend(); ++i) {
      const int64_t from = cuts_[*i][rank], count = cuts_[*i][rank + 1] - from;
      if (count > 0) unassigned[rank].push_back({*i, from, count});
      owned += count;
    }
    all += owned;
    longest = std::max(longest, owned);
  }
  const int64_t chunk = std::max<int64_t>(chunk_bytes_ / static_cast<int64_t>(SizeOf(first.type)), 1);
  const int64_t count = (all + chunk - 1) / chunk;  // of transfers
  for (int64_t k = 0; k < count; ++k) {
    Transfer transfer;
    transfer.type = first.type;
    transfer.name = NameOf(entries_, group[0], group[0] + group.size());
    if (count > 1) transfer.name += ", part " + std::to_string(k + 1) + " of " + std::to_string(count);
    for (std::vector<Fragment>& of_rank : unassigned) {
      transfer.owned.push_back(MoveFragments(&of_rank, (longest + count - 1) / count, &transfer.fragments));
      transfer.count += transfer.owned.back();
    }
    if (transfer.count > 0) transfers->push_back(std::move(transfer));
  }
}

// Appends the transfers of entries [begin, end) that have cuts: of large entries alone, of small ones in groups.
void Layout::AppendOwned(int begin, int end, std::vector<Transfer>* transfers) const {
  std::vector<int> small[kTypes];
  int64_t bytes[kTypes] = {};
  for (int i = begin; i < end; ++i) {
    const Entry& entry = entries_[i];
    if (cuts_.empty() || cuts_[i].empty() || entry.count() == 0) continue;
    if (entry.bytes() >= fuse_bytes_) {
      AppendGroup({i}, transfers);
      continue;
    }
    const int type = static_cast<int>(entry.type);
    small[type].push_back(i);
    bytes[type] += entry.bytes();
    if (bytes[type] < chunk_bytes_) continue;
    AppendGroup(small[type], transfers);
    small[type].clear();
    bytes[type] = 0;
  }
  for (const std::vector<int>& group : small) AppendGroup(group, transfers);
}

// Appends the transfers of entries [begin, end).
void Layout::Append(int begin, int end, std::vector<Transfer>* transfers) const {
  AppendOwned(begin, end, transfers);
  size_t first_unnamed = transfers->size();
  // The transfers being filled: one for each type, uncompressed and compressed.
  Transfer filling[2][kTypes];
  for (int compressed : {0, 1}) {
    for (int type = 0; type < kTypes; ++type) {
      filling[compressed][type].type = static_cast<Type>(type);
      filling[compressed][type].compressed = compressed != 0;
    }
  }
  for (int i = begin; i < end; ++i) {
    if (!cuts_.empty() && !cuts_[i].empty()) continue;
    const Entry& entry = entries_[i];
    const int64_t count = entry.count();
    const int64_t size = static_cast<int64_t>(SizeOf(entry.type));
    const int64_t chunk = std::max<int64_t>(chunk_bytes_ / size, 1);
    const bool fused = count * size < fuse_bytes_;
    Transfer alone;
    alone.type = entry.type;
    alone.compressed = residuals_[i] != nullptr;
    Transfer& transfer = fused ? filling[alone.compressed][static_cast<int>(entry.type)] : alone;
    for (int64_t offset = 0; offset < count;) {
      const int64_t taken = std::min(count - offset, chunk - transfer.count);
      transfer.fragments.push_back({i, offset, taken});
      transfer.count += taken;
      offset += taken;
      if (transfer.count == chunk || (!fused && offset == count)) {
        transfers->push_back(std::move(transfer));
        transfer = Transfer();
        transfer.type = entry.type;
        transfer.compressed = residuals_[i] != nullptr;
      }
    }
  }
  for (auto& transfers_of_type : filling) {
    for (Transfer& transfer : transfers_of_type) {
      if (transfer.count > 0) transfers->push_back(std::move(transfer));
    }
  }
  for (; first_unnamed < transfers->size(); ++first_unnamed) {
    Transfer& transfer = (*transfers)[first_unnamed];
    const Fragment& first = transfer.fragments.front();
    const Entry& entry = entries_[first.entry];
    transfer.name = entry.name;
    if (transfer.fragments.size() > 1)
      transfer.name += " and " + std::to_string(transfer.fragments.size() - 1) + " more";
    if (first.count < entry.count()) transfer.name += " from element " + std::to_string(first.offset);
  }
}

}  // namespace matex
