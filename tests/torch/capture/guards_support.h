// SPDX-License-Identifier: BSD-3-Clause
//
// What the tests of guards share.
#pragma once

#include <cohort/current_group.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <cohort/torch/capture.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "torch/capture/guards.h"

namespace cohort::test {

/// A call of a captured step with these arguments.
template <class... Arguments>
detail::CapturedCall call_with(const Arguments&... arguments) {
  detail::CapturedCall call;
  call.constants.push_back({.text = "void"});
  (detail::collect_argument(arguments, call), ...);
  return call;
}

inline const std::string nothing = "no guard fails";

inline std::string failure_of(const recording::Guards& guards, const detail::CapturedCall& call = call_with()) {
  return guards.failure(call).value_or(nothing);
}

/// Guards of a call without arguments.
inline recording::Guards guards_of(const WatchList& watch) {
  return {call_with(), watch};
}

inline ProcessGroupPtr fake_group(int rank = 0, int size = 2) {
  return new_group("fake", std::chrono::seconds(5), "cpu", {},
                   {.store = std::make_shared<HashStore>(), .rank = rank, .size = size});
}

}  // namespace cohort::test
