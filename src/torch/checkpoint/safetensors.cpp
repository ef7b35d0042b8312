// SPDX-License-Identifier: BSD-3-Clause
#include "torch/checkpoint/safetensors.h"

#include <cohort/torch/checkpoint_error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "torch/state/value_text.h"

namespace cohort {

namespace {

constexpr std::string_view metadata_key = "__metadata__";
constexpr std::size_t header_alignment = 8;
/// The most that libtorch's operators take. What is done with a tensor takes the square of this.
constexpr std::size_t most_dimensions = 64;

constexpr std::array<std::pair<std::string_view, unsigned>, 20> dtype_bits{{
    {"F64", 64},    {"I64", 64},    {"U64", 64},    {"C64", 64},    {"F32", 32},    {"I32", 32}, {"U32", 32},
    {"F16", 16},    {"BF16", 16},   {"I16", 16},    {"U16", 16},    {"BOOL", 8},    {"U8", 8},   {"I8", 8},
    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
}};

unsigned bits_of(const TensorInfo& tensor) {
  const auto* const it =
      std::find_if(dtype_bits.begin(), dtype_bits.end(), [&](const auto& each) { return each.first == tensor.dtype; });
  if (it == dtype_bits.end()) {
    throw CheckpointError(fmt::format("is not valid: tensor {} is of dtype {}, which is unknown",
                                      printable(tensor.name), printable(tensor.dtype)));
  }
  return it->second;
}

/// Takes the header apart while it is read and keeps what fits the format alone: anything else, nesting included, ends
/// the parse at once.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::string problem;

  bool start_object(std::size_t /*elements*/) override {
    switch (place_) {
      case Place::outside:
        place_ = Place::top;
        return true;
      case Place::entry:
        place_ = name_ == metadata_key ? Place::metadata : Place::tensor;
        tensor_ = {.name = name_};
        seen_ = {};
        return true;
      default:
        return refuse("an object where none belongs");
    }
  }
  bool end_object() override {
    if (place_ == Place::tensor) {
      if (!seen_[0] || !seen_[1] || !seen_[2]) return refuse("no dtype, shape or data_offsets");
      header.tensors.push_back(std::move(tensor_));
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }
  bool key(string_t& name) override {
    if (place_ == Place::top) {
      name_ = std::move(name);
      if (!names_.insert(name_).second) return refuse("the name is there twice");
      place_ = Place::entry;
      return true;
    }
    if (place_ == Place::metadata) {
      metadata_name_ = std::move(name);
      return true;
    }
    static constexpr std::array<std::string_view, 3> keys{"dtype", "shape", "data_offsets"};
    static constexpr std::array<Place, 3> places{Place::dtype, Place::shape, Place::offsets};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (name != keys.at(i)) continue;
      if (std::exchange(seen_.at(i), true)) return refuse(fmt::format("{} is there twice", name));
      place_ = places.at(i);
      return true;
    }
    return refuse("a key that is none of dtype, shape and data_offsets");
  }
  bool string(string_t& text) override {
    if (place_ == Place::metadata) {
      if (header.metadata.emplace(metadata_name_, std::move(text)).second) return true;
      return refuse(fmt::format("{} is there twice", printable(metadata_name_)));
    }
    if (place_ != Place::dtype) return refuse("a string where none belongs");
    tensor_.dtype = std::move(text);
    place_ = Place::tensor;
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    if ((place_ != Place::shape && place_ != Place::offsets) || std::exchange(in_array_, true)) {
      return refuse("a list where none belongs");
    }
    offsets_ = 0;
    return true;
  }
  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) return refuse("data_offsets are not two numbers");
    in_array_ = false;
    place_ = Place::tensor;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return refuse("a number where none belongs");
    if (place_ == Place::shape) {
      tensor_.shape.push_back(value);
      return true;
    }
    if (offsets_ == 2) return refuse("data_offsets are not two numbers");
    (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    return true;
  }
  bool number_integer(number_integer_t /*value*/) override { return refuse("a negative number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return refuse("a number that is not an integer of 64 bits");
  }
  bool null() override { return refuse("null"); }
  bool boolean(bool /*value*/) override { return refuse("a truth value"); }
  bool binary(binary_t& /*value*/) override { return refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    problem = fmt::format("is not valid: its header is not JSON from byte {} on", position + safetensors_length_bytes);
    return false;
  }

 private:
  enum class Place { outside, top, entry, metadata, tensor, dtype, shape, offsets };

  bool refuse(std::string_view what) {
    problem = fmt::format("is not valid: in its header, at {}: {}", printable(name_), what);
    return false;
  }

  Place place_ = Place::outside;
  std::string name_;
  std::string metadata_name_;
  std::set<std::string> names_;
  TensorInfo tensor_;
  std::array<bool, 3> seen_{};
  bool in_array_ = false;
  int offsets_ = 0;
};

/// Each tensor begins where the one before it ends, and the last ends with the file.
void check_extents(SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t next = 0;
  for (const auto& tensor : header.tensors) {
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != tensor_bytes(tensor)) {
      throw CheckpointError(fmt::format("is not valid: tensor {} of {} and shape [{}] has the bytes {} to {}",
                                        printable(tensor.name), tensor.dtype, fmt::join(tensor.shape, ", "),
                                        tensor.begin, tensor.end));
    }
    if (tensor.begin != next) {
      throw CheckpointError(
          fmt::format("is not valid: tensor {} begins at byte {}, and what is before it ends at byte {}",
                      printable(tensor.name), tensor.begin, next));
    }
    next = tensor.end;
  }
  if (next != data_bytes) {
    throw CheckpointError(
        fmt::format("is torn: {} bytes follow its header, and its tensors have {}", data_bytes, next));
  }
}

}  // namespace

std::uint64_t tensor_bytes(const TensorInfo& tensor) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::uint64_t bits = bits_of(tensor);
  if (tensor.shape.size() > most_dimensions) {
    throw CheckpointError(fmt::format("is not valid: tensor {} has {} dimensions, and {} are the most",
                                      printable(tensor.name), tensor.shape.size(), most_dimensions));
  }
  std::uint64_t total = bits;
  bool empty = false;
  for (const auto size : tensor.shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(total, std::max<std::uint64_t>(size, 1), &total) || total > most) {
      throw CheckpointError(fmt::format("is not valid: tensor {} of shape [{}] has too many elements",
                                        printable(tensor.name), fmt::join(tensor.shape, ", ")));
    }
  }
  if (empty) return 0;
  if (total % 8 != 0) {
    throw CheckpointError(fmt::format("is not valid: tensor {} does not end with a byte", printable(tensor.name)));
  }
  return total / 8;
}

std::uint64_t safetensors_header_bytes(std::string_view start, std::uint64_t file_bytes) {
  if (start.size() < safetensors_length_bytes) {
    throw CheckpointError(fmt::format("is torn: it ends after {} bytes", start.size()));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, start.data(), sizeof length);
  if (length > safetensors_header_limit) {
    throw CheckpointError(
        fmt::format("is not a checkpoint: its header would have {} bytes, and {} are the most that is allowed", length,
                    safetensors_header_limit));
  }
  if (length > file_bytes - safetensors_length_bytes) {
    throw CheckpointError(
        fmt::format("is torn: it has {} bytes, and its header alone would have {}", file_bytes, length));
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') throw CheckpointError("is not a checkpoint: it has no JSON header");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json, &reader)) throw CheckpointError(reader.problem);
  check_extents(reader.header, data_bytes);
  return std::move(reader.header);
}

std::string encode_safetensors_header(SafetensorsHeader& header, std::string_view last) {
  const auto order = [&](const TensorInfo& tensor) {
    return std::tuple(tensor.name == last, -static_cast<int>(bits_of(tensor)), std::string_view(tensor.name));
  };
  std::sort(header.tensors.begin(), header.tensors.end(),
            [&](const TensorInfo& a, const TensorInfo& b) { return order(a) < order(b); });
  nlohmann::json json = nlohmann::json::object();
  if (!header.metadata.empty()) json[std::string(metadata_key)] = header.metadata;
  std::uint64_t next = 0;
  for (auto& tensor : header.tensors) {
    tensor.begin = next;
    tensor.end = next += tensor_bytes(tensor);
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("cannot be written: one of the names is not UTF-8");
  }
  text.append((header_alignment - text.size() % header_alignment) % header_alignment, ' ');
  if (text.size() > safetensors_header_limit) {
    throw CheckpointError(
        fmt::format("cannot be written: names and values take {} bytes, and {} are the most that "
                    "readers allow; add long texts and lists as tensors",
                    text.size(), safetensors_header_limit));
  }
  const std::uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

}  // namespace cohort
