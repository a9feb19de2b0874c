// Replaces XLA's header of this name; see client.h.
#pragma once

#include "xla/client/client.h"

namespace xla {
class LocalClient : public Client {};
}  // namespace xla
