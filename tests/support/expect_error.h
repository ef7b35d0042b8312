// SPDX-License-Identifier: BSD-3-Clause
//
// Users rely on the texts of errors, so these functions check both type and text.
#pragma once

#include <cohort/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

namespace cohort::test {

/// Runs `body` and returns the message of the E that it throws. Anything else fails the test.
template <class E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another error was thrown: " << typeid(e).name() << ": " << e.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace cohort::test

#define EXPECT_ERROR(type, body, text) \
  EXPECT_THAT(::cohort::test::message_of<type>([&] { body; }), ::testing::HasSubstr(text))
