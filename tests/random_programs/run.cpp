// SPDX-License-Identifier: BSD-3-Clause
#include "random_programs/run.h"

#include <cohort/debug_level.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <cohort/tcp_store.h>

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "random_programs/child.h"
#include "random_programs/reports.h"

namespace cohort::random_programs {

namespace {

constexpr auto beyond = std::chrono::seconds(30);

/// A name in the kernel's list of sockets that no other program of this process or of another has.
Endpoint new_endpoint() {
  static std::atomic<int> next{0};
  return Endpoint::unix_socket(fmt::format("@cohort-random/{}/{}", ::getpid(), next++));
}

void say(int fd, const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const auto n = ::write(fd, text.data() + written, text.size() - written);
    if (n <= 0) return;
    written += static_cast<std::size_t>(n);
  }
}

/// One rank from its group to its report.
void run_rank(const Program& program, const Where& where, int rank, const StorePtr& store, int out) {
  std::optional<Failure> failure;
  try {
    const auto group =
        new_group(where.backend, where.timeout, "cpu", {}, {.store = store, .rank = rank, .size = program.size});
    failure = execute(program, group, where.tampered);
    if (failure) say(out, to_line(program.seed, {rank, *failure}));
    // The others are done with the store, which rank 0 may host.
    group->barrier();
  } catch (const std::exception& e) {
    if (!failure) say(out, to_line(program.seed, {rank, {"error", 0, e.what()}}));
  }
}

int run_threads(const Program& program, const Where& where, int out) {
  const auto store = where.backend == "thread"
                         ? StorePtr(std::make_shared<HashStore>())
                         : std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = new_endpoint(), .is_host = true});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < program.size; ++rank) {
    ranks.emplace_back([&, rank] { run_rank(program, where, rank, rank == 0 ? store : store->clone(), out); });
  }
  for (auto& each : ranks) each.join();
  return 0;
}

int run_process(const Program& program, const Where& where, int rank, const Endpoint& endpoint, int out) {
  if (program.hosts > 0) {
    ::setenv("COHORT_HOST_ID", fmt::format("host{}", rank * program.hosts / program.size).c_str(), 1);
  }
  const auto store = std::make_shared<TcpStore>(
      TcpStoreOptions{.endpoint = endpoint, .is_host = rank == 0, .timeout = where.timeout + beyond});
  run_rank(program, where, rank, store, out);
  return 0;
}

/// Wrong data comes before errors, which may be its consequences on other ranks, and errors in steps before others.
void sort_by_weight(std::vector<Report>& reports) {
  const auto weight = [](const Report& report) {
    return report.failure.kind == "wrong data" ? 0 : report.rank < 0 ? 3 : report.failure.step > 0 ? 1 : 2;
  };
  std::stable_sort(reports.begin(), reports.end(), [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
}

}  // namespace

std::vector<Report> run(const Program& program, const Where& where) {
  const auto endpoint = new_endpoint();
  std::vector<Child> children;
  const int processes = program.ranks_are_threads ? 1 : program.size;
  for (int i = 0; i < processes; ++i) {
    children.emplace_back([&](int out) {
      set_debug_level(program.is_detail ? DebugLevel::detail : DebugLevel::off);
      return program.ranks_are_threads ? run_threads(program, where, out)
                                       : run_process(program, where, i, endpoint, out);
    });
  }
  std::vector<Report> reports;
  const auto deadline = std::chrono::steady_clock::now() + where.timeout + beyond;
  for (int i = 0; i < processes; ++i) {
    auto& child = children[static_cast<std::size_t>(i)];
    const auto ended = child.finish(deadline);
    std::string rest;
    for (const auto& [seed, report] : from_lines(child.output(), rest)) reports.push_back(report);
    const int rank = program.ranks_are_threads ? -1 : i;
    if (!ended) reports.push_back({rank, {"hang", 0, "it did not end and was killed"}});
    if (ended && *ended != 0) reports.push_back({rank, {"crash", 0, fmt::format("it ended with status {}", *ended)}});
  }
  sort_by_weight(reports);
  return reports;
}

Launched launch(const std::string& launcher, int size, const std::vector<std::string>& options,
                std::chrono::milliseconds limit) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string command = fmt::format("exec {} -n {} '{}'", launcher, size, self);
  for (const auto& each : options) command += fmt::format(" '{}'", each);
  Child child([&](int out) {
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    return 127;
  });
  const auto ended = child.finish(std::chrono::steady_clock::now() + limit + beyond);
  Launched result;
  result.status = ended.value_or(-1);
  result.reports = from_lines(child.output(), result.says);
  return result;
}

int run_as_launched_rank(const std::vector<Program>& programs, const Where& where) {
  if (where.backend == "hybrid") {
    // Before the group exists, only the launcher knows which rank this is.
    // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread
    const char* const open_mpi = ::getenv("OMPI_COMM_WORLD_RANK");
    // NOLINTNEXTLINE(concurrency-mt-unsafe)
    const char* const rank = open_mpi != nullptr ? open_mpi : ::getenv("PMI_RANK");
    ::setenv("COHORT_ENGINE", "mpi", 1);
    ::setenv("COHORT_HOST_ID", rank != nullptr && ::atoi(rank) % 2 == 1 ? "odd" : "even", 1);
  }
  bool is_good = true;
  try {
    const auto group = new_group(where.backend, where.timeout, "cpu");
    for (const auto& program : programs) {
      const auto failure = execute(program, group, where.tampered);
      if (!failure) continue;
      is_good = false;
      say(STDOUT_FILENO, to_line(program.seed, {group->rank(), *failure}));
      // After an error the group cannot be used, and MPI might wait for it at exit.
      if (failure->kind == "error") ::_exit(1);
    }
    group->barrier();
  } catch (const std::exception& e) {
    say(STDOUT_FILENO, to_line(programs.empty() ? 0 : programs.front().seed, {-1, {"error", 0, e.what()}}));
    ::_exit(1);
  }
  return is_good ? 0 : 1;
}

}  // namespace cohort::random_programs
