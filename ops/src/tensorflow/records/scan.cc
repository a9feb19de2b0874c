// The search for the headers of TFRecords and for the ends of lines. Before and after the search, the state of the file
// is compared with the expected state.
#include "scan.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <memory>

#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/protobuf/error_codes.pb.h"

namespace matex {
namespace {

constexpr int64_t kPage = 4096, kDenseBlock = 64 << 10, kTextBlock = 1 << 20;  // bytes

// Reads a file at increasing offsets. With `is_dense` it reads a whole block, which probably has the next headers, too.
class Window {
 public:
  explicit Window(const OpenFile& file) : file_(file), block_(kDenseBlock) {}

  // `count` bytes at `offset`; null beyond the end of the file, or after a read error.
  const char* At(int64_t offset, int64_t count, bool is_dense) {
    if (offset < start_ || offset + count > start_ + length_) {
      start_ = offset;
      length_ = std::max<int64_t>(0, file_.Read(block_.data(), is_dense ? kDenseBlock : count, offset));
    }
    return offset + count > start_ + length_ ? nullptr : block_.data() + (offset - start_);
  }

 private:
  const OpenFile& file_;
  std::vector<char> block_;
  int64_t start_ = 0, length_ = 0;  // of the bytes of the file in `block_`
};

Problem MakeBrokenProblem(int64_t offset, int64_t number, const std::string& why) {
  return {tensorflow::error::DATA_LOSS, "record " + std::to_string(number) + ", at byte " + std::to_string(offset) +
                                            ", is broken: " + why +
                                            ". Write the file again, or copy it again from where it came"};
}

// Checks that the file is open and in the expected state; otherwise sets the problem.
bool OpenKnown(const OpenFile& file, const FileState& state, FoundRecords* found) {
  if (!file.is_open()) {
    found->problem = MakeSystemProblem("opened", errno);
  } else if (const FileState now = file.State(); !(now == state)) {
    found->problem = MakeChangedProblem(state, now);
  }
  return found->problem.code == 0;
}

// If the file has changed during the search, replaces the result by this problem.
void CheckUnchanged(const OpenFile& file, const FileState& state, FoundRecords* found) {
  const FileState now = file.State();
  if (now == state) return;
  *found = FoundRecords();
  found->problem = MakeChangedProblem(state, now);
}

}  // namespace

bool HasChecksum(const char* data, size_t count, const char* masked) {
  uint32_t expected;
  memcpy(&expected, masked, sizeof(expected));  // little-endian, like every machine with TensorFlow wheels
  return tensorflow::crc32c::Unmask(expected) == tensorflow::crc32c::Value(data, count);
}

FoundRecords FindTfRecords(const std::string& name, const FileState& state) {
  FoundRecords found;
  const OpenFile file(name);
  if (!OpenKnown(file, state, &found)) return found;
  Window window(file);
  int64_t at = 0, length = 0;
  while (at < state.size && found.problem.code == 0) {
    const int64_t number = static_cast<int64_t>(found.offsets.size()), remaining = state.size - at;
    found.problem_offset = at;
    if (remaining < kRecordHeader) {  // TensorFlow treats this as the end: a warning, so the code stays 0
      found.problem.text = "the file ends with " + std::to_string(remaining) + " bytes that are no record, at byte " +
                           std::to_string(at) + ". It is cut off, or still written";
      break;
    }
    const bool is_dense = number > 0 && length < kPage;  // the last record was short, so the next header is near
    const char* const header = window.At(at, kRecordHeader, is_dense);
    if (header == nullptr) {
      found.problem = MakeSystemProblem("read", errno);
      break;
    }
    uint64_t declared;
    memcpy(&declared, header, sizeof(declared));
    if (!HasChecksum(header, sizeof(declared), header + sizeof(declared))) {
      found.problem = MakeBrokenProblem(
          at, number, "the checksum of its length does not fit; the file may be compressed, or no TFRecord file");
    } else if (declared > static_cast<uint64_t>(std::max<int64_t>(0, remaining - kRecordHeader - kRecordFooter))) {
      found.problem =
          MakeBrokenProblem(at, number,
                            "expected " + std::to_string(declared) + " bytes of data and 4 of their checksum, found " +
                                std::to_string(remaining - kRecordHeader) + "; the file is cut off, or still written");
    } else {
      length = static_cast<int64_t>(declared);
      found.offsets.push_back(at);
      found.lengths.push_back(length);
      at += kRecordHeader + length + kRecordFooter;
    }
  }
  CheckUnchanged(file, state, &found);
  return found;
}

FoundRecords FindLines(const std::string& name, const FileState& state, int64_t first, int64_t last) {
  FoundRecords found;
  const OpenFile file(name);
  if (!OpenKnown(file, state, &found)) return found;
  std::unique_ptr<char[]> block(new char[kTextBlock]);
  for (int64_t at = first; at < last;) {
    const int64_t got = file.Read(block.get(), std::min(kTextBlock, last - at), at);
    if (got <= 0) {
      found.problem = MakeSystemProblem("read", got < 0 ? errno : EIO);
      found.problem_offset = at;
      return found;
    }
    const char* const end = block.get() + got;
    for (const char* line = block.get(); (line = static_cast<const char*>(memchr(line, '\n', end - line))); ++line) {
      found.offsets.push_back(at + (line - block.get()));
    }
    // `content`, the last byte of a line, shows whether a line without an end follows the last line end. A '\r' is no
    // content: TensorFlow drops it.
    for (const char* byte = end; byte > block.get(); --byte) {
      if (byte[-1] == '\n' || byte[-1] == '\r') continue;
      found.content = at + (byte - 1 - block.get());
      break;
    }
    at += got;
  }
  CheckUnchanged(file, state, &found);
  return found;
}

}  // namespace matex
