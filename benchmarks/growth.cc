// What a rank of the engine sends and keeps in each part of a run, counted; benchmarks/growth.py builds and starts it.
//
//   mpirun -n 16 growth RANKS_PER_HOST counted|chain [lose]
//
// Ranks of one machine take themselves for hosts of RANKS_PER_HOST. Prints, for each part, the most over ranks as JSON.
//
// With `lose` the last rank is lost in a sum. Open MPI counts no messages of a run that may go on then; so what is counted
// are the collectives of MPI that the others call.
//
// `counted`: messages and bytes that Open MPI's component `monitoring` sees leave this rank, those within MPI's own
// collectives, too; and the bytes of C++ memory that the part took at most, and kept. Memory of MPI is not among them.
//
// `chain`: the longest chain of messages, each of which is sent after the one before it was received. Every rank has a
// counter, as Lamport's clock. A message of the engine carries it, plus one, in a second message. In a collective of MPI
// all ranks go on from the largest counter plus the rounds of the collective. Those are the most messages that a rank sends
// in it: ranks of a recursive doubling, a ring or a dissemination send one in each round. Where ranks of a sum, or of a
// broadcast, send fewer than a doubling would, it was a tree up and one down, or one down, of as many levels.
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "engine/collectives.h"
#include "engine/mpi/mpi_calls.h"
#include "engine/sequence/rendezvous.h"
#include "engine/sums/allreduce.h"
#include "engine/update/async_reduction.h"
#include "engine/update/inline.h"

extern "C" int matex_rendezvous(int kind, uint64_t key, const char* what, int64_t bytes, int64_t rows,
                                int exit_code);

namespace {

// ---- memory of C++: each block begins with its size

std::atomic<int64_t> bytes_now{0}, bytes_most{0};

void* Allocate(size_t bytes) {
  constexpr size_t kHead = alignof(std::max_align_t);
  char* const block = static_cast<char*>(std::malloc(bytes + kHead));
  if (block == nullptr) throw std::bad_alloc();
  std::memcpy(block, &bytes, sizeof bytes);
  const int64_t now = bytes_now += static_cast<int64_t>(bytes);
  for (int64_t most = bytes_most; now > most && !bytes_most.compare_exchange_weak(most, now);) {
  }
  return block + kHead;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  char* const block = static_cast<char*>(memory) - alignof(std::max_align_t);
  size_t bytes = 0;
  std::memcpy(&bytes, block, sizeof bytes);
  bytes_now -= static_cast<int64_t>(bytes);
  std::free(block);
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }

namespace {

// ---- what MPI counts

[[noreturn]] void Fail(const std::string& what) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::fprintf(stderr, "growth: rank %d: %s\n", rank, what.c_str());
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 3);
  std::abort();
}

void Check(const matex::Error& error) {
  if (error) Fail(error.message);
}

void Check(int code) {
  if (code != MPI_SUCCESS) Fail("an error of MPI: " + std::to_string(code));
}

class Counter {
 public:
  Counter(MPI_T_pvar_session session, const char* name) : session_(session) {
    int index = -1;
    if (MPI_T_pvar_get_index(name, MPI_T_PVAR_CLASS_SIZE, &index) != MPI_SUCCESS) {
      Fail(std::string("this MPI counts no messages: it has no variable ") + name +
           ". Open MPI has it with --mca pml_monitoring_enable 1.");
    }
    MPI_Comm world = MPI_COMM_WORLD;
    int count = 0;
    Check(MPI_T_pvar_handle_alloc(session, index, &world, &handle_, &count));
    values_.resize(count);
    Check(MPI_T_pvar_start(session, handle_));
  }

  // To all ranks, and to those of other hosts.
  int64_t All() { return Sum(0, -1); }
  int64_t Far(int first, int last) { return All() - Sum(first, last); }

 private:
  int64_t Sum(size_t first, size_t last) {
    Check(MPI_T_pvar_read(session_, handle_, values_.data()));
    int64_t sum = 0;
    for (size_t i = first; i < std::min(last, values_.size()); ++i) sum += static_cast<int64_t>(values_[i]);
    return sum;
  }

  const MPI_T_pvar_session session_;
  MPI_T_pvar_handle handle_;
  std::vector<size_t> values_;
};

std::unique_ptr<Counter> messages, bytes_sent;
std::atomic<int64_t> calls{0};  // of collectives
bool follows_chain = false;

// ---- the longest chain

std::atomic<int64_t> chain{0};
constexpr int kBehind = 1000;  // the tag of what carries the counter, behind that of the message

struct Expected {
  int source;
  int tag;
  MPI_Comm communicator;
};
std::mutex expected_mutex;
std::map<MPI_Request, Expected> expected;

// The levels of a tree of the ranks of `communicator`.
int64_t LevelsOf(MPI_Comm communicator) {
  int size = 1, levels = 0;
  PMPI_Comm_size(communicator, &size);
  while (1 << levels < size) ++levels;
  return levels;
}

// A collective of `communicator`, which `call` makes and waits for, of so many trees where it is of trees.
template <typename Call>
int Together(MPI_Comm communicator, int trees, Call call) {
  ++calls;
  if (!follows_chain || messages == nullptr) return call();
  const int64_t before = messages->All();
  const int code = call();
  int64_t now[2] = {chain, messages->All() - before};
  if (code == MPI_SUCCESS) PMPI_Allreduce(MPI_IN_PLACE, now, 2, MPI_INT64_T, MPI_MAX, communicator);
  const int64_t levels = LevelsOf(communicator);
  chain = now[0] + (now[1] < levels ? trees * levels : now[1]);
  return code;
}

// One that the engine does not wait for at once: here it does.
template <typename Call, typename Later>
int Together(MPI_Comm communicator, MPI_Request* request, Call call, Later later) {
  if (!follows_chain) return ++calls, later();
  *request = MPI_REQUEST_NULL;
  return Together(communicator, 2, call);
}

void Sent(int target, int tag, MPI_Comm communicator) {
  if (!follows_chain) return;
  auto* const carried = new int64_t(chain + 1);  // it lives until the program ends: who knows when it is there
  MPI_Request request;
  PMPI_Isend(carried, 1, MPI_INT64_T, target, tag + kBehind, communicator, &request);
  PMPI_Request_free(&request);
}

void Received(MPI_Request request) {
  if (!follows_chain) return;
  Expected one;
  {
    std::lock_guard<std::mutex> lock(expected_mutex);
    const auto found = expected.find(request);
    if (found == expected.end()) return;
    one = found->second;
    expected.erase(found);
  }
  int64_t carried = 0;
  PMPI_Recv(&carried, 1, MPI_INT64_T, one.source, one.tag + kBehind, one.communicator, MPI_STATUS_IGNORE);
  chain = std::max<int64_t>(chain, carried);
}

}  // namespace

extern "C" {

int MPI_Barrier(MPI_Comm c) {
  return Together(c, 0, [&] { return PMPI_Barrier(c); });
}
int MPI_Bcast(void* data, int n, MPI_Datatype type, int root, MPI_Comm c) {
  return Together(c, 1, [&] { return PMPI_Bcast(data, n, type, root, c); });
}
int MPI_Allreduce(const void* from, void* to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm c) {
  return Together(c, 2, [&] { return PMPI_Allreduce(from, to, n, type, op, c); });
}
int MPI_Reduce(const void* from, void* to, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm c) {
  return Together(c, 1, [&] { return PMPI_Reduce(from, to, n, type, op, root, c); });
}
int MPI_Iallreduce(const void* from, void* to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm c, MPI_Request* request) {
  return Together(c, request, [&] { return PMPI_Allreduce(from, to, n, type, op, c); },
                  [&] { return PMPI_Iallreduce(from, to, n, type, op, c, request); });
}
int MPI_Allgather(const void* from, int n, MPI_Datatype type, void* to, int m, MPI_Datatype other, MPI_Comm c) {
  return Together(c, 0, [&] { return PMPI_Allgather(from, n, type, to, m, other, c); });
}
int MPI_Allgatherv(const void* from, int n, MPI_Datatype type, void* to, const int* counts, const int* starts,
                   MPI_Datatype other, MPI_Comm c) {
  return Together(c, 0, [&] { return PMPI_Allgatherv(from, n, type, to, counts, starts, other, c); });
}
int MPI_Reduce_scatter(const void* from, void* to, const int* counts, MPI_Datatype type, MPI_Op op, MPI_Comm c) {
  return Together(c, 0, [&] { return PMPI_Reduce_scatter(from, to, counts, type, op, c); });
}
int MPI_Comm_dup(MPI_Comm c, MPI_Comm* made) {
  return Together(c, 0, [&] { return PMPI_Comm_dup(c, made); });
}
int MPI_Comm_split(MPI_Comm c, int color, int key, MPI_Comm* made) {
  return Together(c, 0, [&] { return PMPI_Comm_split(c, color, key, made); });
}
int MPI_Isend(const void* data, int n, MPI_Datatype type, int target, int tag, MPI_Comm c, MPI_Request* request) {
  Sent(target, tag, c);
  return PMPI_Isend(data, n, type, target, tag, c, request);
}
int MPI_Irecv(void* data, int n, MPI_Datatype type, int source, int tag, MPI_Comm c, MPI_Request* request) {
  const int code = PMPI_Irecv(data, n, type, source, tag, c, request);
  std::lock_guard<std::mutex> lock(expected_mutex);
  if (follows_chain) expected[*request] = {source, tag, c};
  return code;
}
int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  const MPI_Request waited = *request;
  const int code = PMPI_Wait(request, status);
  Received(waited);
  return code;
}
int MPI_Test(MPI_Request* request, int* over, MPI_Status* status) {
  const MPI_Request waited = *request;
  const int code = PMPI_Test(request, over, status);
  if (code == MPI_SUCCESS && *over) Received(waited);
  return code;
}

}  // extern "C"

namespace {

// ---- the parts of a run

using namespace matex;

constexpr int kGradients = 84;
constexpr int64_t kSmall = 1 << 10, kLarge = 48 << 10;  // of float32: 4 KiB, and 192 KiB, of which parts are a message
int my_rank = 0, ranks = 1, per_host = 8;
MPI_Comm host = MPI_COMM_NULL;  // of the ranks of this one's
std::string lines;

constexpr int kCounts = 7;
constexpr const char* kNames[kCounts] = {"messages", "bytes", "far", "bytes of host", "most", "kept", "chain"};

// What this rank has counted until now.
std::array<int64_t, kCounts> CountAll() {
  const int first = my_rank - my_rank % per_host, last = first + per_host;
  return {messages->All(), bytes_sent->All(), messages->Far(first, last), bytes_sent->Far(first, last),
          bytes_most,      bytes_now,         chain};
}

// Does `work`, and adds a line of what it took. The work of all begins when all have come.
template <typename Work>
void Part(const char* name, Work work) {
  PMPI_Barrier(MPI_COMM_WORLD);
  std::array<int64_t, kCounts> before = CountAll();
  bytes_most = before[4] = before[5];
  work();
  std::array<int64_t, kCounts> counts = CountAll();
  for (int i = 0; i < kCounts; ++i) counts[i] -= before[i];
  // What the ranks of a host have sent to others goes through one adapter.
  PMPI_Allreduce(MPI_IN_PLACE, &counts[3], 1, MPI_INT64_T, MPI_SUM, host);
  PMPI_Allreduce(MPI_IN_PLACE, counts.data(), kCounts, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  int64_t last = chain;
  PMPI_Allreduce(MPI_IN_PLACE, &last, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  chain = last;
  lines += std::string(lines.empty() ? "" : ",") + "\n  \"" + name + "\": {";
  for (int i = 0; i < kCounts; ++i) {
    lines += std::string(i > 0 ? ", " : "") + "\"" + kNames[i] + "\": " + std::to_string(counts[i]);
  }
  lines += "}";
}

std::function<std::string()> At(const char* place) {
  return [place] { return std::string(place); };
}

std::shared_ptr<const Layout> LayoutOf(int gradients, int64_t count, bool checked = false) {
  std::vector<Entry> entries;
  for (int i = 0; i < gradients; ++i) {
    entries.push_back({"a_layer_of_a_model/dense_" + std::to_string(i) + "/kernel", Type::kFloat32, {count}});
  }
  const World& world = TheWorld();
  return std::make_shared<Layout>(entries, world.chunk_bytes, world.fuse_bytes, Compression(), false, checked);
}

Error Reduce(const Layout& layout, std::vector<float>* numbers, const char* place) {
  std::vector<const void*> from(layout.entries().size(), numbers->data());
  std::vector<void*> to(layout.entries().size(), numbers->data());
  return ReduceInline(layout, from.data(), to.data(), 1.0, 0, At(place));
}

// Ranks go on after a mismatch, of which the program is to end, with all that they have.
void GoOn() {
  int64_t number = NumberInSequence();
  PMPI_Allreduce(MPI_IN_PLACE, &number, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  const int64_t counts[kKinds] = {};
  GoOnAt(number, counts);
  Check(Barrier("the first meeting of those that go on"));
}

// Numbers of which each rank owns as many.
Transfer InPieces(int64_t count) {
  Transfer transfer;
  transfer.type = Type::kFloat32;
  transfer.count = count / ranks * ranks;
  transfer.fragments = {{0, 0, transfer.count}};
  transfer.owned.assign(ranks, count / ranks);
  return transfer;
}

// So many numbers, added up by each algorithm that a run may choose.
void Sums(std::vector<float>* numbers) {
  const World& world = TheWorld();
  const auto sum = [&](Adder* adder, int64_t count, const char* name) {
    Check(adder->Sum(numbers->data(), count, Type::kFloat32, At("the first sum")));  // which may try ways
    Part(name, [&] { Check(adder->Sum(numbers->data(), count, Type::kFloat32, At(name))); });
  };
  Adder flat(world.gradients, Algorithm::kMpi, world.node, false), ring(world.gradients, Algorithm::kRing, world.node, false),
      levels(world.gradients, Algorithm::kTwoLevel, world.node, false);
  sum(&flat, kSmall, "small sum");
  sum(&flat, kLarge, "large sum, mpi");
  sum(&ring, kLarge, "large sum, ring");
  Part("start: levels of a sum", [&] { Check(levels.Sum(numbers->data(), 1, Type::kFloat32, At("the first sum"))); });
  sum(&levels, kLarge, "large sum, two_level");
  const Transfer pieces = InPieces(kLarge);
  Part("gradients to owners, ring", [&] { Check(ring.Sum(pieces, numbers->data(), nullptr, At("pieces"))); });
  Part("weights from owners, ring", [&] { Check(ring.Gather(pieces, numbers->data())); });
  Check(levels.Gather(pieces, numbers->data()));
  Part("gradients to owners, two_level", [&] { Check(levels.Sum(pieces, numbers->data(), nullptr, At("pieces"))); });
  Part("weights from owners, two_level", [&] { Check(levels.Gather(pieces, numbers->data())); });
}

// A host's ranks, in their memory.
void SumOnHost(std::vector<float>* numbers) {
  std::unique_ptr<SharedMemory> memory;
  Part("start: memory of a host", [&] { Check(SharedMemory::Make(host, &memory)); });
  if (memory == nullptr) Fail("ranks of one machine have no memory in common");
  int together = 1;
  PMPI_Comm_size(host, &together);
  Part("sum in memory", [&] {
    if (together == 1) return;
    const auto put = [&](char* to, int64_t first, int64_t n) { std::memcpy(to, numbers->data() + first, n * sizeof(float)); };
    Check(memory->Sum(Type::kFloat32, kLarge, put, [&](const char* one, const char* other, int64_t first, int64_t n) {
      SharedMemory::Write(Type::kFloat32, one, other, reinterpret_cast<char*>(numbers->data() + first), n);
    }));
  });
}

void Overlap(std::vector<float>* numbers) {
  const matex::UpdatePart part{LayoutOf(1, kSmall), "an overlapped update"};
  int64_t ticket = 0;
  Check(Announce(part, 1.0, 0, &ticket));
  std::promise<void> over;
  HandedOver gradient;
  gradient.input = gradient.output = numbers->data();
  gradient.done = [&over](const Error& error) {
    Check(error);
    over.set_value();
  };
  HandOver(ticket, 0, std::move(gradient));
  over.get_future().wait();
  FinishUpdates();
}

void Run() {
  std::vector<float> numbers(kLarge, 1.0f);
  // What `import matex_tf` makes, and the engine of it at the first collective.
  MPI_Comm made[6], node;
  Part("start: communicators", [&] {
    Check(MPI_Comm_split(MPI_COMM_WORLD, my_rank / per_host, my_rank, &node));
    for (MPI_Comm& one : made) Check(MPI_Comm_dup(MPI_COMM_WORLD, &one));
  });
  const auto handle = [&](int which) { return static_cast<int>(MPI_Comm_c2f(made[which])); };
  const int first_of_host = my_rank - my_rank % per_host;
  Check(Start({handle(0), handle(1), handle(2), my_rank, ranks, "host" + std::to_string(first_of_host), first_of_host, 8 << 20,
               64 << 10, Algorithm::kAuto, {}}));
  Part("start: first meeting", [&] { Check(Barrier("the first meeting")); });
  const auto empty = LayoutOf(kGradients, 0);
  Check(Reduce(*empty, &numbers, "the first update"));
  Part("agreement of a layout", [&] { Check(Reduce(*LayoutOf(kGradients, 0), &numbers, "an update")); });
  Sums(&numbers);
  SumOnHost(&numbers);
  Check(Reduce(*LayoutOf(1, kSmall), &numbers, "an update"));
  Part("update of 4 KiB", [&] { Check(Reduce(*LayoutOf(1, kSmall), &numbers, "an update")); });
  Overlap(&numbers);
  Part("overlapped update of 4 KiB", [&] { Overlap(&numbers); });
  Part("broadcast of 4 KiB", [&] { Check(Broadcast({"", Type::kFloat32, {kSmall}}, 0, numbers.data())); });
  std::vector<float> all(kSmall * ranks);
  Part("gather of 4 KiB of each", [&] {
    Check(Allgather({"", Type::kFloat32, {kSmall}}, numbers.data(), [&](const std::vector<int64_t>&) { return all.data(); }));
  });
  Part("mismatch of a layout", [&] {
    const auto mine = LayoutOf(my_rank + 1 == ranks ? kGradients - 1 : kGradients, 0);
    if (!Reduce(*mine, &numbers, "an update")) Fail("ranks with other layouts went on");
  });
  GoOn();
  Part("mismatch of all places", [&] {
    const std::string place = "place " + std::to_string(my_rank), last = "rank " + std::to_string(ranks - 1) + " (";
    const Kind kind = my_rank + 1 == ranks ? Kind::kExit : Kind::kControl;
    if (!matex_rendezvous(static_cast<int>(kind), my_rank, place.c_str(), 0, 0, 0)) {
      Fail("ranks at other places went on");
    }
    const std::string told = FailureOfSequence().message;
    if (told.find(last) != 0 || told.find(" has ended its script") == std::string::npos) Fail("not told who has ended: " + told);
  });
  GoOn();
  Part("numbers that are not finite", [&] {
    std::vector<float> wrong(kSmall, std::numeric_limits<float>::quiet_NaN());
    if (!Reduce(*LayoutOf(1, kSmall, true), &wrong, "a checked update")) Fail("NaN was not found");
  });
  GoOn();
  Part("end", [&] {
    if (matex_rendezvous(static_cast<int>(Kind::kExit), 0, "the end", 0, 0, 0)) Fail("the end failed");
  });
}

#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
// The last rank is lost in a sum; the others make a world of their own, as matex_tf/world/world.py does.
void Lose() {
  MPI_Comm life, made[3], left;
  Check(MPI_Comm_dup(MPI_COMM_WORLD, &life));
  for (MPI_Comm& one : made) Check(MPI_Comm_dup(MPI_COMM_WORLD, &one));
  for (MPI_Comm one : {made[0], made[1], made[2], life, MPI_COMM_WORLD}) MPI_Comm_set_errhandler(one, MPI_ERRORS_RETURN);
  Check(Start({MPI_Comm_c2f(made[0]), MPI_Comm_c2f(made[1]), MPI_Comm_c2f(made[2]), my_rank, ranks, "host", 0, 1 << 20,
               64 << 10, Algorithm::kMpi, {}}));
  std::vector<float> numbers(kSmall, 1.0f);
  Check(Reduce(*LayoutOf(1, kSmall), &numbers, "an update"));
  if (my_rank + 1 == ranks) {
    sleep(1);  // until the others are through with the update
    raise(SIGKILL);
  }
  const int64_t called = calls, had = bytes_now;
  if (!Reduce(*LayoutOf(1, kSmall), &numbers, "an update")) Fail("a sum without a rank went on");
  for (MPI_Comm one : made) ++calls, MPIX_Comm_revoke(one);
  ++calls;
  Check(MPIX_Comm_shrink(life, &left));
  int rank = 0, size = 0;
  MPI_Comm_rank(left, &rank);
  MPI_Comm_size(left, &size);
  for (MPI_Comm& one : made) Check(MPI_Comm_dup(left, &one));
  const int64_t counts[kKinds] = {};
  GoOnAt(100, counts);
  Check(StartAgain(MPI_Comm_c2f(made[0]), MPI_Comm_c2f(made[1]), MPI_Comm_c2f(made[2]), rank, size, 0));
  Check(Reduce(*LayoutOf(1, kSmall), &numbers, "an update"));
  int64_t found[2] = {calls - called, bytes_now - had};
  PMPI_Allreduce(MPI_IN_PLACE, found, 2, MPI_INT64_T, MPI_MAX, left);
  if (size != ranks - 1) Fail("another number of ranks is left");
  if (rank == 0) {
    std::printf("{\"lost rank\": {\"calls\": %lld, \"kept\": %lld}}\n", static_cast<long long>(found[0]),
                static_cast<long long>(found[1]));
    std::fflush(stdout);
  }
  MPI_Barrier(left);
  std::_Exit(0);  // MPI_Finalize would wait for the one that is lost
}
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: growth RANKS_PER_HOST counted|chain [lose]\n"), 2;
  per_host = std::atoi(argv[1]);
  int provided = 0;
  MPI_T_init_thread(MPI_THREAD_MULTIPLE, &provided);
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_T_pvar_session session;
  Check(PMPI_Comm_split(MPI_COMM_WORLD, my_rank / per_host, my_rank, &host));
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
  if (argc > 3) Lose();
#endif
  Check(MPI_T_pvar_session_create(&session));
  messages = std::make_unique<Counter>(session, "pml_monitoring_messages_count");
  bytes_sent = std::make_unique<Counter>(session, "pml_monitoring_messages_size");
  follows_chain = std::strcmp(argv[2], "chain") == 0;
  Run();
  if (my_rank == 0) std::printf("{%s\n}\n", lines.c_str());
  MPI_Finalize();
  return 0;
}
