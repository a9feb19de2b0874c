// A small all-reduce by which ranks agree that a transfer of an overlapped update can start. The overlapped thread
// calls it before each transfer, so no rank waits inside a sum for gradients that another rank still computes.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/error.h"

namespace matex {

// Reports whether this rank's gradients are ready (`is_ready`) or will not come, and returns when all ranks have
// reported. `position` numbers the transfer among all transfers of this rank; it is an error if ranks differ.
// `without` becomes a rank whose gradients will not come, or -1. Collective.
Error Ready(int64_t position, bool is_ready, const std::string& place, int* without);

}  // namespace matex
