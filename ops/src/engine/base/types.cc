// A table of the element types, and their MPI datatypes.
#include "engine/base/types.h"

namespace matex {
namespace {

struct TypeRow {
  size_t size;  // bytes
  const char* name;
};

constexpr TypeRow kRows[kTypes] = {
    {4, "float32"}, {8, "float64"}, {2, "float16"}, {2, "bfloat16"},
    {4, "int32"},   {8, "int64"},   {1, "uint8"},   {1, "bool"},
};

const TypeRow& RowOf(Type type) { return kRows[static_cast<int>(type)]; }

}  // namespace

size_t SizeOf(Type type) { return RowOf(type).size; }

const char* NameOf(Type type) { return RowOf(type).name; }

MPI_Datatype MpiType(Type type) {
  static const MPI_Datatype types[kTypes] = {
      MPI_FLOAT, MPI_DOUBLE, MPI_UINT16_T, MPI_UINT16_T, MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T, MPI_UINT8_T,
  };
  return types[static_cast<int>(type)];
}

}  // namespace matex
