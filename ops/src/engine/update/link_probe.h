// What a transfer costs here, found out by a few of them.
#pragma once

#include "engine/layout/buckets.h"
#include "engine/base/error.h"
#include "engine/sums/allreduce.h"

namespace matex {

// By sums of `adder`, whose communicator is `communicator`; the same on all ranks, which call it together. Where other
// work disturbs it, it is done again, up to `trials` times.
Error ProbeLink(Adder& adder, MPI_Comm communicator, int trials, Link* link);

// Times `probes` sums of `bytes`, in chunks, into `seconds`, the longest of all ranks; `cpu`: seconds of a core that all of
// them took this process.
Error TimeSums(Adder& adder, MPI_Comm communicator, int64_t bytes, int probes, double* seconds, double* cpu);

// What the last probe found; false if there was none.
bool LastLink(Link* link);
void NoteLink(const Link& link);

}  // namespace matex
