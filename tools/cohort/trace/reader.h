// SPDX-License-Identifier: BSD-3-Clause
//
// Reads the dumps that flight recorders wrote. They are untrusted files: whatever is in one, reading it gives a
// TraceDump or throws a ValueError that says what is wrong with it. Texts are shortened and freed of control
// characters, so that they can be shown on a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::trace {

enum class TraceState : std::uint8_t { scheduled, started, completed, failed };
std::string_view to_string(TraceState state);

struct TraceBuffers {
  std::vector<std::vector<std::int64_t>> sizes{};
  std::vector<std::string> dtypes{};

  std::int64_t elements() const;
  friend bool operator==(const TraceBuffers&, const TraceBuffers&) = default;
};

struct TraceEntry {
  std::string group{};  ///< its id
  int rank = -1;        ///< the global rank of the process that recorded it
  std::int64_t record_id = 0;
  std::int64_t collective_sequence = 0;
  std::int64_t p2p_sequence = 0;
  std::int64_t op_id = 0;
  std::string backend{};
  std::string op{};
  bool is_p2p = false;
  int peer = -1;  ///< global rank of the other end of a point-to-point operation; -1: any, or unknown
  TraceBuffers input{};
  TraceBuffers output{};
  TraceState state = TraceState::scheduled;
  std::int64_t created_ns = 0;  ///< since 1970; 0: not known
  std::int64_t started_ns = 0;
  std::int64_t completed_ns = 0;
  std::int64_t timeout_ms = 0;
  std::string thread{};

  std::int64_t sequence() const { return is_p2p ? p2p_sequence : collective_sequence; }
};

struct TraceGroup {
  std::string id{};
  std::string name{};
  std::string description{};
  std::vector<int> ranks{};  ///< global ranks of the members
};

/// The sequence numbers of the last collectives that reached each stage on one rank of a group; -1: none.
struct TraceStatus {
  std::string group{};
  int rank = -1;
  std::int64_t enqueued = -1;
  std::int64_t started = -1;
  std::int64_t completed = -1;
  std::string completed_op{};
};

/// What one process wrote: usually about one rank, about several where ranks are threads.
struct TraceDump {
  std::string file{};
  int rank = -1;
  std::string host{};
  std::string reason{};
  std::map<std::string, TraceGroup> groups{};  ///< by id
  std::vector<TraceStatus> statuses{};
  std::vector<TraceEntry> entries{};  ///< in recording order
};

inline constexpr std::size_t longest_dump = std::size_t{1} << 30U;
/// `file` is for messages; its last digits are taken as the rank where the dump does not contain it.
TraceDump read_trace(std::string_view bytes, const std::string& file);
/// Throws an Error where the file cannot be read, is a link, no regular file or too long for a dump.
TraceDump read_trace_file(const std::string& path);

}  // namespace cohort::trace
