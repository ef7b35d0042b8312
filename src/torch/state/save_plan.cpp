// SPDX-License-Identifier: BSD-3-Clause
#include "torch/state/save_plan.h"

#include <cohort/torch/checkpoint_error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "torch/state/value_text.h"

namespace cohort {

namespace {

std::string description_of(const HeldTensor& tensor) {
  return fmt::format("{} of shape [{}]", tensor.dtype, fmt::join(tensor.shape, ", "));
}

/// For each name, the first rank that has it.
std::map<std::string, std::size_t> owners_of(const std::vector<HeldTensors>& all) {
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [name, tensor] : all[rank]) owners.emplace(name, rank);
  }
  return owners;
}

/// Whether the ranks have the same tensors, whatever they hold of them.
void check_agreement(const std::vector<HeldTensors>& all) {
  for (const auto& [name, owner] : owners_of(all)) {
    const auto expected = description_of(all[owner].at(name));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto it = all[rank].find(name);
      if (it == all[rank].end() && !all[owner].at(name).everywhere) continue;
      if (it == all[rank].end()) {
        throw CheckpointError(fmt::format("{} is a distributed tensor on rank {}, and rank {} has none of this name",
                                          printable(name), owner, rank));
      }
      if (const auto there = description_of(it->second); there != expected) {
        throw CheckpointError(
            fmt::format("{} is {} on rank {}, and {} on rank {}", printable(name), expected, owner, there, rank));
      }
    }
  }
}

}  // namespace

std::string held_to_text(const HeldTensors& held) {
  auto json = nlohmann::json::object();
  for (const auto& [name, tensor] : held) {
    auto boxes = nlohmann::json::array();
    for (const auto& box : tensor.boxes) boxes.push_back({box.offsets, box.sizes});
    json[name] = {{"dtype", tensor.dtype},
                  {"bytes", tensor.element_bytes},
                  {"shape", tensor.shape},
                  {"boxes", boxes},
                  {"everywhere", tensor.everywhere}};
  }
  try {
    return json.dump();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("one of the names is not UTF-8");
  }
}

HeldTensors held_from_text(const std::string& text) {
  HeldTensors held;
  try {
    const auto all = nlohmann::json::parse(text);
    for (const auto& [name, json] : all.items()) {
      HeldTensor tensor{.dtype = json.at("dtype").get<std::string>(),
                        .element_bytes = json.at("bytes").get<std::int64_t>(),
                        .shape = json.at("shape").get<std::vector<std::int64_t>>(),
                        .boxes = {},
                        .everywhere = json.at("everywhere").get<bool>()};
      for (const auto& box : json.at("boxes")) {
        tensor.boxes.push_back({.offsets = box.at(0).get<std::vector<std::int64_t>>(),
                                .sizes = box.at(1).get<std::vector<std::int64_t>>()});
      }
      held.emplace(name, std::move(tensor));
    }
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("a rank's list of its distributed tensors is malformed; do all ranks run the same program?");
  }
  return held;
}

std::map<std::string, std::vector<Box>> boxes_to_write(const std::vector<HeldTensors>& all, int rank) {
  check_agreement(all);
  std::map<std::string, std::vector<Box>> mine;
  std::vector<std::int64_t> written(all.size());  // bytes, by each rank
  for (const auto& [name, owner] : owners_of(all)) {
    const auto element_bytes = all[owner].at(name).element_bytes;
    std::map<Box, std::vector<std::size_t>> holders;
    for (std::size_t each = 0; each < all.size(); ++each) {
      const auto it = all[each].find(name);
      if (it == all[each].end()) continue;
      for (const auto& box : it->second.boxes) holders[box].push_back(each);
    }
    for (const auto& [box, ranks] : holders) {
      const auto writer = *std::min_element(ranks.begin(), ranks.end(),
                                            [&](std::size_t a, std::size_t b) { return written[a] < written[b]; });
      written[writer] += count_elements(box.sizes).value_or(0) * element_bytes;
      if (writer == static_cast<std::size_t>(rank)) mine[name].push_back(box);
    }
  }
  return mine;
}

void check_held(const std::vector<HeldTensors>& all) {
  for (const auto& [name, owner] : owners_of(all)) {
    std::set<Box> boxes;
    for (const auto& each : all) {
      if (const auto it = each.find(name); it != each.end()) {
        boxes.insert(it->second.boxes.begin(), it->second.boxes.end());
      }
    }
    try {
      check_tiling(all[owner].at(name).shape, {boxes.begin(), boxes.end()});
    } catch (const CheckpointError& e) {
      throw CheckpointError(
          fmt::format("the distributed tensor {}: {}; all ranks of its mesh must save it, with the same placements",
                      printable(name), e.message()));
    }
  }
}

}  // namespace cohort
