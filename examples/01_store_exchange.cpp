// SPDX-License-Identifier: BSD-3-Clause
//
// The processes of a job find each other and exchange a few words. Start it with
//
//   cohort run -n 4 ./store_exchange
//
// or, unchanged, under mpirun, srun or torchrun --no-python.
#include <cohort/cohort.h>
#include <cohort/rendezvous.h>
#include <cohort/store_collectives.h>
#include <unistd.h>

#include <array>
#include <iostream>

using namespace std::chrono_literals;

int main() {
  try {
    // Waits until all processes are there. The store is this rendezvous's own.
    const auto [store, rank, size] = cohort::rendezvous("env://", {.timeout = 30s});

    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    const auto words =
        "rank " + std::to_string(rank) + " runs on " + host.data() + " as process " + std::to_string(::getpid());

    cohort::StoreCollectives all(store, rank, size);
    const auto everyone = all.all_gather("words", words, 10s);
    const auto sum = all.all_sum("ranks", rank, 10s);
    all.barrier("done", 10s);

    if (rank == 0) {
      for (const auto& line : everyone) std::cout << line << '\n';
      std::cout << "the sum of all ranks is " << sum << ", as every one of the " << size << " processes now knows\n";
    }
    return 0;
  } catch (const cohort::Error& e) {
    std::cerr << "store_exchange: " << e.what() << '\n';
    return 1;
  }
}
