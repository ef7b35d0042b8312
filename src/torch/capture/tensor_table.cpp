// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/tensor_table.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <iterator>

namespace cohort::recording {

namespace {

const c10::StorageImpl* storage_address(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

/// The bytes from the first element to the end of the last one.
std::size_t extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return static_cast<std::size_t>(last + 1) * tensor.element_size();
}

std::size_t offset_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
}

}  // namespace

std::size_t TensorTable::KeyHash::operator()(const Key& key) const noexcept {
  auto hash = c10::get_hash(key.storage, key.offset, static_cast<int>(key.dtype), key.is_wrapped_number);
  for (const auto each : key.sizes) hash = c10::hash_combine(hash, static_cast<std::size_t>(each));
  for (const auto each : key.strides) hash = c10::hash_combine(hash, static_cast<std::size_t>(each));
  return hash;
}

TensorTable::Key TensorTable::key_of(const at::Tensor& tensor) {
  return {.storage = storage_address(tensor),
          .offset = tensor.storage_offset(),
          .sizes = c10::DimVector(tensor.sizes()),
          .strides = c10::DimVector(tensor.strides()),
          .dtype = tensor.scalar_type(),
          .is_wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number(),
          .is_conjugate = tensor.is_conj() || tensor.is_neg()};
}

std::size_t TensorTable::number_for_permanent(const at::Tensor& tensor) {
  const auto fresh = storages_.size();
  const auto* const begin = static_cast<const std::byte*>(tensor.storage().data());
  if (begin == nullptr || tensor.storage().nbytes() == 0) return fresh;
  const auto* const end = begin + tensor.storage().nbytes();
  auto first = permanent_.upper_bound(begin);
  if (first != permanent_.begin() && std::prev(first)->second.end > begin) --first;
  if (first == permanent_.end() || first->first >= end) {
    permanent_.emplace(begin, Range{.end = end, .number = fresh});
    return fresh;
  }
  // One range for all that it overlaps with.
  const auto number = first->second.number;
  const auto* const joined_begin = std::min(begin, first->first);
  const auto* joined_end = end;
  while (first != permanent_.end() && first->first < end) {
    joined_end = std::max(joined_end, first->second.end);
    if (first->second.number != number) joined_with_.emplace(first->second.number, number);
    first = permanent_.erase(first);
  }
  permanent_.emplace(joined_begin, Range{.end = joined_end, .number = number});
  return number;
}

std::size_t TensorTable::current_number(std::size_t number) const {
  for (auto joined = joined_with_.find(number); joined != joined_with_.end(); joined = joined_with_.find(number)) {
    number = joined->second;
  }
  return number;
}

TensorTable::Storage& TensorTable::known_storage(const at::Tensor& tensor, Lifetime lifetime) {
  const auto* const address = storage_address(tensor);
  const auto found = storages_.find(address);
  if (found != storages_.end()) return found->second;
  const auto number = lifetime == Lifetime::permanent ? number_for_permanent(tensor) : storages_.size();
  const c10::Storage& storage = tensor.storage();
  return storages_.emplace(address, Storage{.address = storage.getWeakStorageImpl(), .number = number}).first->second;
}

std::size_t TensorTable::storage_of(const at::Tensor& tensor) const {
  return current_number(storages_.at(storage_address(tensor)).number);
}

std::optional<ValueId> TensorTable::find(const at::Tensor& tensor) const {
  const auto found = values_.find(key_of(tensor));
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void TensorTable::add(const at::Tensor& tensor, ValueId value, Lifetime lifetime) {
  auto& storage = known_storage(tensor, lifetime);
  values_.insert_or_assign(key_of(tensor), value);
  storage.values.push_back({.value = value, .offset = offset_of(tensor), .extent = extent_of(tensor)});
}

void TensorTable::mark_uninitialized(const at::Tensor& tensor) {
  known_storage(tensor, Lifetime::step).is_uninitialized = true;
}

void TensorTable::mark_written(const at::Tensor& tensor) {
  const auto found = storages_.find(storage_address(tensor));
  if (found != storages_.end()) found->second.is_uninitialized = false;
}

void TensorTable::mark_written(const std::byte* memory) {
  for (auto& [address, storage] : storages_) {
    if (!storage.is_uninitialized) continue;
    const auto held = storage.address.lock();
    if (held == nullptr) continue;
    const auto* const data = static_cast<const std::byte*>(held->data());
    if (data <= memory && memory < data + held->nbytes()) storage.is_uninitialized = false;
  }
}

bool TensorTable::is_uninitialized(const at::Tensor& tensor) const {
  const auto found = storages_.find(storage_address(tensor));
  return found != storages_.end() && found->second.is_uninitialized;
}

std::optional<TensorTable::Place> TensorTable::find_in(const Storage& storage, const std::byte* begin,
                                                       std::size_t bytes) {
  const auto held = storage.address.lock();
  if (held == nullptr) return std::nullopt;
  const auto* const data = static_cast<const std::byte*>(held->data());
  if (data == nullptr || begin < data || begin + bytes > data + held->nbytes()) return std::nullopt;
  const auto offset = static_cast<std::size_t>(begin - data);
  for (const auto& each : storage.values) {
    if (each.offset <= offset && offset + bytes <= each.offset + each.extent) {
      return Place{.value = each.value, .offset = offset - each.offset};
    }
  }
  return std::nullopt;
}

std::optional<TensorTable::Place> TensorTable::find_memory(const at::Tensor& tensor) const {
  const auto found = storages_.find(storage_address(tensor));
  if (found == storages_.end()) return std::nullopt;
  return find_in(found->second, static_cast<const std::byte*>(tensor.data_ptr()), extent_of(tensor));
}

std::optional<TensorTable::Place> TensorTable::find_memory(const std::byte* begin, std::size_t bytes) const {
  for (const auto& [address, storage] : storages_) {
    if (const auto found = find_in(storage, begin, bytes)) return found;
  }
  return std::nullopt;
}

}  // namespace cohort::recording
