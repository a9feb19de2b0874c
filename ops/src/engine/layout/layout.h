// How the gradients of one update are laid out for their reduction: agreed once by all ranks, negotiated never.
//
// A layout says nothing of when it runs. `inline.h` runs it in the calling thread; a communication thread can walk the
// same steps bucket by bucket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layout/compression.h"
#include "engine/layout/error_feedback.h"
#include "engine/base/types.h"

namespace matex {

struct Entry {
  std::string name;
  Type type;
  std::vector<int64_t> shape;
  // This rank's number of the variable that it is the gradient of; 0: of none, and it is never compressed.
  int64_t variable = 0;

  int64_t count() const;
  int64_t bytes() const { return count() * static_cast<int64_t>(SizeOf(type)); }
  std::string ToString() const;  // 'dense/kernel', float32 [784, 10]
  bool operator==(const Entry& other) const;
};

// Elements [offset, offset + count) of an entry.
struct Piece {
  int entry;
  int64_t offset;
  int64_t count;
};

// Which rank owns what: of entry `i` rank r has the elements from cuts[i][r] up to cuts[i][r + 1]. Where cuts[i] is empty
// all ranks need all.
using Cuts = std::vector<std::vector<int64_t>>;

// One sum over ranks, of at most a chunk. A step of one piece is reduced where it lies; several are fused in a buffer.
struct Step {
  Type type;
  int64_t count = 0;
  std::vector<Piece> pieces;
  bool compressed = false;
  std::vector<int64_t> owned;  // how many elements each rank owns, first those of rank 0; empty: all ranks need all
  std::string name;  // for people: of which gradients
};

class Layout {
 public:
  // Entries of fewer than `fuse_bytes` are fused, in the order given, with others of their type. `compiled` says that
  // the update is part of a step that XLA has compiled: its other parts round otherwise than TensorFlow's own kernels, so
  // all ranks must do it the same way. `checked` says that gradients that are no finite numbers are an error. The
  // float32 gradients of variables are subject to `compression`. What `cuts` says of those, and where it is checked, does
  // not count: all ranks get all. Each step of the others has a part for each rank.
  Layout(std::vector<Entry> entries, int64_t chunk_bytes, int64_t fuse_bytes, const Compression& compression = {},
         bool compiled = false, bool checked = false, Cuts cuts = {});

  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<Step>& steps() const { return steps_; }
  int64_t chunk_bytes() const { return chunk_bytes_; }
  int64_t fuse_bytes() const { return fuse_bytes_; }
  const Compression& compression() const { return compression_; }
  bool compiled() const { return compiled_; }
  bool checked() const { return checked_; }
  const Cuts& cuts() const { return cuts_; }  // empty, or of each entry

  // A hash of everything above: ranks with equal keys make equal MPI calls.
  uint64_t key() const { return key_; }

  // What compression has left out of entry `i`; null if that is not compressed.
  const Residual& residual(int i) const { return residuals_[i]; }

  // The steps in which nothing of one bucket is fused with something of another; `boundaries` as in buckets.h.
  std::vector<Step> StepsOf(const std::vector<int>& boundaries) const;

  // The steps in which entries travel in their order, with few others beside those that are smaller than `fuse_bytes`.
  std::vector<Step> StepsInOrder() const;

 private:
  void Append(int begin, int end, std::vector<Step>* steps) const;
  void AppendOwned(int begin, int end, std::vector<Step>* steps) const;

  std::vector<Entry> entries_;
  std::vector<Step> steps_;
  int64_t chunk_bytes_;
  int64_t fuse_bytes_;
  Compression compression_;
  bool compiled_;
  bool checked_;
  std::vector<Residual> residuals_;
  Cuts cuts_;
  uint64_t key_;
};

// What is announced of an overlapped update at once: all of it, or those gradients that need the same collectives.
struct Part {
  std::shared_ptr<const Layout> layout;
  std::string place;    // of the update in the program
  std::string of = "";  // the gradients of the whole update, for people; empty: those of the layout
  bool more = false;    // further parts of the update will be announced

  std::string Name() const;  // of the whole update: Adam: dense/kernel and 7 more
};

// The gradients of entries [begin, end), for people: dense/kernel and 7 more.
std::string NameOf(const std::vector<Entry>& entries, size_t begin, size_t end);

std::string ShapeText(const std::vector<int64_t>& shape);  // [784, 10]

}  // namespace matex
