// Finds the records of TFRecord and text files: their offsets and lengths. Python calls it through the C functions of
// kernels.cc, in several threads. A file that changes during the search is reported as a problem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "files.h"

namespace matex {

// The result of a search; positions are in bytes of the file.
struct FoundRecords {
  std::vector<int64_t> offsets;  // TFRecord: of each record's header; text: of each line end
  std::vector<int64_t> lengths;  // TFRecord: the bytes of each record's data; text: empty
  int64_t content = -1;          // text: the position of the last byte that belongs to a line; -1: none
  Problem problem;               // why the rest of the file cannot be read
  int64_t problem_offset = 0;    // where the rest begins
};

// All records of a TFRecord file. Reads only headers; but where records are shorter than a page, it reads all bytes.
FoundRecords FindTfRecords(const std::string& name, const FileState& state);

// The lines whose ends are in bytes `first` up to `last`.
FoundRecords FindLines(const std::string& name, const FileState& state, int64_t first, int64_t last);

// Whether the four bytes at `masked` are the TFRecord checksum of `count` bytes.
bool HasChecksum(const char* data, size_t count, const char* masked);

constexpr int64_t kRecordHeader = 12, kRecordFooter = 4;

}  // namespace matex
