// What a transfer costs here, found out by a few of them.
#pragma once

#include "buckets.h"
#include "error.h"
#include "sum.h"

namespace matex {

// By sums of `adder`, whose communicator is `communicator`; the same on all ranks, which call it together.
Error ProbeLink(Adder& adder, MPI_Comm communicator, Link* link);

}  // namespace matex
