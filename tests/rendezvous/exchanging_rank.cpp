// SPDX-License-Identifier: BSD-3-Clause
//
// A rank for the tests that start real programs: meets the others, exchanges a word with each, and leaves through
// main(). The first argument says how:
//   plain          like any program
//   rank0-first    rank 0 leaves at once; the others go on using the store for a while
//   rank0-fails    rank 0 leaves with an error; the others must learn of it, not wait for it
#include <cohort/cohort.h>
#include <cohort/rendezvous.h>
#include <cohort/store_collectives.h>

#include <iostream>
#include <string_view>

using namespace std::chrono_literals;

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "plain";
  try {
    const auto [store, rank, size] = cohort::rendezvous("env://", {.timeout = 20s});
    cohort::StoreCollectives all(store, rank, size);
    const auto sum = all.all_sum("ranks", rank, 20s);
    if (sum != size * (size - 1) / 2) return 2;
    if (mode == "rank0-first" && rank != 0) {
      const auto until = std::chrono::steady_clock::now() + 300ms;
      while (std::chrono::steady_clock::now() < until) {
        store->set("mine" + std::to_string(rank), "still here");
        if (store->get("mine" + std::to_string(rank)) != "still here") return 3;
      }
    }
    if (mode == "rank0-fails") {
      if (rank == 0) {
        for (int peer = 1; peer < size; ++peer) store->wait({"ready" + std::to_string(peer)}, 15s);
        return 7;
      }
      try {
        store->set("ready" + std::to_string(rank), "");
        store->get("never", 15s);
      } catch (const cohort::NetworkError&) {
        return 0;
      }
      return 4;
    }
    std::cout << "rank " << rank << " of " << size << '\n';
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
