// SPDX-License-Identifier: BSD-3-Clause
//
// A recorded step as its schedule sees it: computing, collectives, and waits for collectives, in the order of a replay.
#pragma once

#include <cohort/torch/recorded_step.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::plan {

struct StepGroup {
  std::string id{};
  std::string label{};  ///< empty: none
  int ranks = 1;
  int stride = 1;  ///< the distance between neighbours, as ranks of the job
  std::string name() const { return label.empty() ? id : label; }
};

struct StepEvent {
  enum class Kind : std::uint8_t { compute, collective, wait };
  Kind kind = Kind::compute;
  double seconds = 0;  ///< that the rank computes; of an asynchronous collective: until it is issued
  // Of a collective.
  std::size_t collective = 0;  ///< its number
  std::string operation{};     ///< as groups name it
  std::string element{};       ///< dtype and reduction: those that differ in it are not put together
  std::size_t bytes = 0;
  std::size_t group = 0;  ///< in StepModel::groups
  bool is_async = false;
  // Of a wait.
  std::vector<std::size_t> awaited{};  ///< the collectives
};

struct StepModel {
  std::vector<StepGroup> groups{};  ///< those that collectives use
  std::vector<StepEvent> events{};
  std::size_t collectives = 0;
  bool has_times = false;  ///< false: nothing was measured, and computing takes no time

  /// The ranks that the groups reach over.
  int world() const;
};

/// Each wait is for the asynchronous collectives that made or wrote its values. What a blocking collective or a wait
/// took in the recording is left out: a prediction has its own times for them.
StepModel model_of(const RecordedStep& step);

/// What becomes of all_gather and reduce_scatter when a group grows.
enum class Parts : std::uint8_t {
  shrink,  ///< the whole stays: parameters or optimizer states in shards
  stay,    ///< each rank's part stays: values that every rank contributes
};

/// The group that grows with the world unless the user names another: the outermost (with the largest stride).
std::size_t outermost_group(const StepModel& model);

/// The step on another number of ranks: this group has the rest of the ranks that the other dimensions leave. Groups
/// that contain it grow with it. Throws a ValueError if the world is no multiple of the other dimensions.
StepModel resized(const StepModel& model, std::size_t growing, int world, Parts parts);

/// Neighbouring asynchronous all_reduces of a group put together until they have at least this many bytes, as the
/// gradients of DistributedDataParallel are in buckets (its last one may be blocking): a bucket starts when its last
/// part is there, and who waits for a part waits for the bucket. Parts are never split, so a recording with small
/// buckets leaves more choice.
StepModel with_buckets(const StepModel& model, std::size_t bytes);

/// The bytes of those all_reduces: of all, and of the smallest. Both are 0 if there are none.
struct BucketBytes {
  std::size_t all = 0;
  std::size_t smallest = 0;
};
BucketBytes bucket_bytes(const StepModel& model);

}  // namespace cohort::plan
