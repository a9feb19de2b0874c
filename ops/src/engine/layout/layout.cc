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
               const Compression& compression, bool compiled, bool checked) {
  Hasher hasher;
  hasher.Add(compression.ToString());
  hasher.Add(chunk_bytes).Add(fuse_bytes).Add(static_cast<int64_t>(compiled) | static_cast<int64_t>(checked) << 1);
  hasher.Add(static_cast<int64_t>(entries.size()));
  for (const Entry& entry : entries) {
    hasher.Add(entry.name).Add(static_cast<int64_t>(entry.type)).Add(static_cast<int64_t>(entry.shape.size()));
    for (int64_t dimension : entry.shape) hasher.Add(dimension);
    hasher.Add(static_cast<int64_t>(IsCompressed(entry, compression)));
  }
  return hasher.value();
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

std::string Part::Name() const {
  return place + ": " + (of.empty() ? NameOf(layout->entries(), 0, layout->entries().size()) : of);
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
               bool compiled, bool checked)
    : entries_(std::move(entries)),
      chunk_bytes_(chunk_bytes),
      fuse_bytes_(fuse_bytes),
      compression_(compression),
      compiled_(compiled),
      checked_(checked),
      key_(KeyOf(entries_, chunk_bytes, fuse_bytes, compression, compiled, checked)) {
  for (const Entry& entry : entries_) {
    residuals_.push_back(IsCompressed(entry, compression) ? ResidualOf(entry.variable, entry.count()) : nullptr);
  }
  Append(0, static_cast<int>(entries_.size()), &steps_);
}

std::vector<Step> Layout::StepsOf(const std::vector<int>& boundaries) const {
  std::vector<Step> steps;
  for (size_t k = 0; k + 1 < boundaries.size(); ++k) Append(boundaries[k], boundaries[k + 1], &steps);
  return steps;
}

void Layout::Append(int begin, int end, std::vector<Step>* steps) const {
  size_t named = steps->size();
  // Those under way, of each type, and what is compressed apart.
  Step open[2][kTypes];
  for (int compressed : {0, 1}) {
    for (int type = 0; type < kTypes; ++type) {
      open[compressed][type].type = static_cast<Type>(type);
      open[compressed][type].compressed = compressed != 0;
    }
  }
  for (int i = begin; i < end; ++i) {
    const Entry& entry = entries_[i];
    const int64_t count = entry.count();
    const int64_t size = static_cast<int64_t>(SizeOf(entry.type));
    const int64_t chunk = std::max<int64_t>(chunk_bytes_ / size, 1);
    const bool fused = count * size < fuse_bytes_;
    Step alone;
    alone.type = entry.type;
    alone.compressed = residuals_[i] != nullptr;
    Step& step = fused ? open[alone.compressed][static_cast<int>(entry.type)] : alone;
    for (int64_t offset = 0; offset < count;) {
      const int64_t taken = std::min(count - offset, chunk - step.count);
      step.pieces.push_back({i, offset, taken});
      step.count += taken;
      offset += taken;
      if (step.count == chunk || (!fused && offset == count)) {
        steps->push_back(std::move(step));
        step = Step();
        step.type = entry.type;
        step.compressed = residuals_[i] != nullptr;
      }
    }
  }
  for (auto& steps_under_way : open) {
    for (Step& step : steps_under_way) {
      if (step.count > 0) steps->push_back(std::move(step));
    }
  }
  for (; named < steps->size(); ++named) {
    Step& step = (*steps)[named];
    const Piece& first = step.pieces.front();
    const Entry& entry = entries_[first.entry];
    step.name = entry.name;
    if (step.pieces.size() > 1) step.name += " and " + std::to_string(step.pieces.size() - 1) + " more";
    if (first.count < entry.count()) step.name += " from element " + std::to_string(first.offset);
  }
}

}  // namespace matex
