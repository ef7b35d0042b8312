// SPDX-License-Identifier: BSD-3-Clause
//
// The backends that come with the library.
#include "backends/fake/fake_backend.h"
#include "backends/shm/local_factory.h"
#include "group/factories.h"

namespace cohort {

std::map<std::string, ProcessGroupFactory, std::less<>> builtin_backends() {
  return {{"fake", fake::make_group}, {"shm", shm::make_shm_group}, {"thread", shm::make_thread_group}};
}

}  // namespace cohort
