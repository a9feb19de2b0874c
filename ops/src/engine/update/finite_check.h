// The check that gradients are finite (MATEX_CHECK_NUMERICS). Both reductions, inline.h and async_reduction.h, call it
// around the sum of a transfer. A sum is equal on all ranks, so all ranks raise the same error, which names the
// variable, the ranks and the element.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/update/transfer.h"

namespace matex {

// Whether all of `count` elements are finite. Floating-point types only.
bool AreFinite(Type type, const void* data, int64_t count);

// Runs `add_up` on a transfer of `layout`, whose fragments are in `data`, and checks `data` before and after it. If the
// sum is not finite, the ranks exchange what they have found in their own gradients, over `communicator`, and return
// the same error. `place` names the update.
Error AddUpFinite(const Layout& layout, const Transfer& transfer, MPI_Comm communicator,
                  const std::function<std::string()>& place, void* data, float* residual,
                  const AddUp& add_up);

}  // namespace matex
