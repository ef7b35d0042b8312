// SPDX-License-Identifier: BSD-3-Clause
//
// Where memory lives: a device type and, for accelerators, an index.
//
//   cohort::Device host("cpu");
//   assert(cohort::Device("cuda:1") == (cohort::Device{cohort::DeviceType::cuda, 1}));
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cohort {

enum class DeviceType : std::uint8_t { cpu, cuda };

COHORT_API std::string_view to_string(DeviceType type);
/// "cpu" or "cuda". Throws a ValueError that lists the names if `name` is neither.
COHORT_API DeviceType parse_device_type(std::string_view name);

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = -1;  ///< -1: unspecified

  Device() = default;
  Device(DeviceType t, int i = -1) : type(t), index(i) {}
  /// "cpu", "cuda", "cuda:1". Throws ValueError if the text is malformed.
  COHORT_API explicit(false) Device(std::string_view text);
  explicit(false) Device(const char* text) : Device(std::string_view(text)) {}
  explicit(false) Device(const std::string& text) : Device(std::string_view(text)) {}

  bool operator==(const Device&) const = default;
};

COHORT_API std::string to_string(const Device& device);

}  // namespace cohort
