// SPDX-License-Identifier: BSD-3-Clause
#include "measure/measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "measure/pattern.h"

namespace cohort::measure {

namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

/// Ranks leave the barrier before a sample up to some microseconds apart; in a sample this long that is below 1 %.
constexpr double sample_at_least = 300;
constexpr int batch_at_most = 2000;
constexpr std::size_t cache_line = 64;
constexpr int samples_at_least = 3;
/// Below, hardly any cache lines travel and the barrier before each operation would weigh too much.
constexpr std::size_t rewritten_from = std::size_t{16} << 10U;

class Measurement {
 public:
  Measurement(System& system, const Command& command) : system_(system), command_(command) {
    job_.command = command;
    job_.count = element_count(command.operation, command.bytes, command.dtype, system.size());
    rewrites_ = command.blocking && command.batch == 0 && !command.back_to_back && has_data(command.operation) &&
                command.bytes >= rewritten_from && !system.is_on_device();
    if (has_data(command.operation)) place();
    system_.prepare(job_);
  }

  Answer take() {
    Answer answer;
    const auto [estimate, spent] = warm_up();
    answer.batch = command_.batch > 0 ? command_.batch : batch_for(estimate);
    answer.microseconds.resize(samples_for(estimate * answer.batch, spent));
    for (auto& sample : answer.microseconds) {
      system_.barrier();
      sample = run(answer.batch);
    }
    system_.max_over_ranks(answer.microseconds);
    if (command_.check) answer.wrong = check();
    return answer;
  }

 private:
  void place() {
    const auto& c = command_;
    const auto block = job_.count * size_of(c.dtype);
    const auto whole = total_bytes(c.operation, job_.count, c.dtype, system_.size());
    const auto own = static_cast<std::size_t>(system_.rank()) * block;
    if (c.in_place) {
      auto* const memory = static_cast<std::byte*>(system_.memory(0, whole));
      job_.input = c.operation == Operation::all_gather ? memory + own : memory;
      job_.output = c.operation == Operation::reduce_scatter ? memory + own : memory;
      written_ = {memory, whole};
    } else {
      const auto in = c.operation == Operation::all_gather ? block : whole;
      const auto out = c.operation == Operation::reduce_scatter ? block : whole;
      job_.input = system_.memory(0, in);
      job_.output = system_.memory(1, out);
      written_ = {static_cast<std::byte*>(job_.input), in};
      read_ = {static_cast<const std::byte*>(job_.output), out};
    }
  }

  /// Microseconds per operation on this rank.
  double run(int operations) {
    Microseconds total{0};
    if (rewrites_) {
      for (int i = 0; i < operations; ++i) {
        use_memory();
        system_.barrier();
        total += timed(1);
      }
    } else {
      total = timed(operations);
    }
    const double halves = command_.operation == Operation::send_recv ? 2 : 1;
    return total.count() / operations / halves;
  }

  Microseconds timed(int operations) {
    const auto start = Clock::now();
    for (int i = 0; i < operations; ++i) system_.run(job_);
    system_.finish();
    return Clock::now() - start;
  }

  /// As a program does between two operations: it reads the last result and writes the next input.
  void use_memory() {
    std::uint8_t seen = 0;
    for (std::size_t i = 0; i < read_.size(); i += cache_line) seen |= static_cast<std::uint8_t>(read_[i]);
    constexpr int harmless = 0x3c;  // a small number in every type
    std::memset(written_.data(), harmless | (seen & 1), written_.size());
  }

  double slowest(double value) {
    system_.max_over_ranks({&value, 1});
    return value;
  }

  struct WarmedUp {
    double estimate;  ///< microseconds of an operation
    double spent;     ///< microseconds it took to find out
  };
  WarmedUp warm_up() {
    system_.barrier();
    double estimate = slowest(run(1));
    double spent = estimate;
    int operations = std::max(command_.warmup - 1, 0);
    if (command_.limit.count() > 0) operations = std::min(operations, fitting(estimate, 0.25));
    if (operations > 0) {
      estimate = slowest(run(operations));
      spent += estimate * operations;
    }
    // A handful of short operations says little about how long one takes.
    if (estimate < sample_at_least) {
      operations = batch_for(estimate);
      estimate = slowest(run(operations));
      spent += estimate * operations;
    }
    return {estimate, spent};
  }

  int fitting(double each, double share) const {
    return static_cast<int>(std::min(static_cast<double>(command_.limit.count()) * share / std::max(each, 0.01), 1e6));
  }

  static int batch_for(double estimate) {
    return static_cast<int>(
        std::clamp(std::ceil(sample_at_least / std::max(estimate, 0.01)), 1.0, static_cast<double>(batch_at_most)));
  }

  std::size_t samples_for(double each, double spent) const {
    if (command_.limit.count() == 0) return static_cast<std::size_t>(command_.iters);
    const double left = static_cast<double>(command_.limit.count()) - spent;
    const double fit = std::clamp(left / std::max(each, 0.01), static_cast<double>(samples_at_least), 1e6);
    return static_cast<std::size_t>(command_.back_to_back ? fit : std::min<double>(command_.iters, fit));
  }

  std::uint64_t check() {
    fill_inputs(command_, job_.count, system_.size(), system_.rank(), job_.input, job_.output);
    system_.upload();
    system_.barrier();
    system_.run(job_);
    system_.finish();
    system_.download();
    std::vector<double> wrong(static_cast<std::size_t>(system_.size()));
    wrong[static_cast<std::size_t>(system_.rank())] =
        static_cast<double>(count_wrong_outputs(command_, job_.count, system_.size(), system_.rank(), job_.output));
    system_.max_over_ranks(wrong);
    return static_cast<std::uint64_t>(std::accumulate(wrong.begin(), wrong.end(), 0.0));
  }

  System& system_;
  const Command& command_;
  Job job_;
  bool rewrites_ = false;
  std::span<std::byte> written_;
  std::span<const std::byte> read_;
};

}  // namespace

Answer answer_to(System& system, const Command& command) {
  if (auto why = system.refusal(command)) return {.refusal = std::move(*why)};
  return Measurement(system, command).take();
}

}  // namespace cohort::measure
