// Objects that exist once in the process and are never destroyed: threads of TensorFlow, and of this library, may still
// use them when the process ends.
#pragma once

namespace matex {

// The object of type `T`, made at the first call. `static`: each copy of the library that a process loads has its own.
template <typename T>
static T& Immortal() {
  static T* const object = new T;
  return *object;
}

}  // namespace matex
