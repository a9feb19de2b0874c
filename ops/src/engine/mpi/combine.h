// One value of all ranks, made of a value of each along a tree: what is kept of many does not grow with their number.
#pragma once

#include <mpi.h>

#include <cstring>
#include <type_traits>

namespace matex {

// *value = that of all ranks of `communicator`, the same bits on all: `Value::Add(other)` makes one of two, in whatever order.
// Rank 0 has the result, which it tells the others, so that an addition need not be exact. All ranks call it together.
// Returns an error code of MPI.
template <typename Value>
int CombineOverRanks(MPI_Comm communicator, Value* value) {
  static_assert(std::is_trivially_copyable_v<Value>, "it travels as bytes");
  MPI_Datatype type;
  MPI_Op op;
  const auto add = [](void* in, void* inout, int* count, MPI_Datatype*) {
    for (int i = 0; i < *count; ++i) {
      Value one, sum;  // what MPI has need not be aligned
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
