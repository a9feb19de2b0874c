// One step of a layout: its pieces scaled and brought together, reduced, and brought back.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/sums/shared_memory.h"

namespace matex {

// `data` = the sum over ranks of `data`, the elements of `step`; where that is compressed, `left` = what this rank keeps.
using AddUp = std::function<Error(const Step& step, void* data, float* left)>;

// outputs[i] = the sum over ranks of weight * inputs[i] for the pieces of a `step` of `layout`; an output may be its
// input. Steps of several pieces go through `buffer`, which grows as it must. Of compressed ones the residuals are added
// to what is sent, and become what is left.
Error RunStep(const Layout& layout, const Step& step, const void* const* inputs, void* const* outputs, double weight,
              std::vector<char>* buffer, const AddUp& add_up);

// The same of a step that is not compressed, through `memory`, without a buffer. Returns an error code of MPI.
int RunStep(const Step& step, const void* const* inputs, void* const* outputs, double weight, SharedMemory* memory);

// Which rank needs which sums: of entry `i` rank r those from cuts[i][r] up to cuts[i][r + 1]. Where cuts[i] is empty all
// ranks need all.
using Cuts = std::vector<std::vector<int64_t>>;

// What is added up together: of one type, for each rank what it alone needs, and last what all do. Of any length.
using Shares = std::vector<Step>;
struct Scatter {
  Scatter(const Layout& layout, const Cuts& cuts, int ranks);
  std::vector<Shares> by_type;
  uint64_t key;  // on which ranks agree
};

// The sums of `shares`, through `memory`, for those who need them; elsewhere the outputs are left with anything.
// Returns an error code of MPI.
int RunShares(const Shares& shares, const void* const* inputs, void* const* outputs, double weight, SharedMemory* memory);

}  // namespace matex
