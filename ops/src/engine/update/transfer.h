// Runs one transfer, which is one sum over ranks. Its fragments are ranges of gradients (layout.h): they are scaled
// into one message, which is summed over ranks, and the sums are copied out. A transfer of one fragment is summed in
// place, without a copy. The inline and the overlapped reduction call RunTransfer, each with its own `add_up`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"
#include "engine/sums/shared_memory.h"

namespace matex {

// data = the sum over ranks of `data`, the elements of a transfer. If ranks own the elements, each rank gets only the
// sums of its own elements. If the transfer is compressed, `residual` receives what the compression has left out: this
// rank adds it to its next gradients.
using AddUp = std::function<Error(const Transfer& transfer, void* data, float* residual)>;

// outputs[i] = the sum over ranks of weight * inputs[i], for the fragments of a transfer of `layout`; outputs[i] may be
// inputs[i]. Elements that other ranks own are undefined. Transfers of several fragments use `buffer`, which grows as
// needed. If the transfer is compressed, the residuals of the layout are added before the sum, and replaced.
Error RunTransfer(const Layout& layout, const Transfer& transfer, const void* const* inputs, void* const* outputs,
                  double weight, std::vector<char>* buffer, const AddUp& add_up);

// The same for an uncompressed transfer, through shared memory and without a buffer. Returns an MPI error code.
int RunTransfer(const Transfer& transfer, const void* const* inputs, void* const* outputs, double weight,
                SharedMemory* memory);

// All-gather of a transfer of owned elements: `gather` gives the elements of all ranks, in `data`, to all ranks. Then
// `wholes`, the addresses of the variables, have them. Returns an MPI error code.
using Gather = std::function<int(const Transfer& transfer, void* data)>;
int GatherTransfer(const Transfer& transfer, void* const* wholes, std::vector<char>* buffer, const Gather& gather);

// All elements of one type in a layout with cuts, the borders of the pieces that ranks own: shares[r] has the elements
// that only rank r needs; the last share has the elements that all ranks need. A Scatter has the Shares of each type.
using Shares = std::vector<Transfer>;
struct Scatter {
  Scatter(const Layout& layout, int ranks);
  std::vector<Shares> by_type;
};

// Sums `shares` through shared memory, each element for the ranks that need it; other elements of the outputs are
// undefined. Returns an MPI error code.
int RunShares(const Shares& shares, const void* const* inputs, void* const* outputs, double weight,
              SharedMemory* memory);

}  // namespace matex
