// Checks each sum for NaN and infinity. The sum is equal on all ranks, so all ranks find the same. The message also
// names the ranks whose own gradients were not finite; so each rank inspects its own before the sum.
#include "engine/update/finite_check.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "engine/mpi/combine.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

// The bit masks of a float type. In NaN and infinities, and only there, all bits of the exponent are 1. An infinity's
// fraction is 0, NaN's is not.
template <typename Word>
struct Bits {
  Word exponent;
  Word fraction;
};
constexpr Bits<uint16_t> kFloat16{0x7c00, 0x03ff}, kBfloat16{0x7f80, 0x007f};
constexpr Bits<uint32_t> kFloat32{0x7f800000u, 0x007fffffu};
constexpr Bits<uint64_t> kFloat64{0x7ff0000000000000u, 0x000fffffffffffffu};

// The non-finite elements of one rank's input of a transfer: the first entry that has any.
struct Finding {
  int32_t rank = 0;
  int64_t entry = -1;    // -1: all elements are finite
  int64_t element = 0;   // the index of the first non-finite element in this entry
  int64_t nans = 0;      // the number of NaNs in the transfer's fragment of this entry
  int64_t infinite = 0;  // the number of infinities there
  char host[64] = "";
};

// The number of ranks with non-finite elements, and the findings of the lowest kNamed of these ranks. Sent as bytes.
struct Findings {
  static constexpr int kNamed = 4;  // the ranks that the message names
  int64_t ranks = 0;
  Finding first[kNamed];

  int Named() const { return static_cast<int>(std::min<int64_t>(ranks, kNamed)); }

  // Merges the findings of other ranks; called by CombineOverRanks (combine.h).
  void Add(const Findings& other) {
    KeepLowest(first, ranks, other.first, other.ranks);
    ranks += other.ranks;
  }
};

// The loop has no branch, so that the compiler vectorizes it.
template <typename Word>
bool AllFinite(const void* data, int64_t count, Bits<Word> bits) {
  const Word* const words = static_cast<const Word*>(data);
  Word has_nonfinite = 0;
  for (int64_t i = 0; i < count; ++i) has_nonfinite |= static_cast<Word>((words[i] & bits.exponent) == bits.exponent);
  return has_nonfinite == 0;
}

// Counts the non-finite elements of a fragment, and sets `element` to the index of the first of them in `data`.
template <typename Word>
void Count(const void* data, int64_t count, Bits<Word> bits, Finding* finding) {
  const Word* const words = static_cast<const Word*>(data);
  for (int64_t i = 0; i < count; ++i) {
    if ((words[i] & bits.exponent) != bits.exponent) continue;
    if (finding->nans + finding->infinite == 0) finding->element = i;
    ++((words[i] & bits.fraction) ? finding->nans : finding->infinite);
  }
}

// Calls `work` with the bit masks of `type`; does nothing for integers.
template <typename Work>
void WithBitsOf(Type type, Work work) {
  switch (type) {
    case Type::kFloat16:
      return work(kFloat16);
    case Type::kBfloat16:
      return work(kBfloat16);
    case Type::kFloat32:
      return work(kFloat32);
    case Type::kFloat64:
      return work(kFloat64);
    default:
      return;
  }
}

// What this rank finds in the first fragment of `transfer`, in `data`, that has non-finite elements.
Finding Find(const Transfer& transfer, const void* data) {
  Finding finding;
  const char* at = static_cast<const char*>(data);
  for (const Fragment& fragment : transfer.fragments) {
    WithBitsOf(transfer.type, [&](auto bits) { Count(at, fragment.count, bits, &finding); });
    if (finding.nans + finding.infinite > 0) {
      finding.entry = fragment.entry;
      finding.element += fragment.offset;
      break;
    }
    at += fragment.count * static_cast<int64_t>(SizeOf(transfer.type));
  }
  finding.rank = TheWorld().rank;
  std::snprintf(finding.host, sizeof finding.host, "%s", TheWorld().host.c_str());
  return finding;
}

std::string Describe(const Finding& finding, const Layout& layout) {
  const Entry& entry = layout.entries()[finding.entry];
  std::string text = "of variable " + entry.ToString() + ": ";
  if (finding.nans > 0) text += std::to_string(finding.nans) + " NaN";
  if (finding.infinite > 0) text += (finding.nans > 0 ? " and " : "") + std::to_string(finding.infinite) + " infinite";
  return text + ", the first at element " + std::to_string(finding.element);
}

std::string Describe(const Findings& all, const Finding& sum, const Layout& layout) {
  std::string text;
  for (int i = 0; i < all.Named(); ++i) {
    const Finding& one = all.first[i];
    text += (text.empty() ? "" : "; ") + std::string("on rank ") + std::to_string(one.rank) + " (" + one.host + ") " +
            Describe(one, layout);
  }
  if (all.ranks > all.Named()) text += "; and on " + std::to_string(all.ranks - all.Named()) + " more ranks";
  if (all.ranks > 0) return text;
  return "in the sum over ranks " + Describe(sum, layout) + ". The gradients of each rank are finite; their sum is not";
}

}  // namespace

bool AreFinite(Type type, const void* data, int64_t count) {
  bool all_finite = true;
  WithBitsOf(type, [&](auto bits) { all_finite = AllFinite(data, count, bits); });
  return all_finite;
}

Error AddUpFinite(const Layout& layout, const Transfer& transfer, MPI_Comm communicator,
                  const std::function<std::string()>& place, void* data, float* residual,
                  const AddUp& add_up) {
  const Finding mine = AreFinite(transfer.type, data, transfer.count) ? Finding() : Find(transfer, data);
  if (Error error = add_up(transfer, data, residual)) return error;
  if (AreFinite(transfer.type, data, transfer.count)) return Error();
  Findings all;
  all.ranks = mine.entry >= 0;
  all.first[0] = mine;
  if (TheWorld().has_peers()) {
    const int code = CombineOverRanks(communicator, &all);
    if (code != MPI_SUCCESS) return MpiError(code, "MPI_Reduce", place());
  }
  return Error("gradients are not finite numbers at " + place() + ": " + Describe(all, Find(transfer, data), layout) +
               " (MATEX_CHECK_NUMERICS=1 checks this).");
}

}  // namespace matex
