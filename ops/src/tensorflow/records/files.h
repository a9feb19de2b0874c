// Files of records: which files are indexed (RecordFiles), which files are open (OpenFiles), and reads at offsets. The
// index of a file says where its records are. The kernels read records by ticket: the number of a file, an offset and a
// length. Only local file systems are supported. A changed file is an error.
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

// The state of a file: its size and modification time. A file that was written or replaced has another state.
struct FileState {
  static FileState Of(const struct stat& found);
  bool operator==(const FileState& other) const { return size == other.size && mtime_ns == other.mtime_ns; }

  int64_t size = -1;  // -1: the file cannot be found
  int64_t mtime_ns = 0;
};

// The reason why records cannot be read: a TensorFlow error code and a sentence. With code 0 the sentence is a warning,
// or "" if there is no problem. The sentence does not name the file, because another rank may have the problem.
struct Problem {
  int code = 0;
  std::string text;
};

// A file with an index of its records.
struct RecordFile {
  int64_t number = 0;
  std::string name;
  RecordFormat format = RecordFormat::kTfRecord;
  FileState state;
  std::vector<int64_t> offsets, lengths;  // empty for records of fixed length
  Problem problem;                        // why nothing can be read after these records; code 0: all can be read
  int64_t problem_offset = 0;             // where, in bytes
  bool is_lost = false;                   // a file of the same name and state has other records: nothing can be read
};

// All indexed files of this process, by number, and by format and name. A file that has changed gets a new number, so
// tickets of the former file are never read from the new one.
class RecordFiles {
 public:
  // Adds a file, or replaces the index of its number. The number is Python's, because all ranks have the same.
  void Put(RecordFile file);
  // A file by its name or number; null if it is not indexed.
  std::shared_ptr<const RecordFile> Find(RecordFormat format, const std::string& name) const;
  std::shared_ptr<const RecordFile> Get(int64_t number) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const RecordFile>> files_;  // by number; null: no file has it
  std::unordered_map<std::string, int64_t> numbers_;
};

RecordFiles& TheRecordFiles();

// A file that is open for reading. Several threads may read it.
class OpenFile {
 public:
  // jumps: reads are at random offsets, so the operating system must not read ahead.
  explicit OpenFile(const std::string& name, bool jumps = false);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  FileState State() const;
  // Reads up to `count` bytes from `offset`; returns their number, or -1 on an error (errno).
  int64_t Read(char* to, int64_t count, int64_t offset) const;

  // Called before a read of `count` bytes at `offset`; tells the system which bytes to fetch next. A run is a sequence
  // of reads without a jump. The longer the run, the more bytes are fetched: a quarter of its length. The system's own
  // read-ahead would fetch bytes of other ranks after each jump.
  void ReadAhead(int64_t offset, int64_t count) const;

 private:
  const int descriptor_;
  mutable std::mutex mutex_;
  // Offsets: the begin of the current run, its end, and the end of the bytes fetched ahead.
  mutable int64_t run_begin_ = 0, run_end_ = 0, fetched_end_ = 0;
};

// The files that stay open between reads. When another file is opened, files that were not read for a while are closed.
class OpenFiles {
 public:
  // Opens the file if its state is the one in its index; otherwise sets `problem`.
  std::shared_ptr<const OpenFile> Open(const RecordFile& file, Problem* problem);

 private:
  struct Entry {
    int64_t number;
    std::shared_ptr<const OpenFile> file;
    std::chrono::steady_clock::time_point used;
  };

  // The open file of this number, which becomes the most recently used one; null if the file is not open.
  std::shared_ptr<const OpenFile> Find(int64_t number);
  // Adds an open file and closes files that were not read for a while, or that are too many.
  void Keep(int64_t number, std::shared_ptr<const OpenFile> file);

  std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used one first
};

OpenFiles& TheOpenFiles();

// The bytes that this process has read from record files.
std::atomic<int64_t>& ReadBytes();

// The problem of a system error `number` (errno), and of a file whose state differs from `expected`. `action`: "opened"
// or "read", for the sentence "the file cannot be opened".
Problem MakeSystemProblem(const char* action, int number);
Problem MakeChangedProblem(const FileState& expected, const FileState& found);

}  // namespace matex
