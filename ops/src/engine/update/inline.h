// The inline way of a layout: all of it, in the calling thread, step by step in the layout's order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/sequence/mismatch.h"
#include "engine/update/transfer.h"

namespace matex {

// outputs[i] = the sum over ranks of weight * inputs[i]; an output may be its input. Ranks must agree on the
// `batch`. `place` says where in the program the
// update is. With a `scatter`, which says who needs what, an output may have this rank's sums only.
Error ReduceInline(const Layout& layout, const void* const* inputs, void* const* outputs, double weight, Batch batch,
                   const std::function<std::string()>& place, const Scatter* scatter = nullptr);

// Adds up over ranks what lies at addresses[i], of step i of the layout, wherever MPI finds that: in a device's memory, too.
// Gradients have been scaled before. Nothing is computed here but by MPI.
Error SumInPlace(const Layout& layout, const std::vector<void*>& addresses, Batch batch,
                 const std::function<std::string()>& place);

}  // namespace matex
