// Measures the cost of a transfer: start-up time and time per byte. bucket_tuner.cc and the C interface call it; all
// ranks take part and get the same result.
#pragma once

#include "engine/layout/buckets.h"
#include "engine/base/error.h"
#include "engine/sums/allreduce.h"

namespace matex {

// Measures the link by sums of `adder`, whose communicator is `communicator`. Collective; the same result on all ranks.
// A probe is repeated while other work disturbs it, up to `trials` probes.
Error ProbeLink(Adder& adder, MPI_Comm communicator, int trials, Link* link);

// Times `probes` sums of `bytes` bytes each, made in chunks as sums of gradients are. `seconds[i]`: the time of sum i
// on the slowest rank. `cpu`: the core seconds of this process in all sums.
Error TimeSums(Adder& adder, MPI_Comm communicator, int64_t bytes, int probes, double* seconds, double* cpu);

// The result of the last probe; false if there was none.
bool LastLink(Link* link);
void NoteLink(const Link& link);

}  // namespace matex
