// This process's place among the ranks, and the communicators that the engine was given.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "error.h"

namespace matex {

// How the sum over ranks of a buffer is computed (sum.h). The numbers are part of the C interface (abi.cc).
enum class Algorithm : int {
  kAuto = 0,  // the faster one on this network, tried out at the first large sum; within one host MPI's own
  kMpi = 1,   // MPI_Allreduce
  kRing = 2,  // ring.h, for all but small buffers
};

struct World {
  int rank = 0;
  int size = 1;
  std::string host = "localhost";
  // Only the numbered check of rendezvous.h uses `sequence`; tensors travel on `gradients`, those of the overlapped way on
  // `overlapped`. All are duplicates of our own, so nothing that the script itself does with MPI can meet them.
  MPI_Comm sequence = MPI_COMM_NULL;
  MPI_Comm gradients = MPI_COMM_NULL;
  MPI_Comm overlapped = MPI_COMM_NULL;
  int64_t chunk_bytes = 1 << 20;
  int64_t fuse_bytes = 256 << 10;
  bool several_hosts = false;
  Algorithm algorithm = Algorithm::kAuto;
  // Held from the rendezvous of a collective to its end: within a process, collectives run one after another.
  std::mutex mutex;
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
  bool several_hosts;
  int64_t chunk_bytes;
  int64_t fuse_bytes;
  Algorithm algorithm;
};

// Called once.
Error Start(const Beginning& beginning);

// "rank 1 of 4 on node7", with which errors begin once they leave the engine.
std::string Place();

// The error of an MPI call made in `what`; none if `code` is MPI_SUCCESS.
Error MpiError(int code, const char* call, const std::string& what);

}  // namespace matex
