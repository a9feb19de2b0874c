// One step of a layout: its pieces scaled and brought together, reduced, and brought back.
#pragma once

#include <functional>
#include <vector>

#include "error.h"
#include "layout.h"

namespace matex {

// `data` = the sum over ranks of `data`, `count` elements of `type`.
using AddUp = std::function<Error(void* data, int64_t count, Type type)>;

// outputs[i] = the sum over ranks of weight * inputs[i] for the pieces of `step`; an output may be its input. Steps of
// several pieces go through `buffer`, which grows as it must.
Error RunStep(const Step& step, const void* const* inputs, void* const* outputs, double weight,
              std::vector<char>* buffer, const AddUp& add_up);

}  // namespace matex
