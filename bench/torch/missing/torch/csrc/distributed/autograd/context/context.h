// SPDX-License-Identifier: BSD-3-Clause
//
// Debian's libtorch-dev 1.13 leaves this header out, though c10d/reducer.hpp includes it. The reducer holds a pointer
// to the class and does nothing with it unless distributed autograd is used; the names are all that is needed.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace torch::distributed::autograd {

class DistAutogradContext {
 public:
  using GradCallback = std::function<bool(at::Tensor&)>;
};
using ContextPtr = std::shared_ptr<DistAutogradContext>;

}  // namespace torch::distributed::autograd
