// The sum of a buffer over the ranks of a communicator. An Adder makes such sums by one of four algorithms: MPI, ring,
// two levels or shared memory. It chooses the algorithm at its first sums, by a trial if several are possible. All
// ranks choose alike and get equal bits. Gradients are summed by two reductions, which have one Adder each: the inline
// reduction in the calling thread (inline.h), and the overlapped reduction in a communication thread
// (async_reduction.h).
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

// One communicator and its sum algorithm. One thread at a time uses an Adder.
class Adder {
 public:
  // `node`: the number of this rank's node. `asleep`: a thread that waits sleeps instead of spinning (sleeping_wait.h).
  Adder(MPI_Comm communicator, Algorithm algorithm, int node, bool asleep);

  // data = the sum over ranks, the same bits on all ranks. `place` names the place in the program for messages.
  Error Sum(void* data, int64_t count, Type type, const std::function<std::string()>& place);

  // The sum of a transfer: of some gradients, or of a part of one (layout.h). If each rank updates only its own piece
  // of the weights, the transfer has `owned`, and the sum is a reduce-scatter: each rank gets only the sums of its own
  // elements. `residual` receives what compression has left out of this sum, one number for each element. This rank
  // adds the numbers to its next gradient (error_feedback.h). `residual` is null if the transfer is not compressed.
  Error Sum(const Transfer& transfer, void* data, float* residual, const std::function<std::string()>& place);

  // All-gather of a transfer of owned elements. `data` has room for all elements: on entry it holds this rank's own, on
  // return the elements of all ranks. Returns an MPI error code, from which the caller makes an Error with its place.
  int Gather(const Transfer& transfer, void* data);

  // The shared memory in which this Adder sums; null if it uses another algorithm. Collective at the first call.
  Error GetSharedMemory(SharedMemory** memory, const std::function<std::string()>& place);

 private:
  // Each of these functions returns an MPI error code.
  int Prepare();  // makes the communicators and the memory that sums need, at the first call
  int Choose();   // chooses the algorithm by a trial
  int SumUncompressed(void* data, int64_t count, Type type);
  int Run(Algorithm algorithm, void* data, int64_t count, Type type);  // sums by this algorithm
  int SumShared(char* data, int64_t count, Type type);  // sums in shared memory
  int SumCompressedTransfer(const Transfer& transfer, float* data, float* residual);
  int ReduceScatter(const Transfer& transfer, void* data);  // each rank gets the sum of its own elements
  int ChooseForPieces(int64_t bytes, Algorithm* algorithm);  // for a reduce-scatter or all-gather of owned elements

  const MPI_Comm communicator_;
  Algorithm algorithm_;  // kAuto: not chosen yet
  const int node_;
  const bool asleep_;
  bool is_prepared_ = false;
  Levels levels_;                         // the communicators within and across nodes (hierarchical.h)
  std::unique_ptr<SharedMemory> shared_;  // null if it is not used
  // Sums the segment that this rank carries between nodes (hierarchical.h). Null on one node, and if it carries none.
  std::unique_ptr<Adder> across_;
  // Memory for intermediate results, kept from sum to sum.
  std::vector<char> buffer_;   // of the ring, and of reduce-scatters and all-gathers
  std::vector<char> segment_;  // of sums in two levels: the segment that this rank carries
  std::vector<float> wide_;    // 16-bit floats as float32
};

// The Adders of the inline and of the overlapped reduction, made at first use after `Start` (world.h).
Adder& InlineAdder();
Adder& OverlappedAdder();

// Drops both Adders after ranks were lost; new ones use new communicators. No sum may be under way.
void ForgetAdders();

}  // namespace matex
