// Writes and reads fields of the form LENGTH:BYTES, such as 4:loss, in which reports and requests are sent
// (text_fields.h).
#include "engine/layout/text_fields.h"

namespace matex {

void Put(std::string& text, const std::string& field) { text += std::to_string(field.size()) + ":" + field; }
void Put(std::string& text, int64_t value) { Put(text, std::to_string(value)); }

void Put(std::string& text, const std::vector<Entry>& entries) {
  Put(text, static_cast<int64_t>(entries.size()));
  for (const Entry& entry : entries) {
    Put(text, entry.name);
    Put(text, static_cast<int64_t>(entry.type));
    Put(text, static_cast<int64_t>(entry.shape.size()));
    for (int64_t dimension : entry.shape) Put(text, dimension);
    Put(text, entry.variable);
  }
}

std::string Fields::Text() {
  const size_t colon = text_.find(':', at_);
  const size_t length = std::stoull(text_.substr(at_, colon - at_));
  at_ = colon + 1 + length;
  return text_.substr(colon + 1, length);
}

int64_t Fields::Number() { return std::stoll(Text()); }

std::vector<Entry> Fields::Entries() {
  std::vector<Entry> entries(Number());
  for (Entry& entry : entries) {
    entry.name = Text();
    entry.type = static_cast<Type>(Number());
    entry.shape.resize(Number());
    for (int64_t& dimension : entry.shape) dimension = Number();
    entry.variable = Number();
  }
  return entries;
}

}  // namespace matex
