// SPDX-License-Identifier: BSD-3-Clause
#include "bench/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "measure/sizes.h"

namespace cohort::bench {

using namespace measure;

namespace {

constexpr int rounds_before_dropping = 2;

class Comparing {
 public:
  Comparing(const std::vector<std::unique_ptr<Contestant>>& contestants, const ComparisonOptions& options,
            Comparison& result)
      : contestants_(contestants), options_(options), result_(result) {
    for (const auto& contestant : contestants) result_.rows.push_back({.contestant = contestant->name()});
  }

  void run() {
    std::vector<std::size_t> order(contestants_.size());
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < options_.rounds; ++round) {
      // Seeded by the round: under a launcher all ranks must do the same.
      std::mt19937 random(static_cast<unsigned>(round));  // NOLINT(cert-msc32-c,cert-msc51-cpp): not for secrets
      std::shuffle(order.begin(), order.end(), random);
      if (round == rounds_before_dropping && options_.drop_peers_beyond > 0) drop_slow_peers(order);
      for (const auto index : order) measure(index, round);
    }
  }

 private:
  void measure(std::size_t index, int round) {
    auto& row = result_.rows[index];
    const auto operation = result_.command.operation;
    if (options_.on_progress) {
      options_.on_progress(fmt::format("{} {}, round {} of {}: {}", to_string(operation), format_size(result_.bytes),
                                       round + 1, options_.rounds, row.contestant.label()));
    }
    using Placements = ComparisonOptions::Placements;
    const bool is_either = works_in_place(operation) && works_out_of_place(operation);
    const auto is_wanted = [&](Placements other) { return !is_either || options_.placements != other; };
    if (works_out_of_place(operation) && is_wanted(Placements::in_place)) measure(index, row.out_of_place, false);
    if (works_in_place(operation) && is_wanted(Placements::out_of_place)) measure(index, row.in_place, true);
  }

  void measure(std::size_t index, Outcome& outcome, bool in_place) {
    if (!outcome.failure.empty() || !outcome.refusal.empty()) return;
    auto command = result_.command;
    command.in_place = in_place;
    command.check = options_.check && !outcome.is_checked && has_data(command.operation);
    auto answer = contestants_[index]->ask(command);
    outcome.failure = std::move(answer.error);
    outcome.refusal = std::move(answer.refusal);
    if (!outcome.failure.empty() || !outcome.refusal.empty()) return;
    outcome.rounds.samples.push_back(std::move(answer.microseconds));
    outcome.batch = answer.batch;
    outcome.wrong += answer.wrong;
    outcome.is_checked |= command.check;
  }

  double best_of(std::size_t index) const {
    const auto& row = result_.rows[index];
    double best = std::numeric_limits<double>::infinity();
    for (const auto* const outcome : {&row.out_of_place, &row.in_place}) {
      if (outcome->has_figures()) best = std::min(best, summarize(outcome->rounds).p50);
    }
    return best;
  }

  void drop_slow_peers(std::vector<std::size_t>& order) const {
    const auto is_peer = [&](std::size_t index) { return contestants_[index]->name().is_peer; };
    double best = std::numeric_limits<double>::infinity();
    for (const auto index : order) {
      if (is_peer(index)) best = std::min(best, best_of(index));
    }
    std::erase_if(
        order, [&](std::size_t index) { return is_peer(index) && best_of(index) > best * options_.drop_peers_beyond; });
  }

  const std::vector<std::unique_ptr<Contestant>>& contestants_;
  const ComparisonOptions& options_;
  Comparison& result_;
};

}  // namespace

Comparison compare(const std::vector<std::unique_ptr<Contestant>>& contestants, const Command& command, int ranks,
                   const ComparisonOptions& options) {
  const auto count = element_count(command.operation, command.bytes, command.dtype, ranks);
  Comparison result{.command = command,
                    .bytes = total_bytes(command.operation, count, command.dtype, ranks),
                    .count = count,
                    .ranks = ranks};
  Comparing(contestants, options, result).run();
  return result;
}

}  // namespace cohort::bench
