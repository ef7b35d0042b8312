// SPDX-License-Identifier: BSD-3-Clause
//
// Scenarios for ranks under a real mpirun. A scenario that fails prints the reason and ends its rank with status 1.
//
//   mpirun -n 3 mpi_launched deadline
#include <cohort/cohort.h>

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;
using namespace cohort;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

template <class E>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& e) {
    return e.what();
  }
  throw std::runtime_error("no error was thrown");
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The MPI's own function, whichever MPI it is; the numbers of the thread levels are the same in all.
int init_as_a_program_would(int level) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread
  const char* const library = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ? "libmpi.so.40" : "libmpich.so.12";
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  require(handle != nullptr, library);
  const auto init = reinterpret_cast<int (*)(int*, char***, int, int*)>(::dlsym(handle, "MPI_Init_thread"));
  int provided = -1;
  require(init(nullptr, nullptr, level, &provided) == 0, "MPI_Init_thread");
  return provided;
}
void finalize_as_a_program_would() {
  reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "MPI_Finalize"))();
}

void expect_sum(ProcessGroup& pg) {
  std::vector<float> x(1000, 1);
  pg.all_reduce(x);
  require(x.back() == static_cast<float>(pg.size()), "all_reduce");
}

/// Rank 0 does not join one operation: the others get their errors in time, and all processes end.
void deadline() {
  const auto pg = new_group("mpi", 30s, "cpu");
  expect_sum(*pg);
  if (pg->rank() != 0) {
    static std::vector<float> x(1000, 1);  // static, because MPI may still write to it
    const auto before = std::chrono::steady_clock::now();
    const auto text = error_of<OperationTimeoutError>([&] { pg->all_reduce(x, {.timeout = 200ms}); });
    require(std::chrono::steady_clock::now() - before < 10s, "in time");
    require(has(text, "200 ms"), text);
    require(has(error_of<AbortedError>([&] { pg->barrier(); }), "missed its deadline"), "no more use");
  }
  // Through the store: rank 0 does not end before the others have seen their errors.
  const auto store = pg->store();
  store->set("seen/" + std::to_string(pg->rank()), "");
  for (int rank = 0; rank < pg->size(); ++rank) store->wait({"seen/" + std::to_string(rank)}, 30s);
  if (pg->rank() == 0) {
    std::cout << "all saw their deadlines" << std::endl;
    return;
  }
  // A launcher that sees a process end without MPI_Finalize ends the others at once, and their output may be lost, so
  // rank 0 ends first.
  try {
    store->wait({"the end of rank 0"}, 2s);
  } catch (const Error&) {
  }
}

/// No rank passes before the last has come, and a rank that does not come is named to all others, after which the group
/// goes on.
void expect_monitored_barrier(ProcessGroup& pg) {
  const int last = pg.size() - 1;
  const auto store = pg.store();
  if (pg.rank() == last) store->set("last/arrives", "");
  pg.monitored_barrier({.timeout = 30s});
  require(store->check({"last/arrives"}), "monitored_barrier waits for all");

  if (pg.rank() != last) {
    const auto text = error_of<OperationTimeoutError>([&] { pg.monitored_barrier({.timeout = 500ms}); });
    require(has(text, "rank " + std::to_string(last) + " did not join within 500 ms"), text);
  }
  store->set("told/" + std::to_string(pg.rank()), "");
  for (int rank = 0; rank < pg.size(); ++rank) store->wait({"told/" + std::to_string(rank)}, 30s);
  if (pg.rank() == last) error_of<Error>([&] { pg.monitored_barrier({.timeout = 200ms}); });
  pg.barrier();
  pg.monitored_barrier({.timeout = 30s});
}

/// Groups split from groups, several at a time, made and destroyed.
void groups() {
  const auto world = new_group("mpi", 30s, "cpu");
  for (int round = 0; round < 5; ++round) {
    const auto outer = world->split_group({0, world->size() - 1});
    const bool is_outer = world->rank() == 0 || world->rank() == world->size() - 1;
    require((outer != nullptr) == is_outer, "members only");
    if (outer) expect_sum(*outer);
    expect_sum(*world);
  }
  const auto other = new_group("mpi", 30s, "cpu");
  expect_sum(*other);
  expect_sum(*world);
  expect_monitored_barrier(*world);
  require(!has(error_of<NotSupportedError>([&] { static_cast<void>(world->allocate(10)); }), "shm"), "no memory");
}

void own_init() {
  require(init_as_a_program_would(3) == 3, "MPI_THREAD_MULTIPLE");
  expect_sum(*new_group("mpi", 30s, "cpu"));
  finalize_as_a_program_would();  // the program's duty: the library does not do it
}

void own_init_serialized() {
  require(init_as_a_program_would(2) >= 2, "MPI_THREAD_SERIALIZED");
  {
    const auto pg = new_group("mpi", 30s, "cpu");
    std::vector<std::vector<int>> data(20, std::vector<int>(5000, 1));
    std::vector<Work> works;
    works.reserve(data.size() + 1);
    for (auto& each : data) works.push_back(pg->all_reduce(each, {.async_op = true}));
    std::vector<int> out(10, pg->rank());
    std::vector<int> in(10);
    works.push_back(pg->send(out, (pg->rank() + 1) % pg->size(), {.async_op = true}));
    pg->recv(in, (pg->rank() + pg->size() - 1) % pg->size());
    for (const auto& each : works) each.wait();
    for (const auto& each : data) require(each.back() == pg->size(), "all_reduce");
  }
  finalize_as_a_program_would();
}

void own_init_single() {
  if (init_as_a_program_would(0) < 2) {
    require(has(error_of<ValueError>([] { new_group("mpi", 30s, "cpu"); }), "MPI_THREAD_MULTIPLE"), "what to ask for");
  }
  finalize_as_a_program_would();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)()> scenes{{"deadline", deadline},
                                                 {"groups", groups},
                                                 {"own_init", own_init},
                                                 {"own_init_serialized", own_init_serialized},
                                                 {"own_init_single", own_init_single}};
  try {
    scenes.at(argc > 1 ? argv[1] : "")();
  } catch (const std::exception& e) {
    std::cerr << e.what() << std::endl;
    return 1;
  }
  return 0;
}
