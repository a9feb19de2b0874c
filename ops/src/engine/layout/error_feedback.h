// The residuals of compression (compression.h): for each variable, what this rank has not sent yet of its gradients. A
// layout holds the residuals of its variables. The residual is added to the next gradient of the variable.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace matex {

// One number for each element of the gradient; empty until the first use. It has no lock of its own, because an update
// runs either in the calling thread, which holds the world's mutex, or in the communication thread, never in both.
using Residual = std::shared_ptr<std::vector<float>>;

// The residual of variable `number`, shared by all layouts that contain it and freed with the last of them. A
// gradient with another number of elements has its own residual.
Residual ResidualOf(int64_t number, int64_t count);

// The number of residuals.
int64_t CountResiduals();

}  // namespace matex
