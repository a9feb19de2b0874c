// Shared memory of the ranks of one node (common_memory.h): a head for all ranks, then a part for each rank. The first
// rank makes a file in memory and broadcasts where it is; the other ranks open and map the file. Then all ranks agree
// whether all have succeeded.
#include "engine/mpi/common_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace matex {
namespace {

// The address of the shared memory: a process, its file descriptor, and a mark. The mark is a number at the end of the
// head (common_memory.h). Other ranks recognize the file by it, because in another container the same process number
// and file descriptor may mean another file.
struct Address {
  int64_t process = 0;
  int64_t file = -1;  // -1: the first rank could not make the file
  int64_t mark = 0;
};

// A number that another file hardly contains: from the clock and an address of this process.
int64_t MakeMark(const void* address) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec * 1'000'000'007 + now.tv_nsec) ^ reinterpret_cast<int64_t>(address);
}

// Makes a file in memory without a name, of size `bytes`, and allocates its head; -1 on failure.
int Create(int64_t head, int64_t bytes) {
  const int file = static_cast<int>(syscall(SYS_memfd_create, "matex_tf", 1U /* MFD_CLOEXEC */));
  if (file < 0) return -1;
  if (ftruncate(file, bytes) == 0 && posix_fallocate(file, 0, head) == 0) return file;
  close(file);
  return -1;
}

// Opens the file of another process; -1 on failure.
int Open(const Address& address, int64_t bytes) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%lld/fd/%lld", static_cast<long long>(address.process),
                static_cast<long long>(address.file));
  // In another PID namespace the number may be another process: a file of another kind or size is not opened.
  struct stat found;
  if (stat(path, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size != bytes) return -1;
  return open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

// The file in the memory of this process; null if `file` is -1, or on failure.
void* Map(int file, int64_t bytes) {
  if (file < 0) return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

CommonLayout CommonLayout::Of(int64_t bytes, int64_t part) {
  const int64_t with_mark = bytes + static_cast<int64_t>(sizeof(Address::mark));
  return {(with_mark + kMemoryPage - 1) / kMemoryPage * kMemoryPage, part};
}

int MakeCommonMemory(MPI_Comm communicator, const CommonLayout& layout, const std::function<void(void*)>& prepare,
                     void** memory) {
  int rank = 0, size = 1;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  const int64_t bytes = layout.Bytes(size);
  Address address;
  void* mapped = nullptr;
  int file = -1;
  const auto mark_at = [&] { return static_cast<char*>(mapped) + layout.head - sizeof address.mark; };
  if (rank == 0) {
    file = Create(layout.head, bytes);
    mapped = Map(file, bytes);
    if (mapped != nullptr) {
      address = {getpid(), file, MakeMark(mapped)};
      prepare(mapped);
      std::memcpy(mark_at(), &address.mark, sizeof address.mark);
    }
  }
  int code = MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, communicator);
  if (rank > 0 && code == MPI_SUCCESS && address.file >= 0) {
    file = Open(address, bytes);
    mapped = Map(file, bytes);
    // A file of the same size may still be another file; then it lacks the mark.
    if (mapped != nullptr && std::memcmp(mark_at(), &address.mark, sizeof address.mark) != 0) {
      munmap(mapped, bytes);
      mapped = nullptr;
    }
  }
  // Each rank allocates its own part now, because a later access could raise SIGBUS for lack of memory, and because
  // Linux puts the pages on the NUMA node of the rank that allocates them.
  int have_all = mapped != nullptr;  // of this rank; after the all-reduce: of all ranks
  if (have_all && layout.part > 0) have_all = posix_fallocate(file, layout.head + rank * layout.part, layout.part) == 0;
  if (code == MPI_SUCCESS) code = MPI_Allreduce(MPI_IN_PLACE, &have_all, 1, MPI_INT, MPI_MIN, communicator);
  if (file >= 0) close(file);
  const bool made = code == MPI_SUCCESS && have_all;
  if (mapped != nullptr && !made) munmap(mapped, bytes);
  *memory = made ? mapped : nullptr;
  return code;
}

}  // namespace matex
