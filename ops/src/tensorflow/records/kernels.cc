// Two ops on files of records. MatexListRecords: the tickets of all records of files; a ticket is three numbers: a file
// number, an offset and a length. MatexReadRecord: the record of a ticket. Before these ops run, Python finds the
// records of each file and adds the file with its index to RecordFiles, by the C functions at the end of this file.
//
// A ticket of length -1 marks the position from which a file cannot be read. Reading this ticket raises the error.
#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../kernel.h"
#include "engine/sums/world.h"
#include "files.h"
#include "scan.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/protobuf/error_codes.pb.h"

namespace matex {
namespace {

using namespace tensorflow;

constexpr int64_t kTicket = 3;  // how many numbers a ticket has
constexpr const char* kUnknownName =
    "this file is not indexed, because a function of the pipeline has created its name only now. Create file "
    "names before the function that reads the files";

// The problem as an error of the class that TensorFlow's own datasets raise, because scripts may catch this class.
TfStatus StatusOfProblem(const std::string& name, const Problem& problem) {
  using Code = decltype(TfStatus().code());
  return TfStatus(static_cast<Code>(problem.code), RankAndHost() + ": " + name + ": " + problem.text + ".");
}

class ListRecordsKernel : public OpKernel {
 public:
  explicit ListRecordsKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    std::string format;
    OP_REQUIRES_OK(construction, construction->GetAttr("format", &format));
    if (format == "text") format_ = RecordFormat::kText;
    if (format == "fixed") format_ = RecordFormat::kFixed;
  }

  void Compute(OpKernelContext* context) override {
    const auto names = context->input(0).flat<tstring>();
    std::vector<int64_t> found;  // tickets, one after another
    for (int64_t i = 0; i < names.size(); ++i) {
      const auto file = TheRecordFiles().Find(format_, std::string(names(i)));
      OP_REQUIRES(context, file != nullptr,
                  StatusOfProblem(std::string(names(i)), Problem{error::FAILED_PRECONDITION, kUnknownName}));
      Problem changed = FindChange(*file);
      OP_REQUIRES(context, changed.code == 0, StatusOfProblem(file->name, changed));
      if (format_ == RecordFormat::kFixed && file->problem.code == 0) {
        OP_REQUIRES_OK(context, ListFixed(context, *file, &found));
      } else {
        for (size_t n = 0; n < file->offsets.size(); ++n) Add(*file, file->offsets[n], file->lengths[n], &found);
      }
      if (file->problem.code != 0) Add(*file, file->problem_offset, -1, &found);
    }
    Tensor* tickets = nullptr;
    const int64_t count = static_cast<int64_t>(found.size()) / kTicket;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({count, kTicket}), &tickets));
    std::copy(found.begin(), found.end(), tickets->flat<tensorflow::int64>().data());
  }

 private:
  static void Add(const RecordFile& file, int64_t offset, int64_t length, std::vector<int64_t>* found) {
    found->insert(found->end(), {file.number, offset, length});
  }

  // The problem if the file has changed since it was indexed.
  static Problem FindChange(const RecordFile& file) {
    struct stat now;
    const bool is_there = stat(file.name.c_str(), &now) == 0;
    if (!is_there && file.state.size < 0) return Problem();  // there was no file to index, either
    if (!is_there) return MakeSystemProblem("found", errno);
    const FileState state = FileState::Of(now);
    return state == file.state ? Problem() : MakeChangedProblem(file.state, state);
  }

  // The tickets of records of fixed length, without an index. Input `bytes`: the lengths of header, record, footer.
  TfStatus ListFixed(OpKernelContext* context, const RecordFile& file, std::vector<int64_t>* found) const {
    const Tensor& lengths = context->input(1);
    if (lengths.NumElements() != 3)
      return errors::InvalidArgument("MatexListRecords: expected header, record and footer");
    const auto bytes = lengths.flat<tensorflow::int64>();
    const int64_t header = bytes(0), record = bytes(1), footer = bytes(2);
    if (record <= 0 || header < 0 || footer < 0) {
      return StatusOfProblem(
          file.name,
          Problem{error::INVALID_ARGUMENT,
                  "expected records of at least 1 byte between a header and a footer of at least 0; given " +
                      std::to_string(header) + ", " + std::to_string(record) + " and " + std::to_string(footer)});
    }
    const int64_t body = file.state.size - header - footer;
    if (body < 0 || body % record != 0) {
      return StatusOfProblem(
          file.name,
          Problem{error::INVALID_ARGUMENT, "expected a whole number of records of " + std::to_string(record) +
                                               " bytes, found " + std::to_string(body) + " bytes between a header of " +
                                               std::to_string(header) + " and a footer of " + std::to_string(footer) +
                                               ". The file is cut off, or it holds records of another length"});
    }
    for (int64_t at = header; at < header + body; at += record) Add(file, at, record, found);
    return TfStatus();
  }

  RecordFormat format_ = RecordFormat::kTfRecord;
};

// Reads the record of a ticket. In a TFRecord file, `offset` is the header's, and the checksum is checked.
Problem ReadRecord(const RecordFile& file, int64_t offset, int64_t length, tstring* record) {
  if (length < 0) return file.problem;
  Problem problem;
  const auto open = TheOpenFiles().Open(file, &problem);
  if (open == nullptr) return problem;
  const bool is_tfrecord = file.format == RecordFormat::kTfRecord;
  const int64_t count = length + (is_tfrecord ? kRecordFooter : 0);
  record->resize_uninitialized(count);
  open->ReadAhead(offset, count + (is_tfrecord ? kRecordHeader : 0));
  const int64_t got = open->Read(record->mdata(), count, offset + (is_tfrecord ? kRecordHeader : 0));
  if (got < 0) return MakeSystemProblem("read", errno);
  if (got < count) return MakeChangedProblem(file.state, open->State());
  if (is_tfrecord) {
    if (!HasChecksum(record->data(), length, record->data() + length)) {
      return {error::DATA_LOSS,
              "the record at byte " + std::to_string(offset) + " is broken: the checksum of its " +
                  std::to_string(length) +
                  " bytes of data does not fit. Write the file again, or copy it again from where it came"};
    }
    record->resize_uninitialized(length);
  } else if (file.format == RecordFormat::kText) {
    char* const begin = record->mdata();  // TensorFlow drops each '\r', wherever it stands
    record->resize_uninitialized(std::remove(begin, begin + length, '\r') - begin);
  }
  return Problem();
}

class ReadRecordKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& tickets = context->input(0);
    OP_REQUIRES(context, tickets.dims() > 0 && tickets.dim_size(tickets.dims() - 1) == kTicket,
                errors::InvalidArgument("MatexReadRecord: expected tickets of shape [..., 3], not ",
                                        tickets.shape().DebugString()));
    TensorShape shape = tickets.shape();
    shape.RemoveLastDims(1);
    Tensor* records = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &records));
    const tensorflow::int64* const ticket = tickets.flat<tensorflow::int64>().data();
    auto to = records->flat<tstring>();
    for (int64_t i = 0; i < to.size(); ++i) {
      const tensorflow::int64* const one = ticket + i * kTicket;
      const auto file = TheRecordFiles().Get(one[0]);
      OP_REQUIRES(context, file != nullptr,
                  errors::InvalidArgument(RankAndHost(), ": there is no file of the number ", one[0],
                                          " of a ticket. Tickets are read by the process that made them."));
      const Problem problem = ReadRecord(*file, one[1], one[2], &to(i));
      OP_REQUIRES(context, problem.code == 0, StatusOfProblem(file->name, problem));
    }
  }
};

REGISTER_OP("MatexListRecords")
    .Attr("format: {'tfrecord', 'text', 'fixed'}")
    .Input("files: string")
    .Input("bytes: int64")
    .Output("tickets: int64")
    .SetIsStateful()
    .SetShapeFn([](shape_inference::InferenceContext* context) -> TfStatus {
      context->set_output(0, context->Matrix(shape_inference::InferenceContext::kUnknownDim, kTicket));
      return TfStatus();
    });

REGISTER_KERNEL_BUILDER(Name("MatexListRecords").Device(DEVICE_CPU), ListRecordsKernel);

REGISTER_OP("MatexReadRecord")
    .Input("ticket: int64")
    .Output("record: string")
    .SetShapeFn([](shape_inference::InferenceContext* context) -> TfStatus {
      shape_inference::ShapeHandle shape;
      TfStatus status = context->Subshape(context->input(0), 0, -1, &shape);
      if (status.ok()) context->set_output(0, shape);
      return status;
    });

REGISTER_KERNEL_BUILDER(Name("MatexReadRecord").Device(DEVICE_CPU), ReadRecordKernel);

}  // namespace

#define MATEX_EXPORT extern "C" __attribute__((visibility("default")))

// Finds the records in bytes `first` up to `last` of a file (TFRecord: in the whole file), for `matex_records_take`.
MATEX_EXPORT FoundRecords* matex_records_find(const char* name, int format, int64_t size, int64_t mtime_ns,
                                              int64_t first, int64_t last) {
  FileState state;
  state.size = size;
  state.mtime_ns = mtime_ns;
  const bool is_text = format == static_cast<int>(RecordFormat::kText);
  return new FoundRecords(is_text ? FindLines(name, state, first, last) : FindTfRecords(name, state));
}

MATEX_EXPORT int64_t matex_records_count(const FoundRecords* found) {
  return static_cast<int64_t>(found->offsets.size());
}

// Copies the result of `matex_records_find` and frees the result. facts: FoundRecords::content, the problem's code and
// its offset. problem: the problem's text, cut to fit into `room` bytes.
MATEX_EXPORT void matex_records_take(FoundRecords* found, int64_t* offsets, int64_t* lengths, int64_t* facts,
                                     char* problem, int64_t room) {
  std::copy(found->offsets.begin(), found->offsets.end(), offsets);
  std::copy(found->lengths.begin(), found->lengths.end(), lengths);
  facts[0] = found->content;
  facts[1] = found->problem.code;
  facts[2] = found->problem_offset;
  problem[found->problem.text.copy(problem, room - 1)] = '\0';
  delete found;
}

// Adds a file and its index. See `RecordFile`.
MATEX_EXPORT void matex_records_put(int64_t number, const char* name, int format, int64_t size, int64_t mtime_ns,
                                    int64_t count, const int64_t* offsets, const int64_t* lengths, int code,
                                    const char* problem, int64_t problem_offset) {
  RecordFile file;
  file.number = number;
  file.name = name;
  file.format = static_cast<RecordFormat>(format);
  file.state.size = size;
  file.state.mtime_ns = mtime_ns;
  file.offsets.assign(offsets, offsets + count);
  file.lengths.assign(lengths, lengths + count);
  file.problem = {code, problem};
  file.problem_offset = problem_offset;
  TheRecordFiles().Put(std::move(file));
}

// `ReadBytes` (files.h).
MATEX_EXPORT int64_t matex_records_bytes() { return ReadBytes(); }

}  // namespace matex
