// SPDX-License-Identifier: BSD-3-Clause
//
// The safetensors format: named arrays in a file that is a header and bytes, which nothing in it can make a reader
// execute.
//
//   u64 length of the header, little-endian | header: a JSON object | the tensors' bytes
//
// The header has for each tensor {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, with offsets from the
// first byte after the header, and under "__metadata__" strings by name. Tensors are little-endian and row-major, and
// their bytes cover everything after the header, without a gap and without an overlap.
//
// This file knows the format alone: neither libtorch nor files. A violation is a CheckpointError without the name of
// the file, which the caller puts in front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

struct TensorInfo {
  std::string name{};
  std::string dtype{};
  std::vector<std::uint64_t> shape{};
  std::uint64_t begin = 0;  ///< in the bytes after the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors{};  ///< in the order of their bytes
  std::map<std::string, std::string> metadata{};
};

/// Other readers refuse longer headers, so this one does not write them.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;
/// The bytes of the length in front of the header.
inline constexpr std::size_t safetensors_length_bytes = 8;

/// The number of bytes of such a tensor. A CheckpointError for an unknown dtype, for more than 64 dimensions, and for a
/// shape of more elements than can be counted, which a dimension of 0 does not excuse: readers multiply sizes in any
/// order.
std::uint64_t tensor_bytes(const TensorInfo& tensor);

/// The length of the header, from the first bytes of a file of `file_bytes` bytes; not above the limit, and within the
/// file.
std::uint64_t safetensors_header_bytes(std::string_view start, std::uint64_t file_bytes);

/// Parses a header and checks it against the number of bytes that follow it. It allocates in proportion to the
/// header's own length, whatever sizes the header claims.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes);

/// Puts the tensors in an order in which each is aligned to its elements, since PyTorch's reader needs that, sets their
/// offsets, and returns length and header. `last` is the name of a tensor of bytes that comes after all others.
std::string encode_safetensors_header(SafetensorsHeader& header, std::string_view last);

}  // namespace cohort
