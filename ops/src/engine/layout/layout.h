// The layout of an update. An update is one call of an optimizer, for which all gradients are summed over ranks; an
// entry is one gradient. The layout divides the entries into transfers, each of which is one sum over ranks: small
// entries are fused in one transfer, large entries are cut into several transfers. The kernels make a layout once and
// reuse it. A layout depends only on values that are equal on all ranks, and before each collective ranks compare its
// key (rendezvous.h). So all ranks have the same transfers without a negotiation.
//
// Two reductions use layouts: in the calling thread (inline.h), or in a communication thread (async_reduction.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layout/compression.h"
#include "engine/layout/error_feedback.h"
#include "engine/base/types.h"

namespace matex {

// The description of a tensor: of a gradient of an update, or of the tensor of another collective.
struct Entry {
  std::string name;  // for messages; of a gradient, the name of its variable
  Type type;
  std::vector<int64_t> shape;
  // The number of the variable on this rank. 0: the entry is no gradient of a variable and is never compressed.
  int64_t variable = 0;

  int64_t count() const;
  int64_t bytes() const { return count() * static_cast<int64_t>(SizeOf(type)); }
  std::string ToString() const;  // 'dense/kernel', float32 [784, 10]
  bool operator==(const Entry& other) const;
};

// Elements [offset, offset + count) of an entry.
struct Fragment {
  int entry;
  int64_t offset;
  int64_t count;
};

// The owners of elements, if each rank updates only a piece of a variable: rank r owns elements cuts[i][r] up to
// cuts[i][r + 1] of entry i. With cuts[i] = {0, 3, 6}, rank 0 owns elements 0-2 and rank 1 elements 3-5. If cuts[i] is
// empty, all ranks need all elements of entry i.
using Cuts = std::vector<std::vector<int64_t>>;

// One sum over ranks, of at most `chunk_bytes`: of one fragment, in place, or of several, fused in a buffer.
struct Transfer {
  Type type;
  int64_t count = 0;
  std::vector<Fragment> fragments;
  bool compressed = false;
  std::vector<int64_t> owned;  // the number of elements that each rank owns, in rank order; empty: all ranks need all
  std::string name;  // the names of the gradients, for messages
};

// Calls `work(part, position)` for the part of each fragment that is within elements [first, first + count) of the
// transfer. `part` is a Fragment, so it names elements of an entry; `position` is the index of its first element in the
// transfer. If the fragments have 4 and 6 elements, elements [2, 7) are two parts: the last 2 elements of the first
// fragment, at position 2, and the first 3 elements of the second, at position 4.
template <typename Work>
void InFragments(const Transfer& transfer, int64_t first, int64_t count, Work work) {
  int64_t at = 0;
  for (const Fragment& fragment : transfer.fragments) {
    const int64_t begin = std::max(at, first), end = std::min(at + fragment.count, first + count);
    if (begin < end) work(Fragment{fragment.entry, fragment.offset + begin - at, end - begin}, begin);
    at += fragment.count;
    if (at >= first + count) break;
  }
}

class Layout {
 public:
  // chunk_bytes: the maximum size of a transfer; with cuts, of which each owner's part is rounded up, about this size.
  // fuse_bytes: smaller entries are fused, in order, with others of their type.
  // compression: applies to the float32 gradients of variables.
  // compiled: XLA has compiled the step. Ranks must agree on this, because compiled steps round differently from
  //   TensorFlow's kernels.
  // checked: gradients that are not finite are an error.
  // cuts: the owners of elements; ignored for compressed entries and for checked layouts, whose sums go to all ranks.
  //   Each transfer of entries with cuts contains elements of every owner, so that all ranks send and receive at the
  //   same time.
  Layout(std::vector<Entry> entries, int64_t chunk_bytes, int64_t fuse_bytes, const Compression& compression = {},
         bool compiled = false, bool checked = false, Cuts cuts = {});

  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<Transfer>& transfers() const { return transfers_; }
  int64_t chunk_bytes() const { return chunk_bytes_; }
  int64_t fuse_bytes() const { return fuse_bytes_; }
  const Compression& compression() const { return compression_; }
  bool compiled() const { return compiled_; }
  bool checked() const { return checked_; }
  const Cuts& cuts() const { return cuts_; }  // empty, or one element for each entry

  // A hash of all of the above: ranks with equal keys make equal MPI calls.
  uint64_t key() const { return key_; }

  // What compression has left out of the earlier sums of entry `i` (error_feedback.h); null if it is not compressed.
  const Residual& residual(int i) const { return residuals_[i]; }

  // The transfers for given buckets: entries of different buckets never share a transfer. Bucket k has the entries
  // boundaries[k] up to boundaries[k + 1].
  std::vector<Transfer> TransfersOf(const std::vector<int>& boundaries) const;

  // The transfers in the order of entries, for new weights (weights/pieces.cc), which are sent in this order. An entry
  // smaller than `fuse_bytes` shares a transfer only with its neighbours, until they have `fuse_bytes`. (In transfers()
  // it may come late: it waits until entries of its type fill a transfer.)
  std::vector<Transfer> TransfersInOrder() const;

 private:
  // Append the transfers of entries [begin, end): all of them, the ones with cuts, the ones without.
  void Append(int begin, int end, std::vector<Transfer>* transfers) const;
  void AppendOwned(int begin, int end, std::vector<Transfer>* transfers) const;
  void AppendShared(int begin, int end, std::vector<Transfer>* transfers) const;
  // Appends the transfers of some entries of one type, which have cuts.
  void AppendOwnedGroup(const std::vector<int>& group, std::vector<Transfer>* transfers) const;
  bool HasCuts(int i) const { return !cuts_.empty() && !cuts_[i].empty(); }
  int64_t ElementsPerChunk(Type type) const;  // at least 1
  uint64_t ComputeKey() const;

  std::vector<Entry> entries_;
  std::vector<Transfer> transfers_;
  int64_t chunk_bytes_;
  int64_t fuse_bytes_;
  Compression compression_;
  bool compiled_;
  bool checked_;
  std::vector<Residual> residuals_;  // of each entry; null: the entry is not compressed
  Cuts cuts_;
  uint64_t key_;
};

// What one collective announces of an overlapped update (async_reduction.h). Usually these are all gradients. But a
// step may have other collectives between the gradients of an update. Then the update is announced in parts: the
// gradients of a part depend on the same collectives.
struct UpdatePart {
  std::shared_ptr<const Layout> layout;
  std::string place;    // the place of the update in the program
  std::string gradients = "";  // the gradients of the whole update, for messages; empty: the names in the layout
  bool more = false;    // whether further parts of the update follow

  std::string Name() const;  // the name of the whole update: Adam: dense/kernel and 7 more
};

// Names of gradients, for messages: dense/kernel and 7 more. `count`: the number of gradients, with the first.
std::string NameAll(const std::string& first, size_t count);
std::string NameOf(const std::vector<Entry>& entries);

std::string ShapeText(const std::vector<int64_t>& shape);  // [784, 10]

}  // namespace matex
