// This process's rank, host and settings, and the communicators that the engine uses. Python calls `Start`, which fills
// the World, and `StartAgain` after ranks were lost. The communicators are duplicates: the script's own messages never
// match.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "engine/layout/compression.h"
#include "engine/base/error.h"

namespace matex {

// The algorithm of a sum over ranks (allreduce.h). The numbers are part of the C interface (abi.cc).
enum class Algorithm : int {
  kAuto = 0,  // the fastest here: shared memory within one node if possible, else by a trial at the first large sum
  kMpi = 1,   // MPI_Allreduce
  kRing = 2,  // ring.h; small buffers use MPI_Allreduce
  kTwoLevel = 3,  // hierarchical.h; small buffers use MPI_Allreduce
  kShared = 4,    // shared_memory.h; chosen only by kAuto
};

const char* NameOf(Algorithm algorithm);

struct World {
  int rank = 0;
  int size = 1;
  // Whether the other ranks do not exist (`matex plan`): this process computes as rank 0 of `size` ranks, a sum is this
  // rank's own part, and gathered rows are copies of its rows.
  bool phantom = false;
  std::string host = "localhost";
  // The rendezvous uses `sequence`, the inline reduction and collectives use `gradients`, the overlapped reduction
  // uses `overlapped`, and new weights use `pulls`.
  MPI_Comm sequence = MPI_COMM_NULL;
  MPI_Comm gradients = MPI_COMM_NULL;
  MPI_Comm overlapped = MPI_COMM_NULL;
  MPI_Comm pulls = MPI_COMM_NULL;  // made at first use
  int64_t chunk_bytes = 1 << 20;    // the maximum size of a transfer (layout.h)
  int64_t fuse_bytes = 256 << 10;  // smaller gradients are fused
  int node = 0;  // the number of this rank's node: ranks of one node share memory
  Algorithm algorithm = Algorithm::kAuto;
  Compression compression;
  // Locked from the rendezvous of a collective (ranks compare it, rendezvous.h) to its end: the collectives of a
  // process run one after another.
  std::mutex mutex;

  bool has_peers() const { return size > 1 && !phantom; }  // whether other ranks exist
};

// The World of this process. Until `Start` it has one rank and does not use MPI.
World& TheWorld();

// The settings that Python passes to `Start`. Communicators are Fortran handles, the form that C++ can convert.
struct StartOptions {
  int sequence;
  int gradients;
  int overlapped;
  int rank;
  int size;
  std::string host;
  int node;
  int64_t chunk_bytes;
  int64_t fuse_bytes;
  Algorithm algorithm;
  Compression compression;
};

// Called once per process.
Error Start(const StartOptions& options);

// After `Start` as the only rank: this process computes as rank 0 of `size` ranks that do not exist.
void BePhantom(int size);

// After ranks were lost: this process's new rank, and the communicators of the remaining ranks.
Error StartAgain(int sequence, int gradients, int overlapped, int rank, int size, int node);

// "rank 1 of 4 on node7": the prefix of every error that leaves the engine.
std::string RankAndHost();

// The error of MPI call `call` in `place`, noted by NoteCause (failure.h); no error if `code` is MPI_SUCCESS.
Error MpiError(int code, const char* call, const std::string& place);

}  // namespace matex
