// An all-reduce of structs, which are merged by their own function `Add`. MPI merges along a tree, so memory and time
// per rank hardly grow with the number of ranks. reports.cc and finite_check.cc use it to describe errors.
#pragma once

#include <mpi.h>

#include <cstring>
#include <type_traits>

namespace matex {

// *value = the combination of all ranks' values, the same bits on all ranks. `Value::Add(other)` merges two values, in
// any order. The result on rank 0 is broadcast, so ranks agree even if `Add` depends on the order. Collective. Returns
// an MPI error code.
template <typename Value>
int CombineOverRanks(MPI_Comm communicator, Value* value) {
  static_assert(std::is_trivially_copyable_v<Value>, "it travels as bytes");
  MPI_Datatype type;
  MPI_Op op;
  const auto add = [](void* in, void* inout, int* count, MPI_Datatype*) {
    for (int i = 0; i < *count; ++i) {
      Value one, sum;  // MPI's buffers may be unaligned
      std::memcpy(&one, static_cast<char*>(in) + i * sizeof(Value), sizeof(Value));
      std::memcpy(&sum, static_cast<char*>(inout) + i * sizeof(Value), sizeof(Value));
      sum.Add(one);
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
