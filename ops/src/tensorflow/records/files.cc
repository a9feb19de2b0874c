// Files of records (files.h): the table of the files whose index, the places of their records, has been read; the table
// of open files; and the read-ahead that replaces the operating system's.
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "tensorflow/core/protobuf/error_codes.pb.h"

#include "engine/base/immortal.h"

namespace matex {
namespace {

constexpr std::chrono::seconds kIdle(30);  // after so long without a read a file is closed
constexpr int64_t kThreads = 16;  // the threads that may read one file at the same time
// The least bytes that are worth a system call, except at the begin of a run; the most bytes fetched ahead.
constexpr int64_t kMinAhead = 256 << 10, kMaxAhead = 8 << 20;

// A quarter of the descriptors that this process may open, so that the script has the others: 16 to 1024.
size_t CountMaxOpen() {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 1024;
  return std::max<size_t>(16, std::min<size_t>(1024, limit.rlim_cur / 4));
}

std::string KeyOf(RecordFormat format, const std::string& name) {
  return std::to_string(static_cast<int>(format)) + ":" + name;
}

}  // namespace

FileState FileState::Of(const struct stat& found) {
  FileState state;
  state.size = found.st_size;
  state.mtime_ns = found.st_mtim.tv_sec * int64_t{1000000000} + found.st_mtim.tv_nsec;
  return state;
}

void RecordFiles::Put(RecordFile file) {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t& number = numbers_.emplace(KeyOf(file.format, file.name), file.number).first->second;
  if (number != file.number) {  // the file has changed, here or on another rank, since it got `number`
    const std::shared_ptr<const RecordFile> was = files_[number];
    // Frees the memory of the places. Tickets name the places of their records; a read compares only the state.
    const auto drop_places = [&](int64_t former, bool is_lost) {
      files_[former] = std::make_shared<const RecordFile>(
          RecordFile{former, was->name, was->format, was->state, {}, {}, was->problem, was->problem_offset, is_lost});
    };
    drop_places(number, false);
    // The file has other records in an equal state, as if written twice at one time of its clock. Tickets of all former
    // files of this name and state are lost: the state does not show whose records the file has.
    if (was->state == file.state && (was->offsets != file.offsets || was->lengths != file.lengths)) {
      for (size_t other = 0; other < files_.size(); ++other) {
        const RecordFile* const former = files_[other].get();
        if (former != nullptr && former->format == was->format && former->name == was->name &&
            former->state == was->state) {
          drop_places(static_cast<int64_t>(other), true);
        }
      }
    }
    number = file.number;
  }
  if (number >= static_cast<int64_t>(files_.size())) files_.resize(number + 1);
  files_[number] = std::make_shared<const RecordFile>(std::move(file));
}

std::shared_ptr<const RecordFile> RecordFiles::Find(RecordFormat format, const std::string& name) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = numbers_.find(KeyOf(format, name));
  return found == numbers_.end() ? nullptr : files_[found->second];
}

std::shared_ptr<const RecordFile> RecordFiles::Get(int64_t number) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return number < 0 || number >= static_cast<int64_t>(files_.size()) ? nullptr : files_[number];
}

RecordFiles& TheRecordFiles() { return Immortal<RecordFiles>(); }

OpenFile::OpenFile(const std::string& name, bool jumps) : descriptor_(open(name.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (is_open() && jumps) posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
}

OpenFile::~OpenFile() {
  if (is_open()) close(descriptor_);
}

FileState OpenFile::State() const {
  struct stat found;
  return fstat(descriptor_, &found) == 0 ? FileState::Of(found) : FileState();
}

int64_t OpenFile::Read(char* to, int64_t count, int64_t offset) const {
  int64_t done = 0;
  while (done < count) {
    const ssize_t got = pread(descriptor_, to + done, count - done, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
  }
  ReadBytes() += done;
  return done;
}

void OpenFile::ReadAhead(int64_t offset, int64_t count) const {
  int64_t begin = 0, end = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // A jump begins a new run. A read up to kThreads records after the end of the run is no jump, because several
    // threads read one run, each at another record.
    const bool is_jump = offset < run_begin_ || offset > run_end_ + kThreads * count;
    if (is_jump) run_begin_ = run_end_ = fetched_end_ = offset;
    run_end_ = std::max(run_end_, offset + count);
    const int64_t length = run_end_ - run_begin_;
    begin = std::max(fetched_end_, run_end_);
    end = run_end_ + std::min(kMaxAhead, length / 4);
    const bool is_too_little = end - begin < std::min(kMinAhead, length / 8);
    if (is_too_little) return;
    fetched_end_ = end;
  }
  if (end > begin) posix_fadvise(descriptor_, begin, end - begin, POSIX_FADV_WILLNEED);
}

std::shared_ptr<const OpenFile> OpenFiles::Find(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->number != number) continue;
    entry->used = std::chrono::steady_clock::now();
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->file;
  }
  return nullptr;
}

void OpenFiles::Keep(int64_t number, std::shared_ptr<const OpenFile> file) {
  std::vector<std::shared_ptr<const OpenFile>> closed;  // destroyed after the mutex is released
  std::lock_guard<std::mutex> lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool is_closed = entry->number == number || now - entry->used > kIdle;
    if (is_closed) closed.push_back(std::move(entry->file));
    entry = is_closed ? entries_.erase(entry) : std::next(entry);
  }
  entries_.push_front({number, std::move(file), now});
  for (const size_t max_open = CountMaxOpen(); entries_.size() > max_open;) {
    closed.push_back(std::move(entries_.back().file));
    entries_.pop_back();
  }
}

std::shared_ptr<const OpenFile> OpenFiles::Open(const RecordFile& file, Problem* problem) {
  if (file.is_lost) {
    *problem = MakeChangedProblem(file.state, file.state);
    return nullptr;
  }
  std::shared_ptr<const OpenFile> open = Find(file.number);
  if (open != nullptr && open->State() == file.state) return open;
  // No file is open, or the open one is not in the state of the index, which may be of a newer file with this name.
  open = std::make_shared<const OpenFile>(file.name, /*jumps=*/true);
  if (!open->is_open()) {
    *problem = MakeSystemProblem("opened", errno);
    return nullptr;
  }
  const FileState found = open->State();
  if (!(found == file.state)) {
    *problem = MakeChangedProblem(file.state, found);
    return nullptr;
  }
  Keep(file.number, open);
  return open;
}

OpenFiles& TheOpenFiles() { return Immortal<OpenFiles>(); }

std::atomic<int64_t>& ReadBytes() {
  static std::atomic<int64_t> bytes{0};
  return bytes;
}

Problem MakeSystemProblem(const char* action, int number) {
  int code = tensorflow::error::UNAVAILABLE;
  if (number == ENOENT) code = tensorflow::error::NOT_FOUND;
  if (number == EACCES || number == EPERM) code = tensorflow::error::PERMISSION_DENIED;
  return {code, std::string("the file cannot be ") + action + ": " + strerror(number)};
}

Problem MakeChangedProblem(const FileState& expected, const FileState& found) {
  std::string text = "the file has changed since its records were indexed: expected " + std::to_string(expected.size) +
                     " bytes, found " + std::to_string(found.size);
  if (found.size == expected.size) text += ", written later";
  return {tensorflow::error::FAILED_PRECONDITION,
          text +
              ". The records of a file that changes while it is read cannot be told apart: start again once the file "
              "is whole, and write new data to new files"};
}

}  // namespace matex
