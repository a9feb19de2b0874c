// The sum over ranks of one buffer: which algorithm does it, and how its thread waits.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "error.h"
#include "types.h"
#include "world.h"

namespace matex {

// One communicator and its way of adding up. One thread at a time uses it.
class Adder {
 public:
  // `asleep`: see await.h.
  Adder(MPI_Comm communicator, Algorithm algorithm, bool several_hosts, bool asleep);

  // data = the sum over ranks, the same bits on all. `place`, for messages, is where in the program this is.
  Error Sum(void* data, int64_t count, Type type, const std::function<std::string()>& place);

 private:
  int Run(Algorithm algorithm, void* data, int64_t count, Type type);
  int Choose();

  const MPI_Comm communicator_;
  Algorithm algorithm_;
  const bool asleep_;
  std::vector<char> buffer_;
};

// Those of the two ways; made when first asked for, after `Start`.
Adder& InlineAdder();
Adder& OverlappedAdder();

}  // namespace matex
