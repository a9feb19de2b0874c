// Copies of more bytes than the caches hold. A usual store first reads the line of memory that it changes. A streaming
// store writes past the caches without reading, so such a copy moves two thirds of the bytes. It pays off only where
// the caches would have lost the bytes before they are read again.
#pragma once

#include <cstdint>

namespace matex {

// Whether copies of so many bytes in a row should stream.
bool ShouldStream(int64_t bytes);

// to = from; the two do not overlap. Other threads and processes see the bytes after the next release, as usual.
void StreamCopy(const char* from, char* to, int64_t bytes);

}  // namespace matex
