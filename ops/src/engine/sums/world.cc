// The World of this process: the start of the engine, its restart after ranks were lost, and the errors of MPI calls.
#include "engine/sums/world.h"

#include <algorithm>

#include "engine/base/immortal.h"
#include "engine/mpi/failure.h"
#include "engine/sums/allreduce.h"

namespace matex {
namespace {

// Takes the communicators of the rendezvous, of inline sums and of overlapped sums. From now on, calls on them return
// MPI's errors, which otherwise would end the process.
Error TakeCommunicators(World& world, int sequence, int gradients, int overlapped) {
  world.sequence = MPI_Comm_f2c(sequence);
  world.gradients = MPI_Comm_f2c(gradients);
  world.overlapped = MPI_Comm_f2c(overlapped);
  for (MPI_Comm communicator : {world.sequence, world.gradients, world.overlapped}) {
    if (Error error = MpiError(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler",
                               "the start of the engine")) {
      return error;
    }
  }
  return Error();
}

}  // namespace

World& TheWorld() { return Immortal<World>(); }

Error Start(const StartOptions& options) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  if (world.sequence != MPI_COMM_NULL) return Error("the engine is already started");
  world.rank = options.rank;
  world.size = options.size;
  world.host = options.host;
  // MPI counts are ints, and the widest element is a double.
  world.chunk_bytes = std::clamp<int64_t>(options.chunk_bytes, 64, 1 << 30);
  world.fuse_bytes = std::max<int64_t>(options.fuse_bytes, 0);
  world.node = options.node;
  world.algorithm = options.algorithm;
  if (world.size == 1) return Error();
  world.compression = options.compression;
  int ready = 0;
  MPI_Initialized(&ready);
  if (!ready) return Error("MPI is not initialized in this process");
  return TakeCommunicators(world, options.sequence, options.gradients, options.overlapped);
}

void BePhantom(int size) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  world.size = size;
  world.phantom = true;
}

Error StartAgain(int sequence, int gradients, int overlapped, int rank, int size, int node) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  world.rank = rank;
  world.size = size;
  world.node = node;
  ForgetAdders();  // they use the old communicators
  return TakeCommunicators(world, sequence, gradients, overlapped);
}

std::string RankAndHost() {
  const World& world = TheWorld();
  return "rank " + std::to_string(world.rank) + " of " + std::to_string(world.size) + " on " + world.host;
}

Error MpiError(int code, const char* call, const std::string& place) {
  if (code == MPI_SUCCESS) return Error();
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  Error error(std::string(call) + " failed in " + place + ": " + std::string(text, length) +
              ". Usually another rank has ended or its host cannot be reached.");
  NoteCause(Cause::kMpi, error.message);
  return error;
}

}  // namespace matex
