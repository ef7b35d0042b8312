// SPDX-License-Identifier: BSD-3-Clause
#include "plan/schedule.h"

#include <algorithm>
#include <limits>

#include "plan/cost_model.h"

namespace cohort::plan {

namespace {

struct Interval {
  double begin;
  double end;
};

class Schedule {
 public:
  Schedule(const StepModel& model, const Cluster& cluster, double compute_scale)
      : model_(model),
        cluster_(cluster),
        scale_(compute_scale),
        free_at_(model.groups.size()),
        done_at_(model.collectives) {
    result_.groups.resize(model.groups.size());
    for (const auto& each : model.groups) placements_.push_back(place(each.ranks, each.stride, cluster));
  }

  Prediction run() {
    for (const auto& event : model_.events) {
      compute(event.seconds * scale_);
      if (event.kind == StepEvent::Kind::collective) {
        start(event);
        if (!event.is_async) now_ = std::max(now_, done_at_[event.collective]);
      }
      for (const auto each : event.awaited) now_ = std::max(now_, done_at_[each]);
    }
    for (const double each : free_at_) now_ = std::max(now_, each);
    result_.step = now_;
    result_.exposed = now_ - result_.compute;
    return std::move(result_);
  }

 private:
  void start(const StepEvent& event) {
    const double seconds = cost(event.operation, event.bytes, placements_[event.group], cluster_);
    const double begin = std::max(now_, free_at_[event.group]);
    free_at_[event.group] = begin + seconds;
    done_at_[event.collective] = begin + seconds;
    result_.communication += seconds;
    result_.groups[event.group] += seconds;
    if (seconds > 0) running_.push_back({begin, begin + seconds});
  }

  /// While a collective runs, the rank computes only `overlap` times as fast.
  void compute(double seconds) {
    result_.compute += seconds;
    while (seconds > 0) {
      std::erase_if(running_, [&](const Interval& each) { return each.end <= now_; });
      double until = std::numeric_limits<double>::infinity();
      bool is_disturbed = false;
      for (const auto& each : running_) {
        if (each.begin <= now_) {
          is_disturbed = true;
          until = std::min(until, each.end);
        } else {
          until = std::min(until, each.begin);
        }
      }
      const double speed = is_disturbed ? cluster_.overlap : 1;
      const double possible = (until - now_) * speed;
      if (speed > 0 && possible >= seconds) {
        now_ += seconds / speed;
        return;
      }
      seconds -= possible;
      now_ = until;
    }
  }

  const StepModel& model_;
  const Cluster& cluster_;
  double scale_;
  double now_ = 0;
  std::vector<Placement> placements_;
  std::vector<double> free_at_;    // of each group's queue
  std::vector<double> done_at_;    // of each collective
  std::vector<Interval> running_;  // collectives that have not ended yet
  Prediction result_;
};

}  // namespace

double Prediction::hidden() const {
  return communication > 0 ? std::clamp(1 - exposed / communication, 0.0, 1.0) : 1;
}

Prediction predict(const StepModel& model, const Cluster& cluster, double compute_scale) {
  return Schedule(model, cluster, compute_scale).run();
}

}  // namespace cohort::plan
