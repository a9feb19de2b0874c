// One MPI_Iallreduce of three words.
#include "engine/sequence/readiness.h"

#include <mpi.h>

#include "engine/mpi/sleeping_wait.h"
#include "engine/sequence/trace.h"
#include "engine/sums/world.h"

namespace matex {

Error Ready(int64_t position, bool is_ready, const std::string& place, int* without) {
  const World& world = TheWorld();
  *without = is_ready ? -1 : world.rank;
  if (!world.has_peers()) return Error();
  // Each rank also sends its position: max(x) and max(~x) over ranks are complements only if all positions are equal.
  int64_t words[3] = {position, ~position, *without};
  const Span span(Activity::kMeet);
  MPI_Request request;
  int code = MPI_Iallreduce(MPI_IN_PLACE, words, 3, MPI_INT64_T, MPI_MAX, world.overlapped, &request);
  if (code == MPI_SUCCESS) code = Await(&request);
  if (code != MPI_SUCCESS) return MpiError(code, "MPI_Iallreduce", place);
  if (words[0] != ~words[1]) return Error("ranks are at different transfers of " + place + ".");
  *without = static_cast<int>(words[2]);
  return Error();
}

}  // namespace matex
