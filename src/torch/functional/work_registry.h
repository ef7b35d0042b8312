// SPDX-License-Identifier: BSD-3-Clause
//
// The collectives in flight whose results somebody holds as plain tensors, found by the tensor's storage: any view of a
// result finds its Work.
//
//   WorkRegistry::instance().add(output, work);
//   WorkRegistry::instance().wait(output.view(-1));   // for everything in flight on this storage
//
// Process-wide and thread-safe: a storage belongs to one rank, also if ranks are threads, and the thread that waits (one
// of autograd's, for example) need not be the one that issued.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <cohort/work.h>

#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace cohort::functional {

class WorkRegistry {
 public:
  static WorkRegistry& instance();

  /// Several works on one storage accumulate.
  void add(const at::Tensor& tensor, const Work& work);
  /// Removes the works of the tensor's storage and waits for all of them; for device memory, makes the current stream
  /// wait. Then throws the first error, if any. Returns at once if there are none.
  void wait(const at::Tensor& tensor);
  /// Removes the works of the tensor's storage without waiting, for results that nobody can use any more. What fails
  /// later is logged (work.h).
  void forget(const at::Tensor& tensor);
  bool contains(const at::Tensor& tensor) const;
  /// The number of works that nobody has waited for.
  std::size_t size() const;

 private:
  struct Entry {
    c10::Storage storage;  // keeps the address from being given to another storage
    std::vector<Work> works;
  };
  Entry take(const at::Tensor& tensor);

  mutable std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
};

}  // namespace cohort::functional
