// This process's place among the ranks, and the communicators that the engine was given.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "engine/layout/compression.h"
#include "engine/base/error.h"

namespace matex {

// How the sum over ranks of a buffer is computed (sum.h). The numbers are part of the C interface (abi.cc).
enum class Algorithm : int {
  kAuto = 0,  // the fastest on this network, tried out at the first large sum; within one node its memory, if it can be
  kMpi = 1,   // MPI_Allreduce
  kRing = 2,  // ring.h, for all but small buffers
  kTwoLevel = 3,  // levels.h, for all but small buffers
  kShared = 4,    // shared.h; only by the choice of kAuto
};

const char* NameOf(Algorithm algorithm);

struct World {
  int rank = 0;
  int size = 1;
  // The other ranks are not there: a sum is this rank's part, and rows that are gathered are copies of its own.
  bool phantom = false;
  std::string host = "localhost";
  // Only the numbered check of rendezvous.h uses `sequence`; tensors travel on `gradients`, those of the overlapped way on
  // `overlapped`, new weights on `pulls`. All are duplicates of our own, so nothing that the script itself does with MPI can meet them.
  MPI_Comm sequence = MPI_COMM_NULL;
  MPI_Comm gradients = MPI_COMM_NULL;
  MPI_Comm overlapped = MPI_COMM_NULL;
  MPI_Comm pulls = MPI_COMM_NULL;  // made when first needed
  int64_t chunk_bytes = 1 << 20;
  int64_t fuse_bytes = 256 << 10;
  int node = 0;  // the number of this rank's node: ranks with the same one share memory
  Algorithm algorithm = Algorithm::kAuto;
  Compression compression;
  // Held from the rendezvous of a collective to its end: within a process, collectives run one after another.
  std::mutex mutex;

  bool has_peers() const { return size > 1 && !phantom; }
};

// The one world of this process: one rank, and no MPI, until `Start`.
World& TheWorld();

// What Python knows of the world. Communicators are Fortran handles, which is how a handle travels to C++.
struct Beginning {
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

// Called once.
Error Start(const Beginning& beginning);

// After `Start` as the only rank: this process computes what rank 0 of `size` ranks does, without them.
void BePhantom(int size);

// After ranks were lost: this process's place among those that are left, and communicators of theirs.
Error StartAgain(int sequence, int gradients, int overlapped, int rank, int size, int node);

// "rank 1 of 4 on node7", with which errors begin once they leave the engine.
std::string Place();

// The error of an MPI call made in `what`; none if `code` is MPI_SUCCESS.
Error MpiError(int code, const char* call, const std::string& what);

}  // namespace matex
