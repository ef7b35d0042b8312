// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/device.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include "core/parse.h"

namespace cohort {

std::string_view to_string(DeviceType type) {
  return type == DeviceType::cpu ? "cpu" : "cuda";
}

DeviceType parse_device_type(std::string_view name) {
  if (name == "cpu") return DeviceType::cpu;
  if (name == "cuda") return DeviceType::cuda;
  throw ValueError(fmt::format("unknown device type \"{}\": known are cpu and cuda", name));
}

Device::Device(std::string_view text) {
  const auto colon = text.find(':');
  type = parse_device_type(text.substr(0, colon));
  if (colon == std::string_view::npos) return;
  const auto parsed = parse_integer<int>(text.substr(colon + 1));
  if (!parsed || *parsed < 0) {
    throw ValueError(fmt::format("device \"{}\": the index must be a number from 0, as in cuda:0", text));
  }
  index = *parsed;
}

std::string to_string(const Device& device) {
  const auto name = std::string(to_string(device.type));
  return device.index < 0 ? name : fmt::format("{}:{}", name, device.index);
}

}  // namespace cohort
