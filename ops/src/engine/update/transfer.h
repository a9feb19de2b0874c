// One step of a layout: its pieces scaled and brought together, reduced, and brought back.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/sums/shared_memory.h"

namespace matex {

// `data` = the sum over ranks of `data`, the elements of `step`, of those that ranks own each its own; where that is
// compressed, `left` = what this rank keeps.
using AddUp = std::function<Error(const Step& step, void* data, float* left)>;

// outputs[i] = the sum over ranks of weight * inputs[i] for the pieces of a `step` of `layout`; an output may be its
// input. Of what other ranks own, outputs are left with anything. Steps of several pieces go through `buffer`, which grows as it must. Of compressed ones the residuals are added
// to what is sent, and become what is left.
Error RunStep(const Layout& layout, const Step& step, const void* const* inputs, void* const* outputs, double weight,
              std::vector<char>* buffer, const AddUp& add_up);

// The same of a step that is not compressed, through `memory`, without a buffer. Returns an error code of MPI.
int RunStep(const Step& step, const void* const* inputs, void* const* outputs, double weight, SharedMemory* memory);

// `wholes` = what the ranks have of the elements of `step`, each of which one rank owns. `gather` does it in a buffer.
using Gather = std::function<int(const Step& step, void* data)>;
int GatherStep(const Step& step, void* const* wholes, std::vector<char>* buffer, const Gather& gather);

// What is added up together: of one type, for each rank what it alone needs, and last what all do. Of any length.
using Shares = std::vector<Step>;
struct Scatter {
  Scatter(const Layout& layout, int ranks);
  std::vector<Shares> by_type;
};

// The sums of `shares`, through `memory`, for those who need them; elsewhere the outputs are left with anything.
// Returns an error code of MPI.
int RunShares(const Shares& shares, const void* const* inputs, void* const* outputs, double weight, SharedMemory* memory);

}  // namespace matex
