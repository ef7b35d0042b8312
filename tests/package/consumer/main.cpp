// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/cohort.h>
#include <cohort/endpoint.h>
#include <cohort/secret.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

using namespace std::chrono_literals;

int main() {
  const auto version = cohort::version();
  if (version.text != COHORT_VERSION) {
    std::cerr << "headers are " << COHORT_VERSION << ", the library is " << version.text << '\n';
    return EXIT_FAILURE;
  }

  const cohort::TcpStore host(
      {.endpoint = cohort::Endpoint::tcp("127.0.0.1", 0), .is_host = true, .secret = cohort::Secret::generate()});

  const auto store = std::make_shared<cohort::HashStore>();
  std::thread peer([store] { store->set("greeting", "hello"); });
  const auto greeting = store->get("greeting", 10s);
  peer.join();

  try {
    store->get("nobody sets this", 1ms);
    return EXIT_FAILURE;
  } catch (const cohort::StoreTimeoutError&) {
    std::cout << greeting << " from cohort " << version.text << ", store at " << to_string(host.endpoint()) << '\n';
  }
  return EXIT_SUCCESS;
}
