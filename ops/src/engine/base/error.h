// What went wrong, in words for a person; an empty message means that nothing did.
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
