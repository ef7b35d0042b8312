// SPDX-License-Identifier: BSD-3-Clause
#include "torch/trainings/training.h"

#include <algorithm>
#include <charconv>
#include <random>
#include <sstream>
#include <stdexcept>

namespace cohort::test::trainings {

namespace {

std::size_t index_of(std::string_view name) {
  const auto& all = choices();
  const auto found = std::ranges::find(all, name, &Choice::name);
  if (found == all.end()) throw std::invalid_argument("there is no choice " + std::string(name));
  return static_cast<std::size_t>(found - all.begin());
}

std::size_t index_of(const Choice& choice, std::string_view value) {
  const auto found = std::ranges::find(choice.values, value);
  if (found == choice.values.end()) {
    throw std::invalid_argument(std::string(choice.name) + " is never " + std::string(value));
  }
  return static_cast<std::size_t>(found - choice.values.begin());
}

}  // namespace

const std::vector<Choice>& choices() {
  static const std::vector<Choice> all{
      {"ranks", {"1", "2", "3", "4"}},
      {"steps", {"1", "2", "3", "7"}},
      {"seed", {"0", "1", "2", "3", "4", "5", "6", "7"}},
      // The model. uses: where its second branch is used.
      {"norm", {"no", "yes"}},
      {"tied", {"no", "yes"}},
      {"frozen", {"no", "yes"}},
      {"uses", {"all", "never", "by_step", "by_rank", "by_rank_and_step", "by_batch"}},
      // The wrapper.
      {"bucket", {"large", "small"}},
      {"view", {"yes", "no"}},
      {"unused", {"unsearched", "find", "static"}},
      {"skip_unused", {"no", "yes"}},
      {"batched_copy", {"no", "yes"}},
      {"hook", {"none", "all_reduce", "fp16", "bf16", "quantized", "power_sgd"}},
      {"mixed", {"no", "bf16"}},
      {"sends_buffers", {"yes", "no"}},
      // The loop. batches: backwards for each step, the last or each of which is synchronised.
      {"batches", {"1", "2", "3"}},
      {"syncs", {"last", "each"}},
      {"zeroing", {"to_none", "to_zero", "by_module"}},
      {"clips", {"no", "yes"}},
      {"scales", {"no", "yes"}},
      {"evaluates", {"no", "yes"}},
      {"reloads", {"no", "yes"}},
      {"uneven", {"no", "yes"}},
      // The optimizer.
      {"rule", {"sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop"}},
      {"by", {"libtorch", "cohort", "zero", "in_backward", "zero_step"}},
      {"rate", {"constant", "falling"}},
      {"captured", {"no", "yes"}},
  };
  return all;
}

Training::Training() : picks(choices().size()) {}

bool Training::has(std::string_view name, std::string_view value) const {
  const auto index = index_of(name);
  return picks[index] == index_of(choices()[index], value);
}

int Training::number(std::string_view name) const {
  const auto index = index_of(name);
  const auto text = choices()[index].values[picks[index]];
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

void Training::set(std::string_view name, std::string_view value) {
  const auto index = index_of(name);
  picks[index] = index_of(choices()[index], value);
}

bool Training::is_fit() const {
  const bool is_by_rank = has("uses", "by_rank") || has("uses", "by_rank_and_step");
  const bool is_constant = has("uses", "all") || has("uses", "never") || has("uses", "by_rank");
  const bool steps_in_backward = has("by", "in_backward") || has("by", "zero_step");
  // What the wrapper is promised.
  if (!has("uses", "all") && has("unused", "unsearched")) return false;
  if (has("unused", "static") && !is_constant) return false;
  if (has("skip_unused", "yes") && (has("unused", "unsearched") || is_by_rank)) return false;
  // One process normalises over the batches of all ranks, which must compute alike then; and ranks without input do not
  // follow the collectives of a model.
  if (has("norm", "yes") && (is_by_rank || has("uneven", "yes"))) return false;
  // libtorch's batch norm takes no bf16 beside statistics in double.
  if (has("norm", "yes") && has("mixed", "bf16")) return false;
  // Once a rank has ended, what is added to averages counts too little (join.h).
  if (has("uneven", "yes") && number("batches") > 1 && has("syncs", "each")) return false;
  // Checkpoints are collective, too.
  if (has("reloads", "yes") && has("uneven", "yes")) return false;
  // Steps of ZeRO are collective, and ranks without input do not follow them either.
  if (has("uneven", "yes") && (has("by", "zero") || has("by", "zero_step") || has("captured", "yes"))) return false;
  if (steps_in_backward && (number("batches") > 1 || has("clips", "yes") || has("scales", "yes"))) return false;
  // A step that is captured does the same each time, and later calls are replays.
  if (has("captured", "yes") && (!has("steps", "7") || has("uses", "by_step") || has("uses", "by_rank_and_step"))) {
    return false;
  }
  // What no rank used has no gradient then, and is not stepped. A gradient of zero that is left from before would be.
  const bool comes_and_goes = has("uses", "by_step") || has("uses", "by_rank_and_step");
  return !(steps_in_backward && comes_and_goes && !has("zeroing", "to_none"));
}

bool Training::is_exact() const {
  return (has("hook", "none") || has("hook", "all_reduce")) && has("mixed", "no");
}

std::string Training::text() const {
  std::string text;
  for (std::size_t i = 0; i < picks.size(); ++i) {
    if (picks[i] == 0) continue;
    if (!text.empty()) text += ' ';
    text += choices()[i].name;
    text += '=';
    text += choices()[i].values[picks[i]];
  }
  return text;
}

Training Training::parse(std::string_view text) {
  Training training;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    const auto at = word.find('=');
    if (at == std::string::npos) throw std::invalid_argument("a choice is NAME=VALUE, and not " + word);
    training.set(std::string_view(word).substr(0, at), std::string_view(word).substr(at + 1));
  }
  return training;
}

Training generate(std::uint32_t seed) {
  std::mt19937 random(seed);
  for (;;) {
    Training training;
    for (std::size_t i = 0; i < training.picks.size(); ++i) {
      // Half of the choices are plain: with all of them taken, little goes together.
      if (random() % 2 == 0) training.picks[i] = random() % choices()[i].values.size();
    }
    if (training.is_fit()) return training;
  }
}

Training shrink(Training training, const std::function<bool(const Training&)>& fails) {
  for (bool is_plainer = true; is_plainer;) {
    is_plainer = false;
    for (std::size_t i = 0; i < training.picks.size(); ++i) {
      for (std::size_t pick = 0; pick < training.picks[i]; ++pick) {
        auto plainer = training;
        plainer.picks[i] = pick;
        if (!plainer.is_fit() || !fails(plainer)) continue;
        training = plainer;
        is_plainer = true;
        break;
      }
    }
  }
  return training;
}

}  // namespace cohort::test::trainings
