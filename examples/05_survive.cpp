// SPDX-License-Identifier: BSD-3-Clause
//
// A process dies in the middle of it; the others find out, agree on who is left, and go on. A launcher ends the job at
// the first death unless it is told not to (cohort run --keep-going, as in 13_regrow.cpp), so this program starts its
// processes itself:
//
//   ./survive 4
#include <cohort/cohort.h>
#include <cohort/endpoint.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

using namespace std::chrono_literals;

namespace {

int work(int rank, int size, const cohort::Endpoint& endpoint) {
  const auto store = std::make_shared<cohort::TcpStore>(
      cohort::TcpStoreOptions{.endpoint = endpoint, .is_host = rank == 0, .timeout = 30s});
  auto pg = cohort::new_group("shm", 10s, "cpu", {}, {.store = store, .rank = rank, .size = size});
  std::vector<float> x(1'000'000, 1.0F);
  try {
    for (int step = 0; step < 1000; ++step) {
      if (step == 10 && rank == size - 1) ::kill(::getpid(), SIGKILL);
      pg->all_reduce(x, {.op = cohort::ReduceOp::max()});
    }
  } catch (const cohort::PeerLostError& e) {
    if (rank == 0) std::cout << "rank 0: " << e.what() << '\n';
    pg = pg->shrink();
  }
  std::vector<float> ones{1.0F};
  pg->all_reduce(ones);
  if (pg->rank() == 0) std::cout << "after shrink there are " << ones[0] << " of " << size << " processes\n";
  return ones[0] == static_cast<float>(size - 1) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::stoi(argv[1]) : 4;
  const auto endpoint = cohort::Endpoint::unix_socket("@survive/" + std::to_string(::getpid()));
  for (int rank = 0; rank < size; ++rank) {
    if (::fork() != 0) continue;
    int status = 1;
    try {
      status = work(rank, size, endpoint);
    } catch (const std::exception& e) {
      std::cerr << "rank " << rank << ": " << e.what() << '\n';
    }
    std::cout.flush();
    ::_exit(status);
  }
  int failed = 0;
  for (int status = 0; ::wait(&status) > 0;) failed += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
  return failed == 1 ? 0 : 1;  // the one that was killed
}
