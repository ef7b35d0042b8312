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

std::map<std::string, std::string, std::less<>> absent_backends() {
  constexpr auto later = "this version of Cohort has no engines for several hosts yet";
  return {{"gloo", later}, {"hybrid", later}, {"mpi", later}, {"nccl", later}};
}

}  // namespace cohort
