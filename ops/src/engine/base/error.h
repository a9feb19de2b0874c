// An error as a message for people; an empty message means success. Engine functions return it instead of throwing.
#pragma once

#include <string>
#include <utility>

namespace matex {

struct Error {
  std::string message;

  Error() = default;
  explicit Error(std::string text) : message(std::move(text)) {}
  explicit operator bool() const { return !message.empty(); }
};

}  // namespace matex
