// Gradients that are no finite numbers, found and named (MATEX_CHECK_NUMERICS).
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/update/transfer.h"

namespace matex {

// Whether none of `count` elements is NaN or an infinity. Floating-point types only.
bool AreFinite(Type type, const void* data, int64_t count);

// What `add_up` does with a step of `layout` whose pieces are in `data`, with a look at what goes in and one at what comes
// out. That is the same on all ranks: only where it is not finite do they tell each other, over `communicator`, whose
// part was not, and all give the same error. `place` tells which update this is.
Error AddUpFinite(const Layout& layout, const Step& step, MPI_Comm communicator,
                  const std::function<std::string()>& place, void* data, float* left,
                  const AddUp& add_up);

}  // namespace matex
