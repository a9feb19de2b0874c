// Finds the records of TFRecord and text files: their offsets and lengths. kernels.cc calls it through the C
// interface, on several threads. A file that changes during the search is reported as a problem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "files.h"

namespace matex {

// offsets: TFRecord: the position of each record's header; text: the end of each line. lengths: TFRecord: the length
// of each record's data. content: text: the position of the last byte that belongs to a line; -1: none. problem,
// place: the reason why the rest cannot be read, and its position.
struct FoundRecords {
  std::vector<int64_t> offsets, lengths;
  int64_t content = -1;
  Problem problem;
  int64_t place = 0;
};

// All records of a TFRecord file. Reads only headers, except where records are shorter than a page of memory.
FoundRecords FindTfRecords(const std::string& name, const FileState& state);

// The lines whose ends are in bytes `first` up to `last`.
FoundRecords FindLines(const std::string& name, const FileState& state, int64_t first, int64_t last);

// Whether the four bytes at `masked` are the TFRecord checksum of `count` bytes.
bool HasChecksum(const char* data, size_t count, const char* masked);

constexpr int64_t kRecordHeader = 12, kRecordFooter = 4;

}  // namespace matex
