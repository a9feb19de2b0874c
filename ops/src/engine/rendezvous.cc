#include "rendezvous.h"

#include <limits>
#include <vector>

#include "waiting.h"

namespace matex {
namespace {

using Clock = std::chrono::steady_clock;

Error Exchange(const World& world, MPI_Comm communicator, const Call& call, int64_t number) {
  Report mine;
  mine.kind = call.kind;
  mine.number = number;
  mine.host = world.host;
  mine.what = call.what();
  if (call.layout != nullptr) {
    mine.chunk_bytes = call.layout->chunk_bytes();
    mine.fuse_bytes = call.layout->fuse_bytes();
    mine.compiled = call.layout->compiled();
    mine.entries = call.layout->entries();
    mine.rows = call.rows;
  }
  std::string text = Encode(mine);
  if (text.size() > static_cast<size_t>(std::numeric_limits<int>::max() / world.size)) {
    mine.entries.clear();
    text = Encode(mine);
  }
  const int length = static_cast<int>(text.size());
  std::vector<int> lengths(world.size), starts(world.size, 0);
  int code = MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, communicator);
  if (Error error = MpiError(code, "MPI_Allgather", mine.what)) return error;
  for (int rank = 1; rank < world.size; ++rank) starts[rank] = starts[rank - 1] + lengths[rank - 1];
  std::string all(starts.back() + lengths.back(), '\0');
  code =
      MPI_Allgatherv(text.data(), length, MPI_CHAR, &all[0], lengths.data(), starts.data(), MPI_CHAR, communicator);
  if (Error error = MpiError(code, "MPI_Allgatherv", mine.what)) return error;
  std::vector<Report> reports;
  for (int rank = 0; rank < world.size; ++rank) reports.push_back(Decode(all.substr(starts[rank], lengths[rank])));
  return Error(Explain(reports));
}

}  // namespace

Error Sequence::Check(const World& world, const Call& call) const {
  int over = 0;
  MPI_Finalized(&over);
  if (over) {
    return Error(call.what() + " was called after MPI had been shut down.");
  }
  // The largest of x and of ~x over all ranks: they are each other's complement only if x is the same everywhere.
  constexpr int kWords = 3;
  const int64_t mine[kWords] = {static_cast<int64_t>(call.kind), static_cast<int64_t>(call.key), number_};
  int64_t words[2 * kWords];
  for (int i = 0; i < kWords; ++i) {
    words[i] = mine[i];
    words[kWords + i] = ~mine[i];
  }
  const MPI_Comm communicator = world.*communicator_;
  int code;
  if (asleep_) {
    MPI_Request request;
    code = MPI_Iallreduce(MPI_IN_PLACE, words, 2 * kWords, MPI_INT64_T, MPI_MAX, communicator, &request);
    if (code == MPI_SUCCESS) code = Await(&request);
  } else {
    code = MPI_Allreduce(MPI_IN_PLACE, words, 2 * kWords, MPI_INT64_T, MPI_MAX, communicator);
  }
  if (code != MPI_SUCCESS) return MpiError(code, "MPI_Allreduce", call.what());
  for (int i = 0; i < kWords; ++i) {
    if (words[i] != ~words[kWords + i]) return Exchange(world, communicator, call, number_);
  }
  return Error();
}

Error Sequence::Meet(const Call& call) {
  const World& world = TheWorld();
  met_ = Clock::now();
  if (world.size == 1) return Error();
  if (poison_) return poison_;
  poison_ = Check(world, call);
  ++number_;
  return poison_;
}

Error Sequence::Finish(const Call& call, Error error) {
  if (error) {
    poison_ = error;
  } else {
    const int kind = static_cast<int>(call.kind);
    ++counts_[kind];
    nanoseconds_[kind] += std::chrono::nanoseconds(Clock::now() - met_).count();
  }
  return error;
}

Sequence& TheSequence() {
  static Sequence* const sequence = new Sequence(&World::sequence, false);
  return *sequence;
}

Sequence& TheOverlappedSequence() {
  static Sequence* const sequence = new Sequence(&World::overlapped, true);
  return *sequence;
}

int64_t CountOf(Kind kind) { return TheSequence().CountOf(kind) + TheOverlappedSequence().CountOf(kind); }

double SecondsOf(Kind kind) { return TheSequence().SecondsOf(kind) + TheOverlappedSequence().SecondsOf(kind); }

}  // namespace matex
