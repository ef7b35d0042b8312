// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/device.h>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

TEST(DeviceTest, ParsesAndPrints) {
  EXPECT_EQ(Device("cpu"), Device(DeviceType::cpu));
  EXPECT_EQ(Device("cuda"), Device(DeviceType::cuda, -1));
  EXPECT_EQ(Device("cuda:3"), Device(DeviceType::cuda, 3));
  EXPECT_EQ(to_string(Device("cuda:3")), "cuda:3");
  EXPECT_EQ(to_string(Device()), "cpu");
}

TEST(DeviceTest, RefusesTheRest) {
  for (const auto* const text : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "CPU"}) {
    EXPECT_THROW(Device{text}, ValueError) << text;
  }
  EXPECT_ERROR(ValueError, Device("gpu"), "known are cpu and cuda");
}

}  // namespace
}  // namespace cohort::test
