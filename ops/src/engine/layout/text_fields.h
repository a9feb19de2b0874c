// A text encoding of reports and requests, for channels that carry only bytes (MPI_Bcast, XLA's custom calls). Each
// field is its length, a colon and its bytes: abc and 42 are "3:abc2:42". One function of a struct visits its fields,
// so a FieldReader reads them in the order in which a FieldWriter has written them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/layout.h"

namespace matex {

template <typename Visitor, typename... Fields>
void VisitAll(Visitor& visit, Fields&... fields) {
  (visit(fields), ...);
}

template <typename Visitor, typename AnyEntry>  // const if it is written
void VisitEntry(Visitor& visit, AnyEntry& entry) {
  VisitAll(visit, entry.name, entry.type, entry.shape, entry.variable);
}

class FieldWriter {
 public:
  void operator()(const std::string& field) { text += std::to_string(field.size()) + ":" + field; }
  void operator()(const Entry& entry) { VisitEntry(*this, entry); }
  template <typename Number>  // or bool, or an enum
  void operator()(const Number& number) {
    (*this)(std::to_string(static_cast<int64_t>(number)));
  }
  template <typename Element>
  void operator()(const std::vector<Element>& elements) {
    (*this)(elements.size());
    for (const Element& element : elements) (*this)(element);
  }

  std::string text;
};

class FieldReader {
 public:
  explicit FieldReader(const std::string& text) : text_(text) {}
  void operator()(std::string& field) {
    const size_t colon = text_.find(':', at_);
    field = text_.substr(colon + 1, std::stoull(text_.substr(at_, colon - at_)));
    at_ = colon + 1 + field.size();
  }
  void operator()(Entry& entry) { VisitEntry(*this, entry); }
  template <typename Number>
  void operator()(Number& number) {
    std::string field;
    (*this)(field);
    number = static_cast<Number>(std::stoll(field));
  }
  template <typename Element>
  void operator()(std::vector<Element>& elements) {
    size_t size = 0;
    (*this)(size);
    elements.resize(size);
    for (Element& element : elements) (*this)(element);
  }

 private:
  const std::string& text_;
  size_t at_ = 0;  // the position of the next field
};

}  // namespace matex
