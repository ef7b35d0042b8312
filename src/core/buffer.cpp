// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/buffer.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace cohort {

void Dims::copy_more(const std::int64_t* values) {
  more_ = std::make_unique_for_overwrite<std::int64_t[]>(size_);  // NOLINT(*-avoid-c-arrays)
  std::copy_n(values, size_, more_.get());
}

std::string to_string(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", "));
}

namespace {

std::int64_t checked_count(const Dims& sizes, std::size_t element_size) {
  std::int64_t count = 1;
  for (const auto size : sizes) {
    if (size < 0) throw ValueError(fmt::format("buffer of sizes {}: a size is negative", to_string(sizes)));
    if (__builtin_mul_overflow(count, size, &count)) {
      throw ValueError(fmt::format("buffer of sizes {}: too many elements", to_string(sizes)));
    }
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(count, static_cast<std::int64_t>(element_size), &bytes)) {
    throw ValueError(fmt::format("buffer of sizes {}: too many bytes", to_string(sizes)));
  }
  return count;
}

/// Whether the strides are those of contiguous memory; dimensions of size 1 may have any stride.
bool are_contiguous(const Dims& sizes, const Dims& strides) {
  std::int64_t expected = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

}  // namespace

ConstBuffer::ConstBuffer(const void* data, DType dtype, Dims sizes, Dims strides, Device device,
                         std::shared_ptr<const void> keep_alive)
    : data_(data),
      dtype_(dtype),
      device_(device),
      count_(checked_count(sizes, size_of(dtype))),
      sizes_(std::move(sizes)),
      keep_alive_(std::move(keep_alive)) {
  if (count_ > 0 && data == nullptr) refuse_null();
  if (strides.empty()) return;
  if (strides.size() != sizes_.size()) {
    throw ValueError(fmt::format("buffer of sizes {}: {} strides for {} dimensions", to_string(sizes_), strides.size(),
                                 sizes_.size()));
  }
  if (count_ > 0 && !are_contiguous(sizes_, strides)) strides_ = std::move(strides);
}

void ConstBuffer::refuse_null() const {
  throw ValueError(fmt::format("buffer of sizes {}: the address is null", to_string(sizes_)));
}

bool ConstBuffer::is_dense() const {
  if (is_contiguous()) return true;
  std::vector<std::pair<std::int64_t, std::int64_t>> by_stride;  // stride and size
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i] != 1) by_stride.emplace_back(strides_[i], sizes_[i]);
  }
  std::ranges::sort(by_stride);
  std::int64_t expected = 1;
  for (const auto& [stride, size] : by_stride) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

namespace detail {

namespace {

// Values of DLPack's enums, which are its ABI.
constexpr int kDLCPU = 1;
constexpr int kDLCUDA = 2;
constexpr int kDLCUDAHost = 3;
constexpr int kDLCUDAManaged = 13;

constexpr int kDLInt = 0;
constexpr int kDLUInt = 1;
constexpr int kDLFloat = 2;
constexpr int kDLBfloat = 4;
constexpr int kDLComplex = 5;
constexpr int kDLBool = 6;

DType dlpack_dtype(int code, int bits) {
  switch (code) {
    case kDLInt:
      if (bits == 8) return DType::i8;
      if (bits == 16) return DType::i16;
      if (bits == 32) return DType::i32;
      if (bits == 64) return DType::i64;
      break;
    case kDLUInt:
      if (bits == 8) return DType::u8;
      if (bits == 16) return DType::u16;
      if (bits == 32) return DType::u32;
      if (bits == 64) return DType::u64;
      break;
    case kDLFloat:
      if (bits == 16) return DType::f16;
      if (bits == 32) return DType::f32;
      if (bits == 64) return DType::f64;
      break;
    case kDLBfloat:
      if (bits == 16) return DType::bf16;
      break;
    case kDLComplex:
      if (bits == 64) return DType::complex64;
      if (bits == 128) return DType::complex128;
      break;
    case kDLBool:
      if (bits == 8) return DType::boolean;
      break;
    default:
      break;
  }
  throw TypeError(fmt::format("DLPack type code {} with {} bits has no dtype here", code, bits));
}

Device dlpack_device(int device_type, int device_id) {
  switch (device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      return DeviceType::cpu;
    case kDLCUDA:
    case kDLCUDAManaged:
      return {DeviceType::cuda, device_id};
    default:
      throw TypeError(fmt::format("DLPack device type {} is not supported: CPU and CUDA are", device_type));
  }
}

}  // namespace

DLPackView read_dlpack(void* data, int device_type, int device_id, int code, int bits, int lanes,
                       std::uint64_t byte_offset) {
  if (lanes != 1) throw TypeError(fmt::format("DLPack tensor with {} lanes: only scalars are supported", lanes));
  auto* const start = data == nullptr ? nullptr : static_cast<std::byte*>(data) + byte_offset;
  return {start, dlpack_dtype(code, bits), dlpack_device(device_type, device_id)};
}

void check_dlpack_version(std::uint32_t major) {
  if (major != 1) throw TypeError(fmt::format("DLPack major version {}: this library reads version 1", major));
}

}  // namespace detail

}  // namespace cohort
