// SPDX-License-Identifier: BSD-3-Clause
//
// What a program with distributed tensors did on one rank: read from what dtensor_reference.py writes, whose text says
// what the lines are, or recorded from ours.
#pragma once

#include <ATen/ATen.h>
#include <cohort/torch/dtensor.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torch/dtensor/collective_log.h"
#include "torch/dtensor/redistribute_local.h"

namespace cohort::test {

struct Value {
  std::string title;
  std::string placements;
  std::vector<std::int64_t> global;
  std::vector<std::int64_t> local;
  std::vector<std::int64_t> offset;  ///< empty if unknown
  std::vector<double> part;
  std::vector<double> full;
};

struct Record {
  std::string program;
  std::string refused;  ///< why PyTorch did not run it
  std::vector<Value> values;
  std::map<std::string, int> collectives;
};

inline std::string collectives_text(const std::map<std::string, int>& collectives) {
  std::string text;
  for (const auto& [name, count] : collectives) text += (text.empty() ? "" : " ") + name + "=" + std::to_string(count);
  return text.empty() ? "none" : text;
}

inline Value parsed_value(const std::string& line) {
  Value value;
  const auto open = line.find(" [");
  const auto close = line.find("] ");
  value.title = line.substr(0, open);
  value.placements = line.substr(open + 1, close - open);
  std::istringstream rest(line.substr(close + 1));
  std::vector<std::int64_t>* list = nullptr;
  for (std::string word; rest >> word;) {
    if (word == "global") {
      list = &value.global;
    } else if (word == "local") {
      list = &value.local;
    } else if (word == "offset") {
      list = &value.offset;
    } else if (word != "?") {
      list->push_back(std::stoll(word));
    }
  }
  return value;
}

inline std::vector<Record> read_records(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path.string() + ": run dtensor_reference.py first");
  std::vector<Record> records;
  for (std::string line; std::getline(in, line);) {
    const auto space = line.find(' ');
    const auto kind = line.substr(0, space);
    const auto rest = space == std::string::npos ? "" : line.substr(space + 1);
    std::istringstream words(rest);
    if (kind == "program") {
      records.push_back({.program = rest, .refused = {}, .values = {}, .collectives = {}});
    } else if (kind == "refused") {
      records.back().refused = rest;
    } else if (kind == "value") {
      records.back().values.push_back(parsed_value(rest));
    } else if (kind == "collectives") {
      for (std::string word; words >> word;) {
        const auto equals = word.find('=');
        records.back().collectives[word.substr(0, equals)] = std::stoi(word.substr(equals + 1));
      }
    } else {
      auto& value = records.back().values.back();
      auto& list = kind == "part" ? value.part : value.full;
      for (std::string word; words >> word;) list.push_back(std::stod(word));
    }
  }
  return records;
}

/// Runs programs on one rank and records them.
class Recorder {
 public:
  using Keep = std::function<void(const std::string& title, const at::Tensor& tensor)>;

  explicit Recorder(DeviceMesh mesh) : mesh_(std::move(mesh)), log_(mesh_.all_groups()) {}

  const DeviceMesh& mesh() const { return mesh_; }

  void program(const std::string& name, const std::function<void(const Keep&)>& body) {
    std::vector<std::pair<std::string, DTensor>> kept;
    log_.take();
    body([&](const std::string& title, const at::Tensor& tensor) {
      kept.emplace_back(title, DTensor(tensor.detach()));
    });
    Record record{.program = name, .refused = {}, .values = {}, .collectives = {}};
    for (const auto op : log_.take()) ++record.collectives[name_of(op)];
    for (const auto& [title, tensor] : kept) record.values.push_back(value_of(title, tensor));
    records_.push_back(std::move(record));
  }

  const std::vector<Record>& records() const { return records_; }

 private:
  /// As PyTorch's functional collectives are called.
  static std::string name_of(OpType op) {
    switch (op) {
      case OpType::all_gather_single:
        return "all_gather_into_tensor";
      case OpType::reduce_scatter_single:
        return "reduce_scatter_tensor";
      default:
        return std::string(to_string(op));
    }
  }

  static std::vector<double> numbers_of(const at::Tensor& tensor) {
    const auto flat = tensor.to(at::kDouble).contiguous();
    const auto* const begin = flat.data_ptr<double>();
    return {begin, begin + flat.numel()};
  }

  static Value value_of(const std::string& title, const DTensor& tensor) {
    const auto local = tensor.to_local();
    return {.title = title,
            .placements = to_string(tensor.placements()),
            .global = tensor.sizes().vec(),
            .local = local.sizes().vec(),
            .offset = dtensor::local_offsets(tensor.sizes(), {tensor.device_mesh(), tensor.placements()}),
            .part = numbers_of(local),
            .full = numbers_of(tensor.full_tensor())};
  }

  DeviceMesh mesh_;
  CollectiveLog log_;
  std::vector<Record> records_;
};

}  // namespace cohort::test
