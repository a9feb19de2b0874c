// Weights that all ranks of one node train in the same memory, and whose turn it is: batches are taken by number, each
// by one rank, and a rank begins one only while the oldest under way is at most `bound` behind it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/base/error.h"

namespace matex {

class SharedStore {
 public:
  // What `Begin` comes to.
  enum Begun : int {
    kTaken = 0,  // this rank is to train batch `ticket`
    kEnd = 1,    // there is none left
    kNotYet = 2  // it has one, and waits for rank `behind`
  };

  // Room for `bytes`, zeros. All ranks call it together. `made` is null on all where they have no memory in common.
  static Error Make(int64_t bytes, std::shared_ptr<SharedStore>* made);
  ~SharedStore();
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  // Where what is shared lies, at a multiple of 64 bytes; the same place from the start on all ranks.
  char* data() const { return data_; }
  bool Has(const void* place) const { return place >= data_ && place < data_ + bytes_; }

  // Deal batches 0 to `count`; one rank calls it, while no other is between `Begin` and `End`. Rank r's first is batch r.
  void Deal(int64_t count);

  // Take the next batch, and wait until it may be trained, but not for much longer than `seconds`; then call it again.
  Begun Begin(int64_t bound, double seconds, int64_t* ticket, int* behind);

  // What `Begin` gave is trained. How many batches others have trained since it gave it.
  int64_t End();

  // Give back what was begun, if anything: nobody waits for this rank any more.
  void Leave();

  // Nobody takes a batch any more.
  void Stop();

  // How many batches were trained since they were dealt.
  int64_t Trained() const;

 private:
  struct Control;
  struct Line;

  SharedStore(void* memory, int64_t bytes, int rank, int size);
  std::atomic<int64_t>& LineOf(int rank) const;
  bool Take();
  int64_t Oldest(int* rank) const;

  void* const memory_;
  const int64_t bytes_;
  const int rank_;
  const int size_;
  char* data_;
  int64_t ticket_ = -1;  // the batch that this rank has; -1 if it has none
  int64_t seen_ = 0;     // the batches that had been trained when it began
};

// The store of this process, of which there is one at a time; null if there is none.
std::shared_ptr<SharedStore> TheStore();
void SetTheStore(std::shared_ptr<SharedStore> store);

// The place, in what a pipeline of this process gives, of the batch that it is to train; -1: each is given. It is by
// place that a pipeline leaves out what other ranks train.
std::atomic<int64_t>& WantedPlace();

}  // namespace matex
