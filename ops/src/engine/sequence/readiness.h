// Whether all ranks have what a transfer of an overlapped update needs.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/error.h"

namespace matex {

// Tells the other ranks whether this one's gradients are here, and returns when all have said so: sums then wait for
// nobody. `at` is where this rank is in its updates, `without` a rank whose gradients will not come, or -1.
Error Ready(int64_t at, bool is_here, const std::string& place, int* without);

}  // namespace matex
