// SPDX-License-Identifier: BSD-3-Clause
#include "observe/dump.h"

#include <cohort/version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "observe/stack_frames.h"

namespace cohort::observe {

namespace {

using nlohmann::json;

constexpr auto format_version = "2.10";

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string ranks_text(const GroupInfo& info) {
  if (!info.global_ranks.empty()) return fmt::format("[{}]", fmt::join(info.global_ranks, ", "));
  std::vector<int> ranks(static_cast<std::size_t>(std::max(info.size, 0)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return fmt::format("[{}]", fmt::join(ranks, ", "));
}

/// The sizes of each buffer. Only those of the first buffer were recorded. If the others cannot all have the same
/// sizes, they are shown as one flat buffer with the remaining elements, so that the total is right.
json sizes_of(const ShapeRecord& shape) {
  constexpr std::uint16_t listed = 64;
  if (shape.buffers == 0) return json::array();
  const std::vector<std::int64_t> first(shape.sizes.begin(), shape.sizes.begin() + shape.dimensions);
  const auto elements = std::accumulate(first.begin(), first.end(), std::int64_t{1}, std::multiplies<>());
  const bool uniform = elements * shape.buffers == shape.elements;
  auto sizes = json::array({first});
  if (shape.buffers == 1) return sizes;
  if (!uniform || shape.buffers > listed) {
    sizes.push_back(json::array({shape.elements - elements}));
    return sizes;
  }
  for (std::uint16_t i = 1; i < shape.buffers; ++i) sizes.push_back(first);
  return sizes;
}

json dtypes_of(const ShapeRecord& shape, std::size_t buffers) {
  json dtypes = std::vector<std::string_view>(buffers, to_string(shape.dtype));
  return dtypes;
}

std::string profiling_name(const Record& record, const GroupInfo& info) {
  auto name = fmt::format("{}:{}", info.backend, record.op);
  if (!record.is_p2p) return name;
  const auto peer = record.peer < 0 ? std::string("any") : std::to_string(record.peer);
  return record.op == "send" ? fmt::format("{} {}->{}", name, info.rank, peer)
                             : fmt::format("{} {}<-{}", name, info.rank, peer);
}

/// The names of threads; empty for threads that have ended.
class ThreadNames {
 public:
  const std::string& operator[](std::uint32_t thread) {
    const auto [it, is_new] = names_.try_emplace(thread);
    if (is_new) {
      std::ifstream file(fmt::format("/proc/self/task/{}/comm", thread));
      std::getline(file, it->second);
    }
    return it->second;
  }

 private:
  std::map<std::uint32_t, std::string> names_;
};

json frames_of(const Record& record) {
  auto frames = json::array();
  for (const auto* const address : record.frames) {
    const auto frame = describe_frame(address);
    frames.push_back({{"name", frame.function}, {"filename", frame.file}, {"line", 0}});
  }
  return frames;
}

json entry_of(const Record& record, const GroupSnapshot& group, const Snapshot& snapshot, ThreadNames& threads,
              bool stacks) {
  const auto when = [&snapshot](std::uint64_t at) { return at == 0 ? 0 : snapshot.scale.epoch_ns(at); };
  auto input_sizes = sizes_of(record.input);
  auto output_sizes = sizes_of(record.output);
  json entry{
      {"record_id", record.position - snapshot.first_position},
      {"pg_id", record.group},
      {"process_group", {group.info.id, group.info.description}},
      {"group_rank", group.info.rank},
      {"collective_seq_id", record.collective_sequence},
      {"p2p_seq_id", record.p2p_sequence},
      {"op_id", record.op_id},
      {"profiling_name", profiling_name(record, group.info)},
      {"time_created_ns", when(record.created)},
      {"input_dtypes", dtypes_of(record.input, input_sizes.size())},
      {"output_dtypes", dtypes_of(record.output, output_sizes.size())},
      {"state", record.completed != 0 ? "completed"
                : record.started != 0 ? "started"
                                      : "scheduled"},
      {"time_discovered_started_ns", when(record.started)},
      {"time_discovered_completed_ns", when(record.completed)},
      {"retired", record.completed != 0 || record.failed != 0},
      {"timeout_ms", record.timeout_ms},
      {"is_p2p", record.is_p2p},
      {"thread_id", std::to_string(record.thread)},
      {"thread_name", threads[record.thread]},
      {"frames", stacks ? frames_of(record) : json::array()},
  };
  entry["input_sizes"] = std::move(input_sizes);
  entry["output_sizes"] = std::move(output_sizes);
  if (record.completed != 0) {
    const auto from = record.started != 0 ? record.started : record.created;
    entry["duration_ms"] = static_cast<double>(snapshot.scale.duration_ns(from, record.completed)) / 1e6;
  }
  return entry;
}

json status_of(const GroupSnapshot& group) {
  json status{{"group", group.info.id}, {"group_rank", group.info.rank}};
  const auto put = [&status](const std::string& stage, const Progress& progress) {
    status["last_" + stage + "_collective"] = progress.sequence;
    status["last_" + stage + "_op"] = progress.op;
    status["last_" + stage + "_numel"] = progress.elements;
  };
  put("enqueued", group.enqueued);
  put("started", group.started);
  put("completed", group.completed);
  return status;
}

}  // namespace

json make_dump(const Snapshot& snapshot, int rank, const DumpOptions& options, std::string_view reason) {
  json dump{{"version", format_version},
            {"comm_lib_version", fmt::format("cohort {}", version().text)},
            {"rank", rank},
            {"host", host_name()},
            {"pid", ::getpid()},
            {"dropped", snapshot.dropped},
            {"pg_config", json::object()},
            {"pg_status", json::object()}};
  if (!reason.empty()) dump["reason"] = reason;
  for (const auto& [number, group] : snapshot.groups) {
    const auto& info = group.info;
    dump["pg_config"][info.id] = {{"name", info.name.empty() ? info.id : info.name},
                                  {"desc", info.description},
                                  {"ranks", ranks_text(info)},
                                  {"backend", info.backend}};
    dump["pg_status"][std::to_string(number)] = status_of(group);
  }
  ThreadNames threads;
  auto entries = json::array();
  for (const auto& record : snapshot.records) {
    if (options.only_active && record.completed != 0) continue;
    entries.push_back(entry_of(record, snapshot.groups.at(record.group), snapshot, threads, options.stacks));
  }
  if (!entries.empty()) dump["entries"] = std::move(entries);
  return dump;
}

std::string encode_json(const json& dump) {
  // Names that users have given need not be UTF-8.
  return dump.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string encode_cbor(const json& dump) {
  std::string bytes;
  json::to_cbor(dump, bytes);
  return bytes;
}

}  // namespace cohort::observe
