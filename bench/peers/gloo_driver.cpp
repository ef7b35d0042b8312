// SPDX-License-Identifier: BSD-3-Clause
//
// Gloo as a driver (tools/cohort/measure/driver.h), over TCP on the loopback, which is all it has within a host:
//
//   cohort run -n RANKS gloo_driver ring|bcube|hd|hd_busy
//
// ring and bcube are the two algorithms of its all_reduce; hd its older halving and doubling, with connections that
// block, and hd_busy with connections that poll. What has one implementation only is the same in all of them.
#include <cohort/prefix_store.h>
#include <cohort/rendezvous.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "measure/driver.h"

namespace {

using namespace cohort::measure;
using cohort::DType;

constexpr std::size_t largest_polled = std::size_t{16} << 20U;

struct Setting {
  gloo::AllreduceOptions::Algorithm algorithm = gloo::AllreduceOptions::Algorithm::RING;
  bool halving_doubling = false;
  bool busy = false;
};

Setting parse_setting(const std::string& name) {
  if (name == "ring") return {};
  if (name == "bcube") return {.algorithm = gloo::AllreduceOptions::Algorithm::BCUBE};
  if (name == "hd") return {.halving_doubling = true};
  if (name == "hd_busy") return {.halving_doubling = true, .busy = true};
  throw std::runtime_error(fmt::format("\"{}\" is no setting: ring, bcube, hd or hd_busy", name));
}

void set_reduction(Reduction reduction, auto& options) {
  using Function = void (*)(void*, const void*, const void*, std::size_t);
  Function function = &gloo::sum<float>;
  if (reduction == Reduction::prod) function = &gloo::product<float>;
  if (reduction == Reduction::min) function = &gloo::min<float>;
  if (reduction == Reduction::max) function = &gloo::max<float>;
  options.setReduceFunction(function);
}

/// Gloo's own words for a store, over ours.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(const std::string& prefix, cohort::StorePtr store) : store_(prefix, std::move(store)) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(key, std::string_view(data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_.get(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { store_.wait(keys); }

 private:
  cohort::PrefixStore store_;
};

class GlooSystem final : public System {
 public:
  GlooSystem(int rank, int size, const Setting& setting, const cohort::StorePtr& store)
      : rank_(rank), size_(size), setting_(setting) {
    gloo::transport::tcp::attr address;
    address.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(address);
    GlooStore first("first", store);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(first, device);
    context_ = context;
    // The older algorithms know connections that block their caller, or poll; the newer ones do not work on them.
    if (setting.halving_doubling) {
      GlooStore second("direct", store);
      auto direct = std::make_shared<gloo::rendezvous::Context>(rank, size);
      direct->connectFullMesh(second, device);
      for (int other = 0; setting.busy && other < size; ++other) {
        if (other != rank) direct->getPair(other)->setSync(true, true);
      }
      direct_ = direct;
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::optional<std::string> refusal(const Command& command) const override {
    if (command.dtype != DType::f32) return "only f32 is measured";
    if (command.reduction == Reduction::avg) return "Gloo has no avg";
    if (!command.blocking) return "only its blocking operations are measured";
    // Both ends write until the kernel's buffers are full, and neither reads.
    if (setting_.busy && reduces(command.operation) && command.bytes > largest_polled) {
      return "polling connections stall on messages this large";
    }
    if (command.operation == Operation::reduce_scatter) {
      if (!setting_.halving_doubling) return "Gloo has it by halving and doubling alone";
      if (command.in_place) return "Gloo puts the result of a reduce_scatter in place elsewhere";
      if (command.reduction != Reduction::sum) return "only sums are measured";
    }
    if (command.operation == Operation::all_reduce && setting_.halving_doubling) {
      if (!command.in_place) return "halving and doubling works in place alone";
      if (command.reduction != Reduction::sum) return "only sums are measured";
    }
    return std::nullopt;
  }

  void release() override {
    plan_.reset();
    planned_ = {};
    System::release();
  }

  void prepare(const Job& job) override {
    const auto& c = job.command;
    if (!setting_.halving_doubling) return;
    if (c.operation != Operation::all_reduce && c.operation != Operation::reduce_scatter) return;
    const Planned wanted{c.operation, job.count, job.input};
    if (plan_ && wanted == planned_) return;
    auto* const data = static_cast<float*>(job.input);
    const auto count = static_cast<int>(job.count);
    if (c.operation == Operation::all_reduce) {
      plan_ = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(direct_, std::vector<float*>{data}, count);
    } else {
      plan_ = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
          direct_, std::vector<float*>{data}, count * size_, std::vector<int>(static_cast<std::size_t>(size_), count));
    }
    planned_ = wanted;
  }

  void run(const Job& job) override {
    const auto& c = job.command;
    auto* const input = static_cast<float*>(job.input);
    auto* const output = static_cast<float*>(job.output);
    const auto whole = job.count * static_cast<std::size_t>(size_);
    switch (c.operation) {
      case Operation::all_reduce: {
        if (setting_.halving_doubling) return plan_->run();
        gloo::AllreduceOptions options(context_);
        options.setAlgorithm(setting_.algorithm);
        if (!c.in_place) options.setInput(input, job.count);
        options.setOutput(output, job.count);
        set_reduction(c.reduction, options);
        return gloo::allreduce(options);
      }
      case Operation::broadcast: {
        gloo::BroadcastOptions options(context_);
        options.setOutput(output, job.count);
        options.setRoot(c.root);
        return gloo::broadcast(options);
      }
      case Operation::reduce: {
        gloo::ReduceOptions options(context_);
        if (!c.in_place) options.setInput(input, job.count);
        options.setOutput(output, job.count);
        options.setRoot(c.root);
        set_reduction(c.reduction, options);
        return gloo::reduce(options);
      }
      case Operation::all_gather: {
        gloo::AllgatherOptions options(context_);
        if (!c.in_place) options.setInput(input, job.count);
        options.setOutput(output, whole);
        return gloo::allgather(options);
      }
      case Operation::reduce_scatter:
        plan_->run();
        // It reduces within its input.
        std::memcpy(output, input, job.count * sizeof(float));
        return;
      case Operation::all_to_all: {
        gloo::AlltoallOptions options(context_);
        options.setInput(input, whole);
        options.setOutput(output, whole);
        return gloo::alltoall(options);
      }
      case Operation::barrier:
        return barrier();
      case Operation::send_recv: {
        constexpr std::uint64_t slot = 1;
        const auto bytes = job.count * sizeof(float);
        auto out = context_->createUnboundBuffer(job.input, bytes);
        auto in = context_->createUnboundBuffer(job.output, bytes);
        return ping_pong(
            [&](int other) {
              out->send(other, slot);
              out->waitSend();
            },
            [&](int other) {
              in->recv(other, slot);
              in->waitRecv();
            });
      }
    }
  }

  void barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  void max_over_ranks(std::span<double> values) override {
    gloo::AllreduceOptions options(context_);
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::max<double>));
    gloo::allreduce(options);
  }

 private:
  struct Planned {
    Operation operation{};
    std::size_t count = 0;
    const void* memory = nullptr;
    bool operator==(const Planned&) const = default;
  };

  int rank_;
  int size_;
  Setting setting_;
  std::shared_ptr<gloo::Context> context_;
  std::shared_ptr<gloo::Context> direct_;
  std::unique_ptr<gloo::Algorithm> plan_;
  Planned planned_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto setting = parse_setting(argc == 2 ? argv[1] : "");
    return drive([&](int rank, int size) {
      return std::make_unique<GlooSystem>(rank, size, setting, cohort::rendezvous("env://").store);
    });
  } catch (const std::exception& e) {
    fmt::print(stderr, "gloo_driver: {}\n", e.what());
    return 1;
  }
}
