// An all-reduce of structs, which are merged by their own function `Add`. MPI merges along a tree, so memory and time
// per rank hardly grow with the number of ranks. reports.cc and finite_check.cc use it to describe errors.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
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

// For `Add`: `mine` = the elements with the lowest ranks of both arrays, in order of `rank`. An array may stand for
// more elements than it has room for: `count` and `other_count` count all of them.
template <typename Ranked, int kRoom>
void KeepLowest(Ranked (&mine)[kRoom], int64_t count, const Ranked (&others)[kRoom], int64_t other_count) {
  Ranked both[2 * kRoom];
  Ranked* const middle = std::copy_n(mine, std::min<int64_t>(count, kRoom), both);
  Ranked* const end = std::copy_n(others, std::min<int64_t>(other_count, kRoom), middle);
  std::sort(both, end, [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
  std::copy_n(both, std::min<int64_t>(end - both, kRoom), mine);
}

}  // namespace matex
