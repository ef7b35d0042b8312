// SPDX-License-Identifier: BSD-3-Clause
//
// A rank that meets the others in the store it finds in its environment and says so.
#include <cohort/env.h>
#include <cohort/secret.h>
#include <cohort/store_collectives.h>
#include <cohort/tcp_store.h>

#include <chrono>
#include <exception>
#include <iostream>
#include <memory>

int main() {
  using namespace std::chrono_literals;
  try {
    const auto env = cohort::Env::read();
    const int rank = env.integer("RANK").value();
    const int size = env.integer("WORLD_SIZE").value();
    cohort::TcpStoreOptions options{
        .endpoint = cohort::Endpoint::parse(env.store), .rank = rank, .timeout = 20s, .job_id = env.run_id};
    if (!env.secret_file.empty()) options.secret = cohort::Secret::load(env.secret_file);
    cohort::StoreCollectives all(std::make_shared<cohort::TcpStore>(options), rank, size);
    all.barrier("start", 20s);
    std::cout << "sum " << all.all_sum("ranks", rank, 20s) << '\n';
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
  return 0;
}
