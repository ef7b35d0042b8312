// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/version.h>

namespace cohort {

Version version() noexcept {
  return {COHORT_VERSION_MAJOR, COHORT_VERSION_MINOR, COHORT_VERSION_PATCH, COHORT_VERSION};
}

}  // namespace cohort
