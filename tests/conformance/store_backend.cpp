// SPDX-License-Identifier: BSD-3-Clause
//
// Makes the tutorial's backend known to the tests of groups, so that COHORT_TEST_BACKEND=store runs them on it.
#include "../../examples/store_backend.h"

namespace {

const bool is_registered = [] {
  example::register_store_backend();
  return true;
}();

}  // namespace
