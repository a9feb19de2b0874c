// A text encoding of reports and requests, for channels that carry only bytes (MPI_Bcast, XLA's custom calls). Each
// field is its length, a colon and its bytes: "3:abc2:42".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/layout.h"

namespace matex {

// Append a field; of entries, several fields.
void Put(std::string& text, const std::string& field);
void Put(std::string& text, int64_t value);
void Put(std::string& text, const std::vector<Entry>& entries);

template <typename... Values>
void PutAll(std::string& text, const Values&... values) {
  (Put(text, values), ...);
}

// Reads the fields of a text in the order in which they were put.
class Fields {
 public:
  explicit Fields(const std::string& text) : text_(text) {}
  std::string Text();
  int64_t Number();
  std::vector<Entry> Entries();

 private:
  const std::string& text_;
  size_t at_ = 0;  // the position of the next field
};

}  // namespace matex
