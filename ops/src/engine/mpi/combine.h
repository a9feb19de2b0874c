// An all-reduce of structs, which are merged by their own function `Add`. MPI merges along a tree, so memory and time
// per rank hardly grow with the number of ranks. reports.cc and finite_check.cc use it to describe errors.
#pragma once

#include <mpi.h>

#include <cstring>
#include <type_traits>

namespace matex {

// *value = the combination of all ranks' values, the same bits on all ranks. MPI may call `Value::Add(other)`, which
// merges two values, in any order. Ranks agree even if the result depends on the order, because rank 0's is broadcast.
// Collective. Returns an MPI error code.
template <typename Value>
int CombineOverRanks(MPI_Comm communicator, Value* value) {
  static_assert(std::is_trivially_copyable_v<Value>, "it travels as bytes");
  MPI_Datatype type;
  MPI_Op op;
  const auto add = [](void* in, void* inout, int* count, MPI_Datatype*) {
    for (int i = 0; i < *count; ++i) {
      Value other, sum;
      // Copies, because MPI's buffers may be unaligned.
      std::memcpy(&other, static_cast<char*>(in) + i * sizeof(Value), sizeof(Value));
      std::memcpy(&sum, static_cast<char*>(inout) + i * sizeof(Value), sizeof(Value));
      sum.Add(other);
      std::memcpy(static_cast<char*>(inout) + i * sizeof(Value), &sum, sizeof(Value));
    }
  };
  int code = MPI_Type_contiguous(sizeof(Value), MPI_BYTE, &type);
  if (code == MPI_SUCCESS) code = MPI_Type_commit(&type);
  if (code == MPI_SUCCESS) code = MPI_Op_create(add, /*commute=*/1, &op);
  if (code != MPI_SUCCESS) return code;
  Value all = *value;
  code = MPI_Reduce(value, &all, 1, type, op, 0, communicator);
  if (code == MPI_SUCCESS) code = MPI_Bcast(&all, 1, type, 0, communicator);
  if (code == MPI_SUCCESS) *value = all;
  MPI_Op_free(&op);
  MPI_Type_free(&type);
  return code;
}

}  // namespace matex
