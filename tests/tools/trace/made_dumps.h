// SPDX-License-Identifier: BSD-3-Clause
//
// Dumps of simulated ranks, made with the recorder itself.
#pragma once

#include <cohort/dtype.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "observe/dump.h"
#include "observe/recorder.h"
#include "trace/reader.h"

namespace cohort::test {

/// One rank of a job, with a recorder of its own.
class MadeRank {
 public:
  explicit MadeRank(int rank) : rank_(rank) {}

  observe::GroupTrace& join(const std::string& id, std::vector<int> members, const std::string& name = {}) {
    int own = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank_) own = static_cast<int>(i);
    }
    const int size = static_cast<int>(members.size());
    return groups_.emplace_back(observe::GroupInfo{.id = id,
                                                   .name = name,
                                                   .description = "made up",
                                                   .backend = "shm",
                                                   .global_ranks = std::move(members),
                                                   .rank = own,
                                                   .size = size},
                                *recorder_);
  }

  std::string json(const DumpOptions& options = {}, std::string_view reason = {}) const {
    return observe::encode_json(observe::make_dump(recorder_->snapshot(), rank_, options, reason));
  }
  std::string cbor() const { return observe::encode_cbor(observe::make_dump(recorder_->snapshot(), rank_, {})); }
  trace::TraceDump dump(const DumpOptions& options = {}) const {
    return trace::read_trace(json(options), "trace_" + std::to_string(rank_));
  }
  observe::Recorder& recorder() { return *recorder_; }

 private:
  int rank_;
  std::unique_ptr<observe::Recorder> recorder_ = std::make_unique<observe::Recorder>(observe::RecorderOptions{});
  std::deque<observe::GroupTrace> groups_;
};

struct Call {
  const char* op = "all_reduce";
  std::int64_t sequence = 1;
  std::vector<std::int64_t> sizes{4};
  DType dtype = DType::f32;
  int peer = -1;  ///< the peer's rank in the group, if is_p2p
  bool is_p2p = false;
};

inline observe::RecordId begin(observe::GroupTrace& group, const Call& call) {
  std::int64_t elements = 1;
  for (const auto size : call.sizes) elements *= size;
  const observe::Shape shape{call.dtype, 1, elements, call.sizes};
  const std::string_view op = call.op;
  return group.begin({.op = call.op,
                      .is_p2p = call.is_p2p,
                      .starts_at_once = true,
                      .collective_sequence = call.is_p2p ? 0 : call.sequence,
                      .p2p_sequence = call.is_p2p ? call.sequence : 0,
                      .input = op == "recv" ? observe::Shape{} : shape,
                      .output = op == "send" ? observe::Shape{} : shape,
                      .timeout_ms = 30000,
                      .peer = call.peer});
}

inline void run(observe::GroupTrace& group, const Call& call) {
  group.completed(begin(group, call));
}

}  // namespace cohort::test
