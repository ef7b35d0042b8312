// SPDX-License-Identifier: BSD-3-Clause
#include "plan/step_model.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "graph/names.h"

namespace cohort::plan {

namespace {

/// 1 for a single rank, and for ranks at different distances, which are taken to be neighbours.
int stride_of(const std::vector<int>& ranks) {
  if (ranks.size() < 2) return 1;
  const auto stride = std::int64_t{ranks[1]} - ranks[0];
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (std::int64_t{ranks[i]} - ranks[i - 1] != stride) return 1;
  }
  constexpr std::int64_t largest = 1 << 20;
  return stride > 0 && stride <= largest ? static_cast<int>(stride) : 1;
}

class ModelMaker {
 public:
  explicit ModelMaker(const RecordedStep& step) : step_(step) {}

  StepModel make() {
    const auto durations = typical_durations(step_.timeline);
    model_.has_times = !durations.empty();
    const auto nodes = all_nodes(step_.graph);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const double seconds = model_.has_times ? static_cast<double>(durations[i]) * 1e-9 : 0;
      switch (nodes[i]->kind) {
        case GraphNode::Kind::collective:
          add_collective(*nodes[i], seconds);
          break;
        case GraphNode::Kind::wait:
          add_wait(*nodes[i]);
          break;
        case GraphNode::Kind::op:
        case GraphNode::Kind::distributed:  // its body follows
        case GraphNode::Kind::host:
          add_compute(seconds);
          break;
      }
    }
    return std::move(model_);
  }

 private:
  void add_compute(double seconds) {
    if (model_.events.empty() || model_.events.back().kind != StepEvent::Kind::compute) model_.events.emplace_back();
    model_.events.back().seconds += seconds;
  }

  std::size_t group_of(const GraphNode& node) {
    const auto found = std::find_if(model_.groups.begin(), model_.groups.end(), [&](const StepGroup& each) {
      return each.id == node.group && each.ranks == std::max(node.group_size, 1);
    });
    if (found != model_.groups.end()) return static_cast<std::size_t>(found - model_.groups.begin());
    StepGroup group{.id = node.group, .ranks = std::max(node.group_size, 1)};
    for (const auto& each : step_.graph.groups) {
      if (each.id != node.group) continue;
      group.label = graph_names::name_of_group(step_.graph, each.id);
      if (group.label == each.id) group.label.clear();
      group.stride = stride_of(each.ranks);
    }
    model_.groups.push_back(std::move(group));
    return model_.groups.size() - 1;
  }

  std::string element_of(const GraphNode& node) const {
    std::string text;
    if (const auto* const dtype = graph_names::find_operand(node, "dtype")) text = dtype->text;
    if (const auto* const reduction = graph_names::reduction_of(node)) text += " " + reduction->text;
    return text;
  }

  void add_collective(const GraphNode& node, double seconds) {
    StepEvent event{.kind = StepEvent::Kind::collective,
                    .seconds = node.is_async ? seconds : 0,
                    .collective = model_.collectives++,
                    .operation = std::string(graph_names::operation_of(node)),
                    .element = element_of(node),
                    .bytes = node.bytes,
                    .group = group_of(node),
                    .is_async = node.is_async};
    if (node.is_async) {
      in_flight_.insert(event.collective);
      for (const auto value : node.results) maker_[value] = event.collective;
      for (const auto value : node.writes) maker_[value] = event.collective;
    }
    model_.events.push_back(std::move(event));
  }

  void add_wait(const GraphNode& node) {
    std::set<std::size_t> awaited;
    const auto add = [&](std::size_t value) {
      const auto found = maker_.find(value);
      if (found != maker_.end()) awaited.insert(found->second);
    };
    for (const auto& operand : node.operands) {
      for (const auto value : operand.values) add(value);
    }
    for (const auto value : node.writes) add(value);
    // A view of what a collective writes is another value: then everything that may be meant.
    if (awaited.empty()) awaited = in_flight_;
    for (const auto each : awaited) in_flight_.erase(each);
    model_.events.push_back({.kind = StepEvent::Kind::wait, .awaited = {awaited.begin(), awaited.end()}});
  }

  const RecordedStep& step_;
  StepModel model_;
  std::map<std::size_t, std::size_t> maker_;  // the asynchronous collective that made or wrote a value last
  std::set<std::size_t> in_flight_;
};

bool has_parts(std::string_view operation) {
  return operation.starts_with("all_gather") || operation.starts_with("reduce_scatter") || operation == "gather" ||
         operation == "scatter";
}

/// Which events are buckets of gradients: asynchronous all_reduces, and a blocking one that follows them on the same
/// group, at the latest right after they were awaited, as DistributedDataParallel reduces its last bucket.
std::vector<bool> find_buckets(const StepModel& model) {
  std::vector<bool> found(model.events.size());
  std::map<std::size_t, std::string> last;  // by group: what the asynchronous all_reduces before have as elements
  for (std::size_t i = 0; i < model.events.size(); ++i) {
    const auto& event = model.events[i];
    const bool is_after_wait = i > 0 && model.events[i - 1].kind == StepEvent::Kind::wait;
    if (event.kind == StepEvent::Kind::compute && is_after_wait) last.clear();
    if (event.kind != StepEvent::Kind::collective) continue;
    const auto before = last.find(event.group);
    const bool follows = before != last.end() && before->second == event.element;
    found[i] = event.operation == "all_reduce" && (event.is_async || follows);
    last.erase(event.group);
    if (found[i] && event.is_async) last.emplace(event.group, event.element);
  }
  return found;
}

}  // namespace

int StepModel::world() const {
  std::int64_t ranks = 1;
  for (const auto& each : groups) ranks = std::max(ranks, std::int64_t{each.ranks} * each.stride);
  return static_cast<int>(std::min<std::int64_t>(ranks, 1 << 30));
}

StepModel model_of(const RecordedStep& step) {
  return ModelMaker(step).make();
}

std::size_t outermost_group(const StepModel& model) {
  if (model.groups.empty()) throw ValueError("the step has no collectives, so no group grows with the world");
  const auto found =
      std::max_element(model.groups.begin(), model.groups.end(), [](const StepGroup& a, const StepGroup& b) {
        return std::pair(a.stride, a.ranks) < std::pair(b.stride, b.ranks);
      });
  return static_cast<std::size_t>(found - model.groups.begin());
}

StepModel resized(const StepModel& model, std::size_t growing, int world, Parts parts) {
  const auto old = model.groups.at(growing);
  const auto others = std::max<std::int64_t>(model.world() / old.ranks, 1);
  if (world < 1 || world % others != 0) {
    throw ValueError(fmt::format(
        "{} ranks: the other dimensions of the step have {} ranks together, so the world is a multiple of {}", world,
        others, others));
  }
  const auto ranks = static_cast<int>(world / others);
  auto result = model;
  for (auto& each : result.groups) {
    const auto reach = std::int64_t{each.stride} * each.ranks;
    const bool contains_it = each.stride <= old.stride && reach >= std::int64_t{old.stride} * old.ranks;
    if (contains_it) {
      each.ranks = static_cast<int>(std::int64_t{each.ranks} * ranks / old.ranks);
    } else if (each.stride > old.stride) {
      each.stride = static_cast<int>(std::int64_t{each.stride} * ranks / old.ranks);
    }
  }
  if (parts == Parts::stay) {
    for (auto& each : result.events) {
      if (each.kind != StepEvent::Kind::collective || !has_parts(each.operation)) continue;
      const auto before = static_cast<double>(model.groups[each.group].ranks);
      each.bytes = static_cast<std::size_t>(static_cast<double>(each.bytes) / before * result.groups[each.group].ranks);
    }
  }
  return result;
}

StepModel with_buckets(const StepModel& model, std::size_t bytes) {
  auto result = model;
  result.events.clear();
  struct Bucket {
    StepEvent event;
    std::vector<std::size_t> parts;
    std::size_t place;  // of the last part, in the new events
  };
  std::map<std::size_t, Bucket> open;           // by group
  std::map<std::size_t, std::size_t> replaced;  // by collective: the bucket's
  const auto close = [&](std::size_t group) {
    const auto found = open.find(group);
    if (found == open.end()) return;
    for (const auto part : found->second.parts) replaced[part] = found->second.event.collective;
    result.events[found->second.place] = std::move(found->second.event);
    open.erase(found);
  };
  const auto is_bucket = find_buckets(model);
  for (std::size_t i = 0; i < model.events.size(); ++i) {
    const auto& event = model.events[i];
    if (event.kind == StepEvent::Kind::wait) {
      // A part that somebody waits for cannot wait for others to come, unless the last of them comes now, and blocks.
      auto next = i + 1;
      while (next < model.events.size() && model.events[next].kind == StepEvent::Kind::wait) ++next;
      const bool ends_bucket = next < model.events.size() && is_bucket[next] && !model.events[next].is_async;
      for (const auto part : event.awaited) {
        for (const auto& [group, bucket] : open) {
          if (std::find(bucket.parts.begin(), bucket.parts.end(), part) == bucket.parts.end()) continue;
          if (!ends_bucket || model.events[next].group != group) close(group);
          break;
        }
      }
      auto wait = event;
      for (auto& each : wait.awaited) {
        if (const auto found = replaced.find(each); found != replaced.end()) each = found->second;
      }
      result.events.push_back(std::move(wait));
      continue;
    }
    if (!is_bucket[i]) {
      // On its group it goes after what was issued before it.
      if (event.kind == StepEvent::Kind::collective) close(event.group);
      result.events.push_back(event);
      continue;
    }
    auto found = open.find(event.group);
    if (found != open.end() && found->second.event.element != event.element) {
      close(event.group);
      found = open.end();
    }
    if (found == open.end()) {
      found = open.emplace(event.group, Bucket{.event = event, .parts = {event.collective}, .place = 0}).first;
    } else {
      auto& bucket = found->second;
      result.events[bucket.place] = {};  // computing of no time
      bucket.parts.push_back(event.collective);
      bucket.event.collective = event.collective;
      bucket.event.bytes += event.bytes;
      bucket.event.is_async = event.is_async;
      bucket.event.seconds = std::max(bucket.event.seconds, event.seconds);
    }
    found->second.place = result.events.size();
    result.events.emplace_back();
    if (found->second.event.bytes >= bytes || !event.is_async) close(event.group);
  }
  while (!open.empty()) close(open.begin()->first);
  return result;
}

BucketBytes bucket_bytes(const StepModel& model) {
  BucketBytes found;
  const auto is_bucket = find_buckets(model);
  for (std::size_t i = 0; i < model.events.size(); ++i) {
    const auto& each = model.events[i];
    if (!is_bucket[i]) continue;
    found.smallest = found.all == 0 ? each.bytes : std::min(found.smallest, each.bytes);
    found.all += each.bytes;
  }
  return found;
}

}  // namespace cohort::plan
