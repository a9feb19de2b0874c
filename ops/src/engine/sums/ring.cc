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
// A part of a segment: it travels on as soon as it has been added up, while the next is on its way. Below 64 KiB MPI sends
// it over TCP at once. A larger one asks first, and the answer waits behind what is on its way to that rank: between two
// ranks all would travel one way and then the other.
constexpr int64_t kPartBytes = 60 << 10;
// Rounds of which messages may still be on their way to the right: what a rank keeps of a ring does not grow with it.
constexpr int kOpen = 4;
// For a message that has begun to come when another has failed. With its sender lost, too, it may never be over.
constexpr std::chrono::seconds kLeave(2);

// Rounds in which each rank sends one segment to the right, and in the next round the one that it received from the left:
// in the first `adding` of them with its own added, so that after N - 1 each segment is whole on one rank.
struct Rounds {
  int first;  // the segment that rank 0 sends first; rank r sends the r-th after it
  int adding;
  int copying;
};

class Ring {
 public:
  // Segment i of the data is from begin(i) up to begin(i + 1).
  Ring(MPI_Comm communicator, char* data, std::function<int64_t(int)> begin, const Rounds& rounds, Type type, bool asleep)
      : communicator_(communicator), data_(data), begin_(std::move(begin)), adding_(rounds.adding),
        rounds_(rounds.adding + rounds.copying), type_(type), asleep_(asleep) {
    MPI_Comm_rank(communicator, &rank_);
    MPI_Comm_size(communicator, &size_);
    first_ = rank_ + rounds.first;
    element_ = static_cast<int64_t>(SizeOf(type));
    part_ = std::max<int64_t>(kPartBytes / element_, 1);
  }

  int Run(std::vector<char>* buffer) {
    const int code = Travel(buffer);
    if (code != MPI_SUCCESS) Withdraw();
    return code;
  }

 private:
  int Travel(std::vector<char>* buffer) {
    if (rounds_ == 0) return MPI_SUCCESS;
    int64_t longest = 0;
    for (int segment = 0; segment < size_; ++segment) longest = std::max(longest, Begin(segment + 1) - Begin(segment));
    longest *= adding_ > 0 ? element_ : 0;
    if (static_cast<int64_t>(buffer->size()) < 2 * longest) buffer->resize(2 * longest);
    buffers_[0] = buffer->data();
    buffers_[1] = buffer->data() + longest;
    if (const int code = Receive(0)) return code;
    for (int64_t at = 0; at < Length(0); at += part_) {
      if (const int code = Send(0, at)) return code;
    }
    for (int round = 0; round < rounds_; ++round) {
      if (round + 1 < rounds_) {
        if (const int code = Receive(round + 1)) return code;
        if (const int code = AwaitSends(round + 1 - kOpen)) return code;
        newest_ = round + 1;
        sends_[newest_ % kOpen].clear();
      }
      const int64_t length = Length(round + 1);
      for (int64_t at = 0, part = 0; at < length; at += part_, ++part) {
        if (const int code = Wait(&receives_[round % 2][part])) return code;
        if (Adds(round)) {
          const int code = MPI_Reduce_local(buffers_[round % 2] + at * element_, Place(round + 1) + at * element_,
                                            Taken(length, at), MpiType(type_), MpiOp(type_, Reduction::kSum));
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

  // After an error: what is still to come must not be written into memory that is the caller's again.
  void Withdraw() {
    for (std::vector<MPI_Request>& receives : receives_) {
      for (MPI_Request& request : receives) {
        if (request != MPI_REQUEST_NULL && MPI_Cancel(&request) == MPI_SUCCESS) AwaitFor(kLeave, &request);
      }
    }
  }

  // The segment sent in `round`, which is the one received in the round before.
  int Segment(int round) const { return ((first_ - round) % size_ + size_) % size_; }
  int64_t Begin(int segment) const { return begin_(segment); }
  int64_t Length(int round) const { return Begin(Segment(round) + 1) - Begin(Segment(round)); }
  char* Place(int round) const { return data_ + Begin(Segment(round)) * element_; }
  int Taken(int64_t length, int64_t at) const { return static_cast<int>(std::min(part_, length - at)); }
  bool Adds(int round) const { return round < adding_; }

  int Receive(int round) {
    // What is overwritten now has been sent before: that must be over.
    if (!Adds(round) && adding_ > 0) {
      if (const int code = AwaitSends(round - adding_)) return code;
    }
    std::vector<MPI_Request>& receives = receives_[round % 2];
    receives.clear();
    char* const to = Adds(round) ? buffers_[round % 2] : Place(round + 1);
    const int64_t length = Length(round + 1);
    const int left = (rank_ + size_ - 1) % size_;
    for (int64_t at = 0; at < length; at += part_) {
      receives.push_back(MPI_REQUEST_NULL);
      const int code = MPI_Irecv(to + at * element_, Taken(length, at), MpiType(type_), left, kTag, communicator_,
                                 &receives.back());
      if (code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
  }

  int Send(int round, int64_t at) {
    std::vector<MPI_Request>& sends = sends_[round % kOpen];
    sends.push_back(MPI_REQUEST_NULL);
    return MPI_Isend(Place(round) + at * element_, Taken(Length(round), at), MpiType(type_), (rank_ + 1) % size_, kTag,
                     communicator_, &sends.back());
  }

  // Those of `round`; it is over once a later one has its place.
  int AwaitSends(int round) {
    return round < 0 || round <= newest_ - kOpen ? MPI_SUCCESS : WaitAll(&sends_[round % kOpen]);
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
  int rank_ = 0, size_ = 1, first_ = 0;
  int newest_ = 0;  // the round in which this rank sends
  int64_t element_ = 1, part_ = 1;
  char* buffers_[2] = {nullptr, nullptr};
  std::vector<MPI_Request> sends_[kOpen], receives_[2];  // of a round, and of those after it in turn
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
  const int rounds = static_cast<int>(starts.size()) - 2;
  const auto begin = [&starts](int i) { return starts[i]; };
  return Ring(communicator, static_cast<char*>(data), begin, {-1, rounds, 0}, type, asleep).Run(buffer);
}

int RingAllgather(MPI_Comm communicator, void* data, const std::vector<int64_t>& starts, Type type, bool asleep) {
  std::vector<char> none;
  const int rounds = static_cast<int>(starts.size()) - 2;
  const auto begin = [&starts](int i) { return starts[i]; };
  return Ring(communicator, static_cast<char*>(data), begin, {0, 0, rounds}, type, asleep).Run(&none);
}

}  // namespace matex
