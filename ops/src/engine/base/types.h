// The element types of collectives: size, name and MPI datatype. 16-bit floats and bool travel as unsigned integers.
#pragma once

#include <mpi.h>

#include <cstddef>

namespace matex {

// The numbers are part of the C interface (abi.cc).
enum class Type : int {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBfloat16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
  kBool = 7,
};

constexpr int kTypes = 8;

size_t SizeOf(Type type);
const char* NameOf(Type type);

// 16-bit floats travel as MPI_UINT16_T and are combined only by the engine's own MPI_Op. bool is a byte, 0 or 1.
MPI_Datatype MpiType(Type type);

}  // namespace matex
