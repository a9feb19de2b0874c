// The sum over ranks of one buffer: which algorithm does it, and how its thread waits.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/layout/compression.h"
#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/sums/hierarchical.h"
#include "engine/sums/shared_memory.h"
#include "engine/base/types.h"
#include "engine/sums/world.h"

namespace matex {

// One communicator and its way of adding up. One thread at a time uses it.
class Adder {
 public:
  // `node` is the number of this rank's node; `asleep`: see await.h.
  Adder(MPI_Comm communicator, Algorithm algorithm, int node, bool asleep);

  // data = the sum over ranks, the same bits on all. `place`, for messages, is where in the program this is.
  Error Sum(void* data, int64_t count, Type type, const std::function<std::string()>& place);

  // The same of a step of a layout; of one that ranks own in parts, each gets the sum of its own. Where it is to be
  // compressed, `left` gets what this rank keeps for the next time.
  Error Sum(const Step& step, void* data, float* left, const std::function<std::string()>& place);

  // `data`, the elements of a step of which each rank owns some, get what the ranks have of theirs. Returns a code of MPI.
  int Gather(const Step& step, void* data);

  // The memory that sums are to go through, where all ranks have one in common; else null. All ranks call it together.
  Error Shared(SharedMemory** memory, const std::function<std::string()>& place);

 private:
  int Prepare();
  int Choose();
  int SumPlainly(void* data, int64_t count, Type type);
  int Run(Algorithm algorithm, void* data, int64_t count, Type type);
  int SumShared(char* data, int64_t count, Type type);
  int RunCompressed(const Step& step, float* data, float* left);
  int ReduceScatter(const Step& step, void* data);
  int ChooseForParts(int64_t bytes, Algorithm* algorithm);

  const MPI_Comm communicator_;
  Algorithm algorithm_;
  const int node_;
  const bool asleep_;
  bool prepared_ = false;
  Levels levels_;
  std::unique_ptr<SharedMemory> shared_;
  std::unique_ptr<Adder> across_;  // from node to node
  std::vector<char> buffer_, slice_;
  std::vector<float> wide_;
};

// Those of the two ways; made when first asked for, after `Start`.
Adder& InlineAdder();
Adder& OverlappedAdder();

// After ranks were lost: they are made anew, for the communicators of those that are left. No sum is under way.
void ForgetAdders();

}  // namespace matex
