// The function that a compiled program calls for each collective (custom_call.h). The program passes a request, a text
// that describes the collective. The function decodes the request at the first call, keeps the decoded request, and
// runs the collective at each call.
#include "custom_call.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/base/immortal.h"
#include "engine/collectives.h"
#include "engine/layout/text_fields.h"
#include "engine/base/hash.h"
#include "engine/update/inline.h"
#include "engine/sums/world.h"
#include "xla/service/custom_call_status_internal.h"
#include "xla/service/custom_call_target_registry.h"

namespace matex {

namespace {

template <typename Visitor, typename AnyRequest>
void VisitRequest(Visitor& visit, AnyRequest& request) {
  VisitAll(visit, request.kind, request.reduction, request.root, request.weight_length, request.checked,
           request.entries, request.place);
}

// A decoded request with its layout, made once.
struct Prepared {
  Request request;
  std::unique_ptr<const Layout> layout;  // of a reduction of gradients
  Entry tensor{};                        // of a collective on one tensor; its name, for messages, is the place
};

std::shared_ptr<const Prepared> Prepare(const std::string& text) {
  auto prepared = std::make_shared<Prepared>();
  Request& request = prepared->request;
  FieldReader reader(text);
  VisitRequest(reader, request);
  if (request.kind == Kind::kGradients) {
    const World& world = TheWorld();
    prepared->layout = std::make_unique<Layout>(request.entries, world.chunk_bytes, world.fuse_bytes,
                                                world.compression, /*compiled=*/true, request.checked);
  } else if (!request.entries.empty()) {
    prepared->tensor = {request.place, request.entries[0].type, request.entries[0].shape};
  }
  return prepared;
}

// The prepared requests, by the hash of their text. A request is dropped when one of its variables is deleted.
struct Cache {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<const Prepared>> prepared;
};

Cache& TheCache() { return Immortal<Cache>(); }

std::shared_ptr<const Prepared> PreparedFor(const char* text, size_t length) {
  const uint64_t key = Hash(text, length, 0);
  Cache& cache = TheCache();
  std::lock_guard<std::mutex> lock(cache.mutex);
  std::shared_ptr<const Prepared>& prepared = cache.prepared[key];
  if (prepared == nullptr) prepared = Prepare(std::string(text, length));
  return prepared;
}

Error Run(const Prepared& prepared, const void* const* in, void* const* out) {
  const Request& request = prepared.request;
  const size_t count = request.entries.size();
  switch (request.kind) {
    case Kind::kGradients: {
      // After the gradients: this rank's weight, and perhaps the rows of the batch, which ranks compare.
      const double* const weight = static_cast<const double*>(in[count]);
      const Batch batch(request.weight_length > 1 ? static_cast<int64_t>(weight[1]) : 0);
      return ReduceInline(*prepared.layout, in, out, weight[0], batch, [&request] { return request.place; });
    }
    case Kind::kAllreduce:
      return Allreduce(prepared.tensor, request.reduction, in[0], out[0]);
    case Kind::kBroadcast:
      if (out[0] != in[0]) std::memcpy(out[0], in[0], prepared.tensor.bytes());
      return Broadcast(prepared.tensor, request.root, out[0]);
    default:
      return Barrier(request.place);
  }
}

// XLA passes the address of a single result, but an array of addresses for several results.
void Call(void* result, const void** operands, const char* text, size_t length, XlaCustomCallStatus* status) {
  const std::shared_ptr<const Prepared> prepared = PreparedFor(text, length);
  const size_t count = prepared->request.entries.size();
  void* const* const results = count == 0 ? &result : static_cast<void* const*>(result);
  if (Error error = Run(*prepared, operands, results)) {
    // TensorFlow's libraries do not export the function that sets the message.
    status->message = RankAndHost() + ": " + error.message;
    return;
  }
  // The token, by which XLA keeps the order of calls, is the last operand (after the weight) and the last result.
  const size_t token = count + (prepared->request.kind == Kind::kGradients ? 1 : 0);
  std::memcpy(results[count], operands[token], sizeof(int32_t));
}

const bool registered = [] {
  xla::CustomCallTargetRegistry::Global()->Register(kTarget, reinterpret_cast<void*>(&Call), "Host");
  return true;
}();

// Drops all prepared requests with a gradient of `variable`.
void Forget(int64_t variable) {
  Cache& cache = TheCache();
  std::lock_guard<std::mutex> lock(cache.mutex);
  for (auto found = cache.prepared.begin(); found != cache.prepared.end();) {
    const std::vector<Entry>& entries = found->second->request.entries;
    const bool has_variable = std::any_of(entries.begin(), entries.end(),
                                          [variable](const Entry& entry) { return entry.variable == variable; });
    found = has_variable ? cache.prepared.erase(found) : std::next(found);
  }
}

}  // namespace

std::string Encode(const Request& request) {
  FieldWriter writer;
  VisitRequest(writer, request);
  return writer.text;
}

}  // namespace matex

// Drops the prepared requests of a deleted variable, with their compression residuals.
extern "C" __attribute__((visibility("default"))) void matex_xla_forget(int64_t variable) { matex::Forget(variable); }
