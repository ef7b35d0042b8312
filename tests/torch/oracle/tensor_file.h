// SPDX-License-Identifier: BSD-3-Clause
//
// Reads what reference.py writes; the format is described there.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace cohort::test {

inline std::vector<torch::Tensor> read_tensors(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  const auto number = [&] {
    std::int64_t value = 0;
    in.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  };
  std::vector<torch::Tensor> tensors;
  while (in.peek() != std::ifstream::traits_type::eof()) {
    constexpr at::ScalarType types[] = {at::kFloat, at::kDouble, at::kLong};
    const auto type = number();
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(number()));
    for (auto& size : sizes) size = number();
    tensors.push_back(torch::empty(sizes, types[type]));
    in.read(static_cast<char*>(tensors.back().data_ptr()), static_cast<std::streamsize>(tensors.back().nbytes()));
    if (!in) throw std::runtime_error(path.string() + " ends early");
  }
  return tensors;
}

}  // namespace cohort::test
