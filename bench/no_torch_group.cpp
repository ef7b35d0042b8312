// SPDX-License-Identifier: BSD-3-Clause
//
// Stands in for torch_group.cpp where there is no PyTorch, or one without gloo.
#include <stdexcept>

#include "torch_group.h"

namespace cohort::bench {

namespace {
[[noreturn]] void missing() {
  throw std::logic_error("built without PyTorch's gloo");
}
}  // namespace

struct TorchGroup::Impl {};

bool TorchGroup::is_available() {
  return false;
}
TorchGroup::TorchGroup(const std::string&, std::uint16_t) {
  missing();
}
TorchGroup::~TorchGroup() = default;
void TorchGroup::make(int, int) {
  missing();
}

}  // namespace cohort::bench
