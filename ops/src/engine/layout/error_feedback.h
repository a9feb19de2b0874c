// What compression has left out of the gradients of a variable on this rank, to be added to the next one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace matex {

// As many numbers as the gradient has once it is used, none before. Whoever has the world's mutex, or the thread of the
// overlapped way, uses it: a variable's updates go one of the two ways.
using Residual = std::shared_ptr<std::vector<float>>;

// That of variable `number`, whichever layouts it is in; it goes with the last of them. A gradient with another number
// of elements has another one.
Residual ResidualOf(int64_t number, int64_t count);

// How many there are.
int64_t Residuals();

}  // namespace matex
