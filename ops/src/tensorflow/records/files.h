// Files of records: where their records begin, and the bytes of one. For files of this machine's file system alone.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace matex {

// The numbers are part of the C interface (kernels.cc).
enum class RecordFormat : int { kTfRecord = 0, kText = 1, kFixed = 2 };

// Which state of a file: that of one that is written or replaced is another.
struct FileState {
  static FileState Of(const struct stat& found);
  bool operator==(const FileState& other) const { return size == other.size && mtime_ns == other.mtime_ns; }

  int64_t size = -1;
  int64_t mtime_ns = 0;
};

// What keeps records from being read: a code of TensorFlow's errors and the sentence. With 0 a sentence is a warning.
// The name of the file is not in it: another rank may have found the problem in a copy of its own.
struct Problem {
  int code = 0;
  std::string text;
};

// A file whose records are known.
struct RecordFile {
  int64_t number = 0;
  std::string name;
  RecordFormat format = RecordFormat::kTfRecord;
  FileState state;
  std::vector<int64_t> offsets, lengths;  // of a file of records of fixed length there are none
  Problem problem;                        // after these records
  int64_t place = 0;                      // of the problem
};

// All files whose records are known to this process, each by its number, and by its format and name.
class RecordFiles {
 public:
  // The number of the file, which it keeps.
  int64_t Put(RecordFile file);
  std::shared_ptr<const RecordFile> Find(RecordFormat format, const std::string& name) const;
  std::shared_ptr<const RecordFile> Get(int64_t number) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const RecordFile>> files_;
  std::unordered_map<std::string, int64_t> numbers_;
};

RecordFiles& TheRecordFiles();

// A file that is open for reading.
class OpenFile {
 public:
  // jumps: whether the system is to fetch no more than is read.
  explicit OpenFile(const std::string& name, bool jumps = false);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  FileState State() const;
  // As many of `count` bytes from `offset` on as the file has; -1 where it cannot be read (errno).
  int64_t Read(char* to, int64_t count, int64_t offset) const;

  // Has the system fetch what is likely to be read after `count` bytes at `offset`: of a run of bytes that were read
  // one after the other, a quarter more. By itself it would fetch as much after each jump, which another rank needs.
  void ReadAhead(int64_t offset, int64_t count) const;

 private:
  const int descriptor_;
  mutable std::mutex mutex_;
  mutable int64_t first_ = 0, last_ = 0, fetched_ = 0;  // of the run
};

// A few files that stay open between reads. One that nobody has read for a while is closed with the next read of
// another.
class OpenFiles {
 public:
  // Open, and in the state in which it was when its records were found; else a problem.
  std::shared_ptr<const OpenFile> Open(const RecordFile& file, Problem* problem);

 private:
  struct Entry {
    int64_t number;
    std::shared_ptr<const OpenFile> file;
    std::chrono::steady_clock::time_point used;
  };

  std::shared_ptr<const OpenFile> Take(int64_t number);
  void Keep(int64_t number, std::shared_ptr<const OpenFile> file);

  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used one first
};

OpenFiles& TheOpenFiles();

// How many bytes this process has read of such files.
std::atomic<int64_t>& ReadBytes();

// Of the system's error `number`, and of a file that is in another state than `expected`.
Problem MakeSystemProblem(const char* what, int number);
Problem MakeChangedProblem(const FileState& expected, const FileState& found);

}  // namespace matex
