// SPDX-License-Identifier: BSD-3-Clause
//
// One rank of the DDP benchmark, driven by ddp_bench.py through its standard input:
//
//   model NAME         from now on this model                                    → ok
//   steps VARIANT N    N steps of bare, barrier (bare, and then one), cohort, no_sync, reducer_view, reducer_copy
//                                                                              → nanoseconds of each
//   cpu VARIANT N      N steps of bare or cohort_alone (a group of one rank)     → nanoseconds of thread CPU time
//   peak VARIANT N     the most that this process occupied during N steps      → bytes
//   memory             what this process occupies: anonymous pages + its share of shared ones → bytes
//   gradients          of all gradients, and of the largest                      → bytes, bytes
//
// A step is zero_grad (to none, or to zeros where a variant's name ends with _zeroed), forward and backward; variants
// are made when they are first asked for.
#include <cohort/cohort.h>
#include <cohort/endpoint.h>
#include <cohort/torch/ddp.h>
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "models.h"
#include "torch_reducer.h"

using namespace std::chrono_literals;

namespace cohort::benchmarks {

namespace {

using Ddp = DistributedDataParallel<BenchModel>;

std::int64_t now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

struct Place {
  int rank = 0;
  int size = 1;
  std::string store;       ///< name of an abstract unix socket
  std::string torch_file;  ///< where PyTorch's ranks meet
};

class Worker {
 public:
  explicit Worker(Place place) : place_(std::move(place)) {}

  void use(const std::string& model) {
    forget();
    model_name_ = model;
  }

  std::vector<std::int64_t> run(const std::string& variant, int count, clockid_t clock) {
    auto& step = steps_[variant];
    if (!step) step = make(variant);
    std::vector<std::int64_t> times;
    for (int i = 0; i < count; ++i) {
      const auto start = now(clock);
      step();
      times.push_back(now(clock) - start);
    }
    return times;
  }

  /// The bytes of all gradients, and of the largest one.
  std::pair<std::size_t, std::size_t> gradient_bytes() const {
    std::size_t all = 0;
    std::size_t largest = 0;
    for (const auto& each : make_model(model_name_)->parameters()) {
      all += each.nbytes();
      largest = std::max(largest, each.nbytes());
    }
    return {all, largest};
  }

 private:
  const ProcessGroupPtr& group() {
    if (!group_) {
      store_ = std::make_shared<TcpStore>(TcpStoreOptions{
          .endpoint = Endpoint::unix_socket(place_.store), .is_host = place_.rank == 0, .timeout = 60s});
      group_ = new_group("shm", 60s, "cpu", {}, {.store = store_, .rank = place_.rank, .size = place_.size});
    }
    return group_;
  }

  std::function<void()> make(const std::string& variant) {
    const auto model = make_model(model_name_);
    const auto input = model->input();
    const bool to_none = !variant.ends_with("_zeroed");
    const auto kind = to_none ? variant : variant.substr(0, variant.rfind('_'));
    if (kind == "bare" || kind == "barrier") {
      return [model, input, to_none, pg = kind == "barrier" ? group() : nullptr] {
        model->zero_grad(to_none);
        model->forward(input).backward();
        if (pg) pg->barrier();
      };
    }
    const bool alone = kind == "cohort_alone";
    if (kind == "cohort" || alone || kind == "no_sync") {
      auto pg = alone ? nullptr : group();
      if (alone) {
        pg = new_group("shm", 60s, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1});
      }
      const auto ddp = std::make_shared<Ddp>(model, DdpOptions{.process_group = pg});
      return [ddp, input, to_none, local = kind == "no_sync"] {
        ddp->zero_grad(to_none);
        const auto guard = local ? std::optional(ddp->no_sync()) : std::nullopt;
        ddp->forward(input).backward();
      };
    }
    if (variant == "reducer_view" || variant == "reducer_copy") {
      // One group for each, as the reducer that is alive owns the order of its collectives.
      const auto reducer = std::make_shared<TorchReducer>(place_.torch_file + "." + model_name_ + "." + variant,
                                                          place_.rank, place_.size);
      reducer->wrap(model->parameters(), variant == "reducer_view");
      return [reducer, model, input] {
        model->zero_grad(true);
        reducer->before_forward();
        const auto loss = model->forward(input);
        reducer->before_backward(loss);
        loss.backward();
      };
    }
    throw std::runtime_error("there is no variant \"" + variant + "\"");
  }

  void forget() {
    steps_.clear();
    ::malloc_trim(0);
  }

  Place place_;
  StorePtr store_;
  ProcessGroupPtr group_;
  std::string model_name_;
  std::map<std::string, std::function<void()>> steps_;
};

/// Pages that several processes share are counted by their share, so the sum over all ranks is what the job occupies.
std::int64_t occupied() {
  std::ifstream in("/proc/self/smaps_rollup");
  std::int64_t kib = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("Pss_Anon:") || line.starts_with("Pss_Shmem:")) kib += std::stoll(line.substr(10));
  }
  return kib * 1024;
}

/// The most that was occupied while `run` ran: looked at all the time by a thread beside it.
std::int64_t peak_during(const std::function<void()>& run) {
  std::atomic<std::int64_t> most = 0;
  {
    const std::jthread watcher([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) most = std::max(most.load(), occupied());
    });
    run();
  }
  return most;
}

void serve(const Place& place) {
  at::set_num_threads(1);
  // Large tensors are mapped, and unmapped when they are freed, whatever was freed before: memory can be compared.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  Worker worker(place);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    std::string name;
    int count = 0;
    words >> command;
    if (command == "model" && words >> name) {
      worker.use(name);
      std::cout << "ok";
    } else if ((command == "steps" || command == "cpu") && words >> name >> count) {
      for (const auto ns : worker.run(name, count, command == "cpu" ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC)) {
        std::cout << ns << ' ';
      }
    } else if (command == "peak" && words >> name >> count) {
      ::malloc_trim(0);
      std::cout << peak_during([&] { worker.run(name, count, CLOCK_MONOTONIC); });
    } else if (command == "memory") {
      ::malloc_trim(0);
      std::cout << occupied();
    } else if (command == "gradients") {
      const auto [all, largest] = worker.gradient_bytes();
      std::cout << all << ' ' << largest;
    } else if (command == "has_reducer") {
      std::cout << (TorchReducer::is_available() ? 1 : 0);
    } else {
      throw std::runtime_error("not understood: " + line);
    }
    std::cout << std::endl;
  }
}

}  // namespace

}  // namespace cohort::benchmarks

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: ddp_worker RANK SIZE STORE_NAME TORCH_FILE (ddp_bench.py starts it)\n";
    return 2;
  }
  try {
    cohort::benchmarks::serve({std::stoi(argv[1]), std::stoi(argv[2]), argv[3], argv[4]});
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "ddp_worker: " << e.what() << '\n';
    return 1;
  }
}
