// The ring algorithms. The data are divided into one segment for each rank. In each round a rank sends one segment to
// its right neighbour, the next rank, and receives one from its left neighbour. The all-reduce, the reduce-scatter and
// the all-gather are such rounds, and have one class, `Ring`.
#include "engine/sums/ring.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "engine/mpi/sleeping_wait.h"
#include "engine/base/reduce_ops.h"

namespace matex {
namespace {

constexpr int kTag = 1;
// A segment travels in parts: each part is sent on as soon as this rank has added its numbers to it, while the next
// part arrives. Over TCP, MPI sends a message below 64 KiB at once. Before a larger message it asks the receiver, whose
// answer waits behind other data on the same connection. So data would travel in one direction at a time.
constexpr int64_t kPartBytes = 60 << 10;
// The maximum number of rounds whose sends are unfinished. It bounds the memory of a rank for any number of ranks.
constexpr int kMaxOpenRounds = 4;
// How long a cancelled receive may take to end. A message that has begun to arrive never ends if its sender is lost.
constexpr std::chrono::seconds kCancelTimeout(2);

// In each round a rank sends one segment to the right; from the second round on, it is the segment that came from the
// left in the preceding round. In the first `adding` rounds the receiver adds its own numbers to the segment, so after
// N - 1 rounds each segment is complete on one rank. In the next `copying` rounds the receiver replaces its numbers by
// the segment. Rank 0 of 3 sends segments 0, 2, 1, 0 in an all-reduce of two rounds of each kind.
struct Rounds {
  int first;  // rank r sends segment first + r in the first round
  int adding;
  int copying;
};

class Ring {
 public:
  // Segment i of the data begins at begin(i) and ends at begin(i + 1). asleep: waits sleep instead of polling in MPI.
  Ring(MPI_Comm communicator, char* data, std::function<int64_t(int)> begin, const Rounds& rounds, Type type,
       bool asleep)
      : communicator_(communicator),
        data_(data),
        begin_(std::move(begin)),
        adding_(rounds.adding),
        rounds_(rounds.adding + rounds.copying),
        type_(type),
        asleep_(asleep) {
    MPI_Comm_rank(communicator, &rank_);
    MPI_Comm_size(communicator, &size_);
    first_ = rank_ + rounds.first;
    width_ = static_cast<int64_t>(SizeOf(type));
    part_ = std::max<int64_t>(kPartBytes / width_, 1);
  }

  int Run(std::vector<char>* buffer) {
    const int code = Travel(buffer);
    if (code != MPI_SUCCESS) CancelReceives();
    return code;
  }

 private:
  // Makes all rounds. The receives of round r + 1 are posted before the parts of round r are processed.
  int Travel(std::vector<char>* buffer) {
    if (rounds_ == 0) return MPI_SUCCESS;
    int64_t longest = 0;
    for (int i = 0; i < size_; ++i) longest = std::max(longest, begin_(i + 1) - begin_(i));
    // Only a round that adds receives into a buffer; the others receive in place.
    const int64_t segment_bytes = adding_ > 0 ? longest * width_ : 0;
    if (static_cast<int64_t>(buffer->size()) < 2 * segment_bytes) buffer->resize(2 * segment_bytes);
    buffers_[0] = buffer->data();
    buffers_[1] = buffer->data() + segment_bytes;
    // Round 0 sends the first segment. Later rounds send each part that comes from the left, after adding to it.
    if (const int code = Receive(0)) return code;
    for (int64_t at = 0; at < Length(0); at += part_) {
      if (const int code = Send(0, at)) return code;
    }
    for (int round = 0; round < rounds_; ++round) {
      if (round + 1 < rounds_) {
        if (const int code = Receive(round + 1)) return code;
        // Round `round + 1` takes the slot of an earlier round in `sends_`, whose sends must have ended.
        if (const int code = AwaitSends(round + 1 - kMaxOpenRounds)) return code;
        newest_ = round + 1;
        sends_[newest_ % kMaxOpenRounds].clear();
      }
      const int64_t length = Length(round + 1);  // `round + 1` names the segment that is received in `round`
      for (int64_t at = 0, part = 0; at < length; at += part_, ++part) {
        if (const int code = Wait(&receives_[round % 2][part])) return code;
        if (Adds(round)) {
          const int code = MPI_Reduce_local(buffers_[round % 2] + at * width_, DataOf(round + 1) + at * width_,
                                            PartLength(length, at), MpiType(type_), MpiOp(type_, Reduction::kSum));
          if (code != MPI_SUCCESS) return code;
        }
        if (round + 1 < rounds_) {
          if (const int code = Send(round + 1, at)) return code;
        }
      }
    }
    for (std::vector<MPI_Request>& sends : sends_) {
      if (const int code = WaitAll(&sends)) return code;
    }
    return MPI_SUCCESS;
  }

  // After an error: cancels the receives, so that no late message is written into memory that the caller uses again.
  void CancelReceives() {
    for (std::vector<MPI_Request>& receives : receives_) {
      for (MPI_Request& request : receives) {
        if (request != MPI_REQUEST_NULL && MPI_Cancel(&request) == MPI_SUCCESS) AwaitFor(kCancelTimeout, &request);
      }
    }
  }

  // The segment sent in `round`, which was received in round - 1. (`% size_` of a negative number is negative in C++.)
  int Segment(int round) const { return ((first_ - round) % size_ + size_) % size_; }
  // The number of elements of this segment, and their address.
  int64_t Length(int round) const { return begin_(Segment(round) + 1) - begin_(Segment(round)); }
  char* DataOf(int round) const { return data_ + begin_(Segment(round)) * width_; }
  // The number of elements in the part that begins at offset `at` of a segment of `length` elements.
  int PartLength(int64_t length, int64_t at) const { return static_cast<int>(std::min(part_, length - at)); }
  bool Adds(int round) const { return round < adding_; }

  int Receive(int round) {
    // In an all-reduce, a receive in place overwrites the segment sent N - 1 rounds before, in round - adding_. This
    // send may still run. (In an all-gather a rank receives only segments that it has not sent before.)
    if (!Adds(round) && adding_ > 0) {
      if (const int code = AwaitSends(round - adding_)) return code;
    }
    std::vector<MPI_Request>& receives = receives_[round % 2];
    receives.clear();
    char* const to = Adds(round) ? buffers_[round % 2] : DataOf(round + 1);
    const int64_t length = Length(round + 1);
    const int left = (rank_ + size_ - 1) % size_;
    for (int64_t at = 0; at < length; at += part_) {
      receives.push_back(MPI_REQUEST_NULL);
      const int code = MPI_Irecv(to + at * width_, PartLength(length, at), MpiType(type_), left, kTag, communicator_,
                                 &receives.back());
      if (code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
  }

  int Send(int round, int64_t at) {
    std::vector<MPI_Request>& sends = sends_[round % kMaxOpenRounds];
    sends.push_back(MPI_REQUEST_NULL);
    return MPI_Isend(DataOf(round) + at * width_, PartLength(Length(round), at), MpiType(type_), (rank_ + 1) % size_,
                     kTag, communicator_, &sends.back());
  }

  // Waits for the end of the sends of `round`. They have ended already if a later round uses their slot in `sends_`.
  int AwaitSends(int round) {
    const bool have_ended = round < 0 || round <= newest_ - kMaxOpenRounds;
    return have_ended ? MPI_SUCCESS : WaitAll(&sends_[round % kMaxOpenRounds]);
  }

  int Wait(MPI_Request* request) const { return asleep_ ? Await(request) : MPI_Wait(request, MPI_STATUS_IGNORE); }
  int WaitAll(std::vector<MPI_Request>* requests) const {
    for (MPI_Request& request : *requests) {
      if (const int code = Wait(&request)) return code;
    }
    return MPI_SUCCESS;
  }

  const MPI_Comm communicator_;
  char* const data_;
  const std::function<int64_t(int)> begin_;
  const int adding_, rounds_;
  const Type type_;
  const bool asleep_;
  int rank_ = 0, size_ = 1, first_ = 0;  // first_: the segment sent in round 0, modulo size_
  int newest_ = 0;  // the latest round that has a slot in sends_
  int64_t width_ = 1, part_ = 1;  // bytes of an element; elements of a part
  char* buffers_[2] = {nullptr, nullptr};
  std::vector<MPI_Request> sends_[kMaxOpenRounds], receives_[2];  // by round, modulo the number of slots
};

}  // namespace

int RingSum(MPI_Comm communicator, void* data, int64_t count, Type type, bool asleep, std::vector<char>* buffer) {
  int size = 1;
  MPI_Comm_size(communicator, &size);
  const auto begin = [count, size](int64_t i) { return count / size * i + std::min(i, count % size); };
  return Ring(communicator, static_cast<char*>(data), begin, {0, size - 1, size - 1}, type, asleep).Run(buffer);
}

int RingReduceScatter(MPI_Comm communicator, void* data, const std::vector<int64_t>& starts, Type type, bool asleep,
                      std::vector<char>* buffer) {
  const int rounds = static_cast<int>(starts.size()) - 2;  // N - 1: `starts` has N + 1 numbers
  const auto begin = [&starts](int i) { return starts[i]; };
  // Rank r first sends segment r - 1, so the segment that it completes in the last round is its own, r.
  return Ring(communicator, static_cast<char*>(data), begin, {-1, rounds, 0}, type, asleep).Run(buffer);
}

int RingAllgather(MPI_Comm communicator, void* data, const std::vector<int64_t>& starts, Type type, bool asleep) {
  std::vector<char> none;
  const int rounds = static_cast<int>(starts.size()) - 2;  // N - 1
  const auto begin = [&starts](int i) { return starts[i]; };
  return Ring(communicator, static_cast<char*>(data), begin, {0, 0, rounds}, type, asleep).Run(&none);
}

}  // namespace matex
