// SPDX-License-Identifier: BSD-3-Clause
//
// Which value of the graph a tensor is. Tensors are told apart by the memory they show (storage, offset, sizes,
// strides, dtype) and not by their objects: what autograd saved for backward comes back as a new object, without an
// operator.
//
// A storage that is freed while a step is recorded leaves an address that another one may get. Each storage is
// therefore held weakly, which keeps the address but not the memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/DimVector.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace cohort::recording {

using ValueId = std::size_t;

/// Whether the table can know the tensor.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage();
}

class TensorTable {
 public:
  enum class Lifetime : std::uint8_t {
    step,       ///< made in the step
    permanent,  ///< made before it, and held by the recording
  };

  std::optional<ValueId> find(const at::Tensor& tensor) const;
  void add(const at::Tensor& tensor, ValueId value, Lifetime lifetime);

  /// Memory that no operator has written yet.
  void mark_uninitialized(const at::Tensor& tensor);
  void mark_written(const at::Tensor& tensor);
  void mark_written(const std::byte* memory);
  bool is_uninitialized(const at::Tensor& tensor) const;

  /// A number for the storage. Permanent storages that are the same memory have the same number: a bucket of DDP may be
  /// one storage to libtorch, and another one to us, who saw its memory in a collective.
  std::size_t storage_of(const at::Tensor& tensor) const;
  /// The number that a storage has now, by the one that it had when fewer storages were known: one may turn out to
  /// contain several.
  std::size_t current_number(std::size_t number) const;

  /// A value that contains this memory, and how many bytes behind its first element the memory begins.
  struct Place {
    ValueId value;
    std::size_t offset;
  };
  std::optional<Place> find_memory(const std::byte* begin, std::size_t bytes) const;
  /// Likewise, for the memory that a tensor shows of a storage that is known.
  std::optional<Place> find_memory(const at::Tensor& tensor) const;

 private:
  struct Key {
    const c10::StorageImpl* storage;
    std::int64_t offset;
    c10::DimVector sizes;
    c10::DimVector strides;
    at::ScalarType dtype;
    bool is_wrapped_number;  // which counts less in type promotion
    bool is_conjugate;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Shown {
    ValueId value;
    std::size_t offset;  // in bytes
    std::size_t extent;  // in bytes, from there
  };
  struct Storage {
    c10::weak_intrusive_ptr<c10::StorageImpl> address;
    std::size_t number;
    bool is_uninitialized = false;
    std::vector<Shown> values{};
  };
  struct Range {
    const std::byte* end;
    std::size_t number;
  };

  static Key key_of(const at::Tensor& tensor);
  Storage& known_storage(const at::Tensor& tensor, Lifetime lifetime);
  std::size_t number_for_permanent(const at::Tensor& tensor);
  static std::optional<Place> find_in(const Storage& storage, const std::byte* begin, std::size_t bytes);

  std::unordered_map<Key, ValueId, KeyHash> values_;
  std::unordered_map<const c10::StorageImpl*, Storage> storages_;
  std::map<const std::byte*, Range> permanent_;               // by their first byte; they do not overlap
  std::unordered_map<std::size_t, std::size_t> joined_with_;  // numbers of storages that turned out to overlap
};

}  // namespace cohort::recording
