// One step of a layout: its pieces scaled and brought together, reduced, and brought back.
#pragma once

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

// The same of a step that is not compressed, through `memory`, without a buffer.
void RunStep(const Step& step, const void* const* inputs, void* const* outputs, double weight, SharedMemory* memory);

}  // namespace matex
