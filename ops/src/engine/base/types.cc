// A table of the element types, and their MPI datatypes.
#include "engine/base/types.h"

namespace matex {
namespace {

struct TypeRow {
  size_t size;  // bytes
  const char* name;
  bool is_float;
};

constexpr TypeRow kRows[kTypes] = {
    {4, "float32", true}, {8, "float64", true}, {2, "float16", true}, {2, "bfloat16", true},
    {4, "int32", false},  {8, "int64", false},  {1, "uint8", false},  {1, "bool", false},
};

const TypeRow& RowOf(Type type) { return kRows[static_cast<int>(type)]; }

}  // namespace

size_t SizeOf(Type type) { return RowOf(type).size; }

const char* NameOf(Type type) { return RowOf(type).name; }

bool IsFloat(Type type) { return RowOf(type).is_float; }

MPI_Datatype MpiType(Type type) {
  switch (type) {
    case Type::kFloat32:
      return MPI_FLOAT;
    case Type::kFloat64:
      return MPI_DOUBLE;
    case Type::kFloat16:
    case Type::kBfloat16:
      return MPI_UINT16_T;
    case Type::kInt32:
      return MPI_INT32_T;
    case Type::kInt64:
      return MPI_INT64_T;
    case Type::kUint8:
    case Type::kBool:
      return MPI_UINT8_T;
  }
  return MPI_DATATYPE_NULL;
}

}  // namespace matex
