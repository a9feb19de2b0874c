// The arithmetic of reductions (reduce_ops.h), in loops that the compiler vectorizes.
#include "engine/base/reduce_ops.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "engine/base/half.h"

namespace matex {
namespace {

// The elements of a block. A block of 16-bit floats is converted to float32, computed, and converted back.
constexpr int kBlock = 512;

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

// Calls `work` with a value of the C++ type of `type`; bool is a byte.
template <typename Work>
void ForType(Type type, Work work) {
  switch (type) {
    case Type::kFloat32:
      return work(float());
    case Type::kFloat64:
      return work(double());
    case Type::kFloat16:
      return work(Float16());
    case Type::kBfloat16:
      return work(Bfloat16());
    case Type::kInt32:
      return work(int32_t());
    case Type::kInt64:
      return work(int64_t());
    case Type::kUint8:
    case Type::kBool:
      return work(uint8_t());
  }
}

// Calls rule(from, to, count), which computes array `to` from array `from`: once for all elements, or for 16-bit floats
// once for each block, with arrays of float32.
template <typename T, typename Rule>
void InBlocks(const T* from, T* to, int64_t count, Rule rule) {
  if constexpr (kIsHalf<T>) {
    float block[kBlock];
    for (int64_t i = 0; i < count; i += kBlock) {
      const int length = static_cast<int>(std::min<int64_t>(kBlock, count - i));
      Load(from + i, block, length);
      rule(block, block, length);
      Store(block, to + i, length);
    }
  } else {
    rule(from, to, count);
  }
}

struct Sum {
  template <typename T>
  static T Combine(T a, T b) {
    return a + b;
  }
};
// The minimum or maximum with NaN is NaN: `a != a` is true if `a` is NaN; if `b` is NaN, all comparisons are false.
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

// c[i] = Combine(a[i], b[i]); c may be a or b.
template <typename T, typename Rule>
void CombineAs(const T* a, const T* b, T* c, int64_t count) {
  if constexpr (kIsHalf<T>) {
    float left[kBlock], right[kBlock];
    for (int64_t i = 0; i < count; i += kBlock) {
      const int length = static_cast<int>(std::min<int64_t>(kBlock, count - i));
      Load(a + i, left, length);
      Load(b + i, right, length);
      for (int k = 0; k < length; ++k) right[k] = Rule::Combine(left[k], right[k]);
      Store(right, c + i, length);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) c[i] = Rule::Combine(a[i], b[i]);
  }
}

// The function of an MPI_Op.
template <typename T, typename Rule>
void CombineForMpi(void* in, void* inout, int* count, MPI_Datatype*) {
  T* const to = static_cast<T*>(inout);
  CombineAs<T, Rule>(static_cast<const T*>(in), to, to, *count);
}

template <typename T, typename Rule>
MPI_Op OwnOp() {
  static const MPI_Op op = [] {
    MPI_Op made;
    MPI_Op_create(&CombineForMpi<T, Rule>, /*commute=*/1, &made);
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

// ScaleWide and AddWide are the loops that process most gradient bytes. They are vectorized with AVX where the
// processor has it. Each loop has one operation, so the results are rounded as without AVX. `to` may be one of the
// inputs, but must not overlap it in part.
#if defined(__x86_64__)
bool HasWideRegisters() {
  static const bool has = __builtin_cpu_supports("avx");
  return has;
}
#define MATEX_WIDE __attribute__((target("avx")))
#else
bool HasWideRegisters() { return false; }
#define MATEX_WIDE
#endif

template <typename T>
MATEX_WIDE void ScaleWide(const T* from, T* to, int64_t count, T factor) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * factor;
}

template <typename T>
MATEX_WIDE void AddWide(const T* one, const T* other, T* to, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = one[i] + other[i];
}

template <typename T>
void ScaleAs(const void* from, void* to, int64_t count, double weight) {
  if constexpr (std::is_floating_point_v<T>) {
    if (HasWideRegisters()) {
      return ScaleWide(static_cast<const T*>(from), static_cast<T*>(to), count, static_cast<T>(weight));
    }
  }
  InBlocks(static_cast<const T*>(from), static_cast<T*>(to), count, [weight](auto* a, auto* b, int64_t n) {
    using Wide = std::remove_reference_t<decltype(*b)>;
    const Wide factor = static_cast<Wide>(weight);
    for (int64_t i = 0; i < n; ++i) b[i] = a[i] * factor;
  });
}

template <typename T>
void AddAs(const void* one, const void* other, void* to, int64_t count) {
  if constexpr (std::is_floating_point_v<T>) {
    if (HasWideRegisters()) {
      return AddWide(static_cast<const T*>(one), static_cast<const T*>(other), static_cast<T*>(to), count);
    }
  }
  CombineAs<T, Sum>(static_cast<const T*>(one), static_cast<const T*>(other), static_cast<T*>(to), count);
}

// AddAll for 16-bit floats. A block is added up in float32, so each sum is rounded once.
template <typename T>
void AddAllAs(const std::vector<const void*>& parts, void* to, int64_t count) {
  float sum[kBlock], more[kBlock];
  for (int64_t i = 0; i < count; i += kBlock) {
    const int length = static_cast<int>(std::min<int64_t>(kBlock, count - i));
    Load(static_cast<const T*>(parts[0]) + i, sum, length);
    for (size_t part = 1; part < parts.size(); ++part) {
      Load(static_cast<const T*>(parts[part]) + i, more, length);
      for (int k = 0; k < length; ++k) sum[k] += more[k];
    }
    Store(sum, static_cast<T*>(to) + i, length);
  }
}

template <typename T>
void DivideAs(void* data, int64_t count, int divisor) {
  T* const values = static_cast<T*>(data);
  InBlocks(static_cast<const T*>(values), values, count, [divisor](auto* a, auto* b, int64_t n) {
    for (int64_t i = 0; i < n; ++i) b[i] = a[i] / divisor;
  });
}

}  // namespace

const char* NameOf(Reduction reduction) {
  static const char* const names[] = {"sum", "mean", "min", "max"};
  return names[static_cast<int>(reduction)];
}

Reduction ReductionOf(const std::string& name) {
  for (Reduction one : {Reduction::kMean, Reduction::kMin, Reduction::kMax}) {
    if (name == NameOf(one)) return one;
  }
  return Reduction::kSum;
}

bool IsHalf(Type type) { return type == Type::kFloat16 || type == Type::kBfloat16; }

void Widen(Type type, const void* from, float* to, int64_t count) {
  if (type == Type::kFloat16) return Load(static_cast<const Float16*>(from), to, count);
  Load(static_cast<const Bfloat16*>(from), to, count);
}

void Narrow(Type type, const float* from, void* to, int64_t count) {
  if (type == Type::kFloat16) return Store(from, static_cast<Float16*>(to), count);
  Store(from, static_cast<Bfloat16*>(to), count);
}

// Own operations are used for 16-bit floats, and for minima and maxima of floats, where NaN must stay NaN.
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
  } else {  // float types only (reduce_ops.h)
    ForType(type, [&](auto typed) {
      using T = decltype(typed);
      if constexpr (std::is_floating_point_v<T> || kIsHalf<T>) ScaleAs<T>(from, to, count, weight);
    });
  }
}

void Add(Type type, const void* one, const void* other, void* to, int64_t count) {
  ForType(type, [&](auto typed) { AddAs<decltype(typed)>(one, other, to, count); });
}

void AddAll(Type type, const std::vector<const void*>& parts, void* to, int64_t count) {
  if (type == Type::kFloat16) return AddAllAs<Float16>(parts, to, count);
  if (type == Type::kBfloat16) return AddAllAs<Bfloat16>(parts, to, count);
  if (parts.size() == 2) return Add(type, parts[0], parts[1], to, count);
  // Block by block, so that the partial sum stays in the cache.
  alignas(64) char sum[kBlock * sizeof(double)];
  const size_t width = SizeOf(type), last = parts.size() - 1;
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t length = std::min<int64_t>(kBlock, count - i);
    const auto at = [&](size_t part) { return static_cast<const char*>(parts[part]) + i * width; };
    Add(type, at(0), at(1), sum, length);
    for (size_t part = 2; part < last; ++part) Add(type, sum, at(part), sum, length);
    Add(type, sum, at(last), static_cast<char*>(to) + i * width, length);
  }
}

void Divide(Type type, void* data, int64_t count, int divisor) {
  if (type == Type::kBool) return;
  ForType(type, [&](auto typed) { DivideAs<decltype(typed)>(data, count, divisor); });
}

}  // namespace matex
