// The inline reduction: the calling thread sums all gradients of a layout (layout.h) over ranks, one transfer after
// another, and returns the sums. The kernels of TensorFlow and XLA and the C interface call it. It is one collective of
// the sequence (rendezvous.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/sequence/mismatch.h"
#include "engine/update/transfer.h"

namespace matex {

// outputs[i] = the sum over ranks of weight * inputs[i]; outputs[i] may be inputs[i]. Ranks must agree on `batch`.
// `place` names the place in the program. With a `scatter` (transfer.h), sums that only others need may be undefined.
Error ReduceInline(const Layout& layout, const void* const* inputs, void* const* outputs, double weight, Batch batch,
                   const std::function<std::string()>& place, const Scatter* scatter = nullptr);

// Sums over ranks the buffers addresses[i] of transfer i of the layout, in place. The buffers may be in device
// memory: only MPI accesses them. The caller has applied the weight.
Error SumInPlace(const Layout& layout, const std::vector<void*>& addresses, Batch batch,
                 const std::function<std::string()>& place);

}  // namespace matex
