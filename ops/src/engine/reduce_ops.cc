#include "reduce_ops.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "half.h"

namespace matex {
namespace {

// How an element of each type is computed with: 16-bit floats in float32, all others as themselves.
template <typename T>
struct Element {
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
};
template <>
struct Element<Float16> : Float16 {};
template <>
struct Element<Bfloat16> : Bfloat16 {};

struct Sum {
  template <typename T>
  static T Combine(T a, T b) {
    return a + b;
  }
};
// `a != a` is true of NaN alone; a number that is not less than NaN must not win over it.
struct Min {
  template <typename T>
  static T Combine(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};
struct Max {
  template <typename T>
  static T Combine(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};

template <typename T, typename Rule>
void Combine(void* in, void* inout, int* count, MPI_Datatype*) {
  const T* a = static_cast<const T*>(in);
  T* b = static_cast<T*>(inout);
  for (int i = 0; i < *count; ++i) {
    b[i] = Element<T>::Store(Rule::Combine(Element<T>::Load(a[i]), Element<T>::Load(b[i])));
  }
}

template <typename T, typename Rule>
MPI_Op OwnOp() {
  static const MPI_Op op = [] {
    MPI_Op made;
    MPI_Op_create(&Combine<T, Rule>, /*commute=*/1, &made);
    return made;
  }();
  return op;
}

template <typename T>
MPI_Op OwnOp(Reduction reduction) {
  if (reduction == Reduction::kMin) return OwnOp<T, Min>();
  if (reduction == Reduction::kMax) return OwnOp<T, Max>();
  return OwnOp<T, Sum>();
}

template <typename T>
void ScaleAs(const void* from, void* to, int64_t count, double weight) {
  using Wide = decltype(Element<T>::Load(T()));
  const T* a = static_cast<const T*>(from);
  T* b = static_cast<T*>(to);
  const Wide factor = static_cast<Wide>(weight);
  for (int64_t i = 0; i < count; ++i) b[i] = Element<T>::Store(Element<T>::Load(a[i]) * factor);
}

template <typename T>
void DivideAs(void* data, int64_t count, int divisor) {
  using Wide = decltype(Element<T>::Load(T()));
  T* a = static_cast<T*>(data);
  const Wide by = static_cast<Wide>(divisor);
  for (int64_t i = 0; i < count; ++i) a[i] = Element<T>::Store(static_cast<Wide>(Element<T>::Load(a[i]) / by));
}

}  // namespace

const char* NameOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kMean:
      return "mean";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
  }
  return "";
}

MPI_Op MpiOp(Type type, Reduction reduction) {
  const bool is_sum = reduction == Reduction::kSum || reduction == Reduction::kMean;
  if (type == Type::kFloat16) return OwnOp<Float16>(reduction);
  if (type == Type::kBfloat16) return OwnOp<Bfloat16>(reduction);
  if (is_sum) return MPI_SUM;
  if (type == Type::kFloat32) return OwnOp<float>(reduction);
  if (type == Type::kFloat64) return OwnOp<double>(reduction);
  return reduction == Reduction::kMin ? MPI_MIN : MPI_MAX;
}

void Scale(Type type, const void* from, void* to, int64_t count, double weight) {
  const size_t bytes = static_cast<size_t>(count) * SizeOf(type);
  if (weight == 0) {
    std::memset(to, 0, bytes);
  } else if (weight == 1) {
    if (from != to) std::memcpy(to, from, bytes);
  } else if (type == Type::kFloat32) {
    ScaleAs<float>(from, to, count, weight);
  } else if (type == Type::kFloat64) {
    ScaleAs<double>(from, to, count, weight);
  } else if (type == Type::kFloat16) {
    ScaleAs<Float16>(from, to, count, weight);
  } else if (type == Type::kBfloat16) {
    ScaleAs<Bfloat16>(from, to, count, weight);
  }
}

void Divide(Type type, void* data, int64_t count, int divisor) {
  switch (type) {
    case Type::kFloat32:
      return DivideAs<float>(data, count, divisor);
    case Type::kFloat64:
      return DivideAs<double>(data, count, divisor);
    case Type::kFloat16:
      return DivideAs<Float16>(data, count, divisor);
    case Type::kBfloat16:
      return DivideAs<Bfloat16>(data, count, divisor);
    case Type::kInt32:
      return DivideAs<int32_t>(data, count, divisor);
    case Type::kInt64:
      return DivideAs<int64_t>(data, count, divisor);
    case Type::kUint8:
      return DivideAs<uint8_t>(data, count, divisor);
    case Type::kBool:
      return;
  }
}

}  // namespace matex
