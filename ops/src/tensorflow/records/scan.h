// Finds where the records of a file begin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "files.h"

namespace matex {

// offsets: of TFRecord, where each record's header begins; of text, where each line ends.
// lengths: of TFRecord, of each record's data.
// content: of text, the place of the last byte that is of a line; -1 without one.
// problem, place: what keeps the rest from being read, and from where on.
struct FoundRecords {
  std::vector<int64_t> offsets, lengths;
  int64_t content = -1;
  Problem problem;
  int64_t place = 0;
};

// The records of a whole file of TFRecord. Only headers are read, but where records are smaller than a page of memory.
FoundRecords FindTfRecords(const std::string& name, const FileState& state);

// The lines that end in bytes `first` to `last`.
FoundRecords FindLines(const std::string& name, const FileState& state, int64_t first, int64_t last);

// Whether the four bytes at `masked` are the checksum of `count` bytes as TFRecord has it.
bool HasChecksum(const char* data, size_t count, const char* masked);

constexpr int64_t kRecordHeader = 12, kRecordFooter = 4;

}  // namespace matex
