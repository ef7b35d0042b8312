// SPDX-License-Identifier: BSD-3-Clause
//
// One program for every place: a laptop, several hosts, a cluster under SLURM or MPI's launchers, GPUs. It fits a line
// through points, each rank with points of its own, and says where the ranks are and what joins them. Start it with
//
//   cohort run -n 4 ./anywhere                                    on one host
//   cohort run --nnodes 2 --node-rank 0 --master-addr host0 -n 2 ./anywhere
//                                                                 on two; the same with --node-rank 1 on the other
//   mpirun -n 4 ./anywhere                                        Open MPI or MPICH
//   srun -n 4 ./anywhere                                          SLURM
//   cohort run -n gpu ./anywhere cuda                             one rank for each GPU of this host
//
// docs/clusters.md shows what each prints, and what to do when it does not.
#include <cohort/cohort.h>
#include <cohort/env.h>
#include <cohort/launch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <vector>

using namespace std::chrono_literals;

namespace {

/// A name that two processes share if they are on the same host. Network namespaces are hosts of their own here.
std::string host_name() {
  std::array<char, 64> name{};
  ::gethostname(name.data(), name.size() - 1);
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) != 0) return name.data();
  return std::string(name.data()) + " (network " + std::to_string(network.st_ino) + ")";
}

/// Every rank's host, on all ranks.
std::vector<std::string> all_hosts(cohort::ProcessGroup& pg) {
  constexpr std::size_t longest = 128;
  std::vector<std::uint8_t> mine(longest);
  const auto name = host_name();
  std::copy_n(name.begin(), std::min(name.size(), longest - 1), mine.begin());
  std::vector<std::uint8_t> all(longest * static_cast<std::size_t>(pg.size()));
  pg.all_gather(all, mine);
  std::vector<std::string> names;
  for (std::size_t at = 0; at < all.size(); at += longest) names.emplace_back(reinterpret_cast<const char*>(&all[at]));
  return names;
}

void say_where(cohort::ProcessGroup& pg) {
  const auto hosts = all_hosts(pg);
  std::map<std::string, std::string> ranks_of;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) ranks_of[hosts[rank]] += " " + std::to_string(rank);
  if (pg.rank() != 0) return;
  std::cout << pg.size() << " ranks on " << ranks_of.size() << (ranks_of.size() == 1 ? " host" : " hosts")
            << ", backend " << pg.name() << '\n';
  for (const auto& [host, ranks] : ranks_of) std::cout << "  " << host << ": ranks" << ranks << '\n';
}

/// y = 3 x - 1, by gradient descent; the gradients are averaged over all ranks, as in any data-parallel training.
std::array<float, 2> fit_line(cohort::ProcessGroup& pg) {
  std::array<float, 2> line{};  // slope and offset
  for (int step = 0; step < 500; ++step) {
    std::vector<float> gradient(2);
    for (int i = 0; i < 100; ++i) {
      const float x = std::sin(static_cast<float>(i * pg.size() + pg.rank()));
      const float error = line[0] * x + line[1] - (3 * x - 1);
      gradient[0] += error * x / 100;
      gradient[1] += error / 100;
    }
    pg.all_reduce(gradient, {.op = cohort::ReduceOp::avg()});
    for (std::size_t i = 0; i < line.size(); ++i) line[i] -= 0.5F * gradient[i];
  }
  return line;
}

/// On a GPU numbers lie where this program, which knows no CUDA, does not see them; a barrier shows that all have met.
int meet_on_gpus() {
  const auto launch = cohort::find_launch(cohort::Env::read());
  const int gpu = launch ? launch->local_rank.value_or(0) : 0;
  try {
    const auto pg = cohort::new_group("auto", 60s, cohort::Device(cohort::DeviceType::cuda, gpu));
    pg->barrier();
    if (pg->rank() == 0) std::cout << pg->size() << " ranks on GPUs, backend " << pg->name() << '\n';
    return 0;
  } catch (const cohort::Error& e) {
    std::cerr << "anywhere: there is no GPU for this rank, or no NCCL: " << e.what() << '\n';
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 1 && std::strcmp(argv[1], "cuda") == 0) return meet_on_gpus();
    // "auto": shared memory on one host, hybrid (shared memory inside, an engine between) on several.
    const auto pg = cohort::new_group("auto", 60s, "cpu");
    say_where(*pg);
    const auto [slope, offset] = fit_line(*pg);
    if (pg->rank() == 0) std::cout << "all agree on slope " << slope << " and offset " << offset << '\n';
    return 0;
  } catch (const cohort::Error& e) {
    std::cerr << "anywhere: " << e.what() << '\n';
    return 1;
  }
}
