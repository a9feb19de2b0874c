// This process's place among the ranks, and the communicators that the engine was given.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "error.h"

namespace matex {

struct World {
  int rank = 0;
  int size = 1;
  std::string host = "localhost";
  // Only the numbered check of rendezvous.h uses `sequence`; tensors travel on `gradients`. Both are duplicates of our
  // own, so nothing that the script itself does with MPI can meet them.
  MPI_Comm sequence = MPI_COMM_NULL;
  MPI_Comm gradients = MPI_COMM_NULL;
  int64_t chunk_bytes = 1 << 20;
  int64_t fuse_bytes = 256 << 10;
  // Held from the rendezvous of a collective to its end: within a process, collectives run one after another.
  std::mutex mutex;
};

// The one world of this process: one rank, and no MPI, until `Start`.
World& TheWorld();

// Takes the communicators (Fortran handles, which is how a handle travels from Python to C++). Called once.
Error Start(int sequence, int gradients, int rank, int size, const std::string& host, int64_t chunk_bytes,
            int64_t fuse_bytes);

// "rank 1 of 4 on node7", with which errors begin once they leave the engine.
std::string Place();

// The error of an MPI call made in `what`; none if `code` is MPI_SUCCESS.
Error MpiError(int code, const char* call, const std::string& what);

}  // namespace matex
