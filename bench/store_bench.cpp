// SPDX-License-Identifier: BSD-3-Clause
//
// Measures the store against its bars (docs/performance.md).
#include "benchmarks.h"
#include "torch_peers.h"

int main(int argc, char** argv) {
  using namespace cohort::benchmarks;
  Program program(
      "Measures the store: its round trip against a bare echo, its throughput and its joining against PyTorch's "
      "TCPStore, a connection storm, memory per connection.");
  if (torch_version.empty()) {
    fmt::print("PyTorch's TCPStore is skipped: this program was built without libtorch (Debian: libtorch-dev)\n");
  }
  add_memory(program);  // first, while this process is small: servers are forked from it
  add_round_trip(program);
  add_throughput(program);
  add_join(program);
  add_storm(program);
  return program.run(argc, argv);
}
