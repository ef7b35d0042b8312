// SPDX-License-Identifier: BSD-3-Clause
//
// The collectives in flight whose results somebody holds as plain tensors, found by the tensor's storage: any view of a
// result finds its Work.
//
//   WorkRegistry::instance().add(output, work);
//   WorkRegistry::instance().wait(output.view(-1));   // for everything in flight on this storage
//
// Operations of process groups that were issued within an InflightCollectivesScope are found by the addresses that they
// write, since groups know memory and no tensors. They leave the registry when they have ended with success, because
// their callers hold the Work and wait for it themselves.
//
// Process-wide and thread-safe: a storage belongs to one rank, also if ranks are threads, and the thread that waits
// (one of autograd's, for example) need not be the one that issued.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <cohort/buffer.h>
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
  /// An operation of a process group that writes this memory, of which its Work keeps the owner alive.
  void add(const Buffer& output, const Work& work);
  /// Removes the works of the tensor's storage and waits for all of them; for device memory, makes the current stream
  /// wait. Then throws the first error, if any. Returns at once if there are none.
  void wait(const at::Tensor& tensor);
  /// Removes the works of the tensor's storage without waiting, for results that nobody can use any more. What fails
  /// later is logged (work.h).
  void forget(const at::Tensor& tensor);
  std::vector<Work> works_of(const at::Tensor& tensor) const;
  bool contains(const at::Tensor& tensor) const { return !works_of(tensor).empty(); }
  /// The number of works that nobody has waited for; of the operations of process groups, those still in flight.
  std::size_t size();

 private:
  struct Entry {
    c10::Storage storage;  // keeps the address from being given to another storage
    std::vector<Work> works;
  };
  struct Issued {
    const std::byte* begin;
    const std::byte* end;
    Work work;
  };
  /// The works of the tensor's storage, which are removed.
  Entry take(const at::Tensor& tensor);
  void remove_ended();

  mutable std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
  std::vector<Issued> issued_;
};

}  // namespace cohort::functional
