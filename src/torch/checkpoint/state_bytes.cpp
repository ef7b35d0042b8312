// SPDX-License-Identifier: BSD-3-Clause
#include "torch/checkpoint/state_bytes.h"

#include <ATen/ATen.h>
#include <cohort/torch/checkpoint_error.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "torch/compat/features.h"
#include "torch/state/checkpoint_names.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as memory is");

struct DtypeName {
  at::ScalarType type;
  std::string_view name;
};
constexpr std::array dtype_names {
  DtypeName{at::kDouble, "F64"}, DtypeName{at::kFloat, "F32"}, DtypeName{at::kHalf, "F16"},
      DtypeName{at::kBFloat16, "BF16"}, DtypeName{at::kLong, "I64"}, DtypeName{at::kInt, "I32"},
      DtypeName{at::kShort, "I16"}, DtypeName{at::kChar, "I8"}, DtypeName{at::kByte, "U8"},
      DtypeName{at::kBool, "BOOL"}, DtypeName{at::kComplexFloat, "C64"},
#if COHORT_TORCH_HAS_NARROW_FLOATS_AND_WIDE_UNSIGNED
      DtypeName{at::kUInt16, "U16"}, DtypeName{at::kUInt32, "U32"}, DtypeName{at::kUInt64, "U64"},
      DtypeName{at::kFloat8_e4m3fn, "F8_E4M3"}, DtypeName{at::kFloat8_e5m2, "F8_E5M2"},
#endif
};

TensorInfo info_of(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) {
    throw CheckpointError(fmt::format(
        "the tensor {} is not strided (it is sparse, for example), which the format does not have: save the tensors "
        "that it consists of",
        printable(name)));
  }
  const auto type = tensor.is_complex() ? c10::toRealValueType(tensor.scalar_type()) : tensor.scalar_type();
  const auto* const known =
      std::find_if(dtype_names.begin(), dtype_names.end(), [&](const DtypeName& each) { return each.type == type; });
  if (known == dtype_names.end()) {
    throw CheckpointError(fmt::format("the tensor {} is of type {}, which the format does not have", printable(name),
                                      c10::toString(type)));
  }
  TensorInfo info{.name = name, .dtype = std::string(known->name)};
  for (const auto size : tensor.sizes()) info.shape.push_back(static_cast<std::uint64_t>(size));
  if (tensor.is_complex()) info.shape.push_back(2);
  return info;
}

/// The values row by row, on the host.
at::Tensor row_major(const at::Tensor& tensor) {
  auto plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  return plain.is_complex() ? at::view_as_real(plain) : plain;
}

at::ScalarType type_in_file(const std::string& tensor, const std::string& dtype) {
  const auto* const known =
      std::find_if(dtype_names.begin(), dtype_names.end(), [&](const DtypeName& each) { return each.name == dtype; });
  if (known == dtype_names.end()) {
    throw CheckpointError(fmt::format("the tensor {} is of dtype {}, which this version of libtorch does not have",
                                      printable(tensor), dtype));
  }
  return known->type;
}

/// A byte that is neither 0 nor 1 is no bool to the compiler, so bools are read as bytes.
at::ScalarType type_to_read(at::ScalarType type) {
  return type == at::kBool ? at::kByte : type;
}

at::Tensor tensor_in(const CheckpointContent& content, const TensorInfo& info) {
  const auto type_there = type_in_file(info.name, info.dtype);
  std::vector<std::int64_t> sizes;
  for (const auto size : info.shape) sizes.push_back(static_cast<std::int64_t>(size));
  const auto type = type_to_read(type_there);
  const auto data = content.data(info);
  const auto options = at::TensorOptions(type);
  at::Tensor tensor;
  if (reinterpret_cast<std::uintptr_t>(data.data()) % c10::elementSize(type) == 0) {
    // Read only: what is loaded is copied from it.
    auto* const start = const_cast<char*>(data.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    tensor = at::from_blob(
        start, sizes, [keep = content.bytes()](void*) {}, options);
  } else {
    tensor = at::empty(sizes, options);
    if (!data.empty()) std::memcpy(tensor.data_ptr(), data.data(), data.size());
  }
  return type_there == at::kBool ? tensor.ne(0) : tensor;
}

}  // namespace

at::ScalarType scalar_type_of(const SavedParts& saved) {
  const auto type = type_in_file(saved.parts.front().info.name, saved.dtype);
  return saved.is_complex ? c10::toComplexType(type) : type;
}

at::Tensor read_box(const CheckpointPieces& pieces, const TensorInfo& part, const SavedParts& saved, const Box& box) {
  auto sizes = box.sizes;
  if (saved.is_complex) sizes.push_back(2);
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t stride = 1;
  for (auto dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    if (dim < box.offsets.size()) first += box.offsets[dim] * stride;
    last += (sizes[dim] - 1) * stride;
    stride *= static_cast<std::int64_t>(part.shape[dim]);
  }
  const auto type_there = type_in_file(part.name, saved.dtype);
  const auto span = at::empty({last + 1}, at::TensorOptions(type_to_read(type_there)));
  pieces.read(part, static_cast<std::uint64_t>(first) * span.element_size(), static_cast<char*>(span.data_ptr()),
              span.nbytes());
  const auto values = span.as_strided(sizes, strides);
  if (saved.is_complex) return at::view_as_complex(values.contiguous());
  return type_there == at::kBool ? values.ne(0) : values;
}

void write_state(const StateDict& state, const std::string& seal, std::size_t seal_bytes,
                 const std::function<void(const void*, std::size_t)>& sink) {
  SafetensorsHeader header{.metadata = state.values()};
  for (const auto& [name, tensor] : state.tensors()) {
    header.tensors.push_back(info_of(name, tensor));
    if (tensor.is_complex()) header.metadata.emplace(std::string(complex_key) + name, "true");
  }
  if (seal_bytes > 0) header.tensors.push_back({.name = seal, .dtype = "U8", .shape = {seal_bytes}});
  const auto start = encode_safetensors_header(header, seal);
  sink(start.data(), start.size());
  for (const auto& info : header.tensors) {
    const auto it = state.tensors().find(info.name);
    if (it == state.tensors().end()) continue;  // the seal
    const auto tensor = row_major(it->second);
    if (tensor.nbytes() > 0) sink(tensor.data_ptr(), tensor.nbytes());
  }
}

StateDict read_state(const CheckpointContent& content) {
  StateDict state;
  const auto& metadata = content.header().metadata;
  for (const auto& info : content.header().tensors) {
    auto tensor = tensor_in(content, info);
    if (metadata.contains(std::string(complex_key) + info.name)) {
      if (tensor.dim() == 0 || tensor.size(-1) != 2 || !tensor.is_floating_point()) {
        throw CheckpointError(fmt::format("the tensor {} is not made of pairs", printable(info.name)));
      }
      tensor = at::view_as_complex(tensor.clone());  // pairs may be aligned to their halves alone
    }
    state.set(info.name, std::move(tensor));
  }
  for (const auto& [key, text] : metadata) state.set_text(key, text);
  return state;
}

std::string state_to_bytes(const StateDict& state) {
  std::string bytes;
  write_state(state, {}, 0,
              [&](const void* data, std::size_t count) { bytes.append(static_cast<const char*>(data), count); });
  return bytes;
}

StateDict state_from_bytes(std::string bytes, const std::string& sender) {
  return read_state(CheckpointContent(std::move(bytes), sender, nullptr));
}

}  // namespace cohort
