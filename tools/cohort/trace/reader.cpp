// SPDX-License-Identifier: BSD-3-Clause
#include "trace/reader.h"

#include <cohort/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/parse.h"
#include "core/whole_file.h"
#include "trace/cbor_check.h"

namespace cohort::trace {

namespace {

using nlohmann::json;

constexpr std::size_t longest_text = 256;
/// The deepest nesting that is accepted; a dump needs 5 levels.
constexpr int deepest = 32;
constexpr int highest_rank = 1 << 24;

class Malformed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Parses a text without storing it, to check that it is not nested too deeply: what is made of it is destroyed level
/// by level.
class DepthCheck : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool key(string_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override { return ++depth_ <= deepest; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t /*size*/) override { return ++depth_ <= deepest; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t position, const std::string& /*token*/, const json::exception& /*error*/) override {
    throw Malformed(fmt::format("it is cut off or malformed at byte {}", position));
  }

 private:
  int depth_ = 0;
};

json parse(std::string_view bytes) {
  if (bytes.empty()) throw Malformed("it is empty");
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  const auto* const first = std::find_if_not(bytes.begin(), bytes.end(), is_space);
  const bool is_text = first != bytes.end() && *first == '{';
  if (is_text) {
    DepthCheck check;
    if (!json::sax_parse(bytes.begin(), bytes.end(), &check)) throw Malformed("it is nested too deeply");
  } else {
    // A CBOR map begins with a byte from 0xa0 to 0xbf.
    if ((static_cast<unsigned char>(bytes[0]) & 0xe0U) != 0xa0U) throw Malformed("neither JSON nor CBOR");
    if (const auto problem = problem_with_cbor(bytes, deepest)) throw Malformed(*problem);
  }
  auto document = is_text ? json::parse(bytes.begin(), bytes.end(), nullptr, false)
                          : json::from_cbor(bytes.begin(), bytes.end(), true, false);
  if (!document.is_object()) throw Malformed("it is not a map");
  return document;
}

std::string shown(const std::string& text) {
  std::string result = text.substr(0, longest_text);
  for (auto& c : result) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code >= 0x7f) c = '?';
  }
  return result;
}

const json& member(const json& object, const char* key) {
  static const json none;
  const auto it = object.find(key);
  return it == object.end() ? none : *it;
}

std::string text(const json& object, const char* key) {
  const auto& value = member(object, key);
  if (value.is_null()) return {};
  if (!value.is_string()) throw Malformed(fmt::format("\"{}\" is not text", key));
  return shown(value.get_ref<const std::string&>());
}

/// PyTorch writes the numbers of pg_status as text in JSON.
std::optional<std::int64_t> number(const json& value) {
  if (value.is_number_unsigned()) {
    const auto n = value.get<std::uint64_t>();
    if (n > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    return static_cast<std::int64_t>(n);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_string()) return parse_integer<std::int64_t>(value.get_ref<const std::string&>());
  return std::nullopt;
}

std::int64_t number(const json& object, const char* key, std::int64_t otherwise) {
  const auto& value = member(object, key);
  if (value.is_null()) return otherwise;
  const auto n = number(value);
  if (!n) throw Malformed(fmt::format("\"{}\" is not a number", key));
  return *n;
}

/// Nanoseconds since 1970.
std::int64_t time(const json& object, const char* key) {
  const auto ns = number(object, key, 0);
  if (ns < 0) throw Malformed(fmt::format("\"{}\" is before 1970", key));
  return ns;
}

bool truth(const json& object, const char* key) {
  const auto& value = member(object, key);
  if (value.is_null()) return false;
  if (!value.is_boolean()) throw Malformed(fmt::format("\"{}\" is neither true nor false", key));
  return value.get<bool>();
}

int checked_rank(std::int64_t rank) {
  if (rank < -1 || rank > highest_rank) throw Malformed(fmt::format("there is no rank {}", rank));
  return static_cast<int>(rank);
}

/// "[0, 1, 2]"
std::vector<int> ranks(std::string_view list) {
  if (list.starts_with('[') && list.ends_with(']')) list = list.substr(1, list.size() - 2);
  std::vector<int> result;
  if (list.find_first_not_of(' ') == std::string_view::npos) return result;
  for (auto piece : split(list, ',')) {
    piece.remove_prefix(std::min(piece.find_first_not_of(' '), piece.size()));
    const auto rank = parse_integer<int>(piece);
    if (!rank || *rank < 0 || *rank > highest_rank) throw Malformed("\"ranks\" is not a list of ranks");
    result.push_back(*rank);
  }
  return result;
}

TraceGroup read_group(const std::string& id, const json& config) {
  if (!config.is_object()) throw Malformed("a group in \"pg_config\" is not a map");
  TraceGroup group{shown(id), text(config, "name"), text(config, "desc"), {}};
  if (group.name.empty()) group.name = group.id;
  const auto& list = member(config, "ranks");
  if (list.is_string()) group.ranks = ranks(list.get_ref<const std::string&>());
  return group;
}

/// The global rank of a member of a group, if the dump contains it.
int global_rank(const TraceDump& dump, const std::string& group, std::int64_t member_rank) {
  const auto it = dump.groups.find(group);
  if (it == dump.groups.end() || member_rank < 0) return -1;
  const auto& members = it->second.ranks;
  return static_cast<std::uint64_t>(member_rank) < members.size() ? members[static_cast<std::size_t>(member_rank)] : -1;
}

int rank_of(const TraceDump& dump, const std::string& group, const json& object) {
  const auto rank = global_rank(dump, group, number(object, "group_rank", -1));
  return rank >= 0 ? rank : dump.rank;
}

TraceStatus read_status(const TraceDump& dump, const json& object) {
  if (!object.is_object()) throw Malformed("a status in \"pg_status\" is not a map");
  TraceStatus status;
  status.group = text(object, "group");
  status.rank = rank_of(dump, status.group, object);
  status.enqueued = number(object, "last_enqueued_collective", -1);
  status.started = number(object, "last_started_collective", -1);
  status.completed = number(object, "last_completed_collective", -1);
  status.completed_op = text(object, "last_completed_op");
  return status;
}

TraceBuffers read_buffers(const json& entry, const char* sizes_key, const char* dtypes_key) {
  TraceBuffers buffers;
  const auto& sizes = member(entry, sizes_key);
  const auto& dtypes = member(entry, dtypes_key);
  if (!(sizes.is_null() || sizes.is_array()) || !(dtypes.is_null() || dtypes.is_array())) {
    throw Malformed(fmt::format("\"{}\" or \"{}\" is not a list", sizes_key, dtypes_key));
  }
  for (const auto& buffer : sizes) {
    if (!buffer.is_array()) throw Malformed(fmt::format("\"{}\" is not a list of lists", sizes_key));
    auto& dims = buffers.sizes.emplace_back();
    for (const auto& size : buffer) {
      const auto n = number(size);
      if (!n || *n < 0) throw Malformed(fmt::format("\"{}\" contains a value that is not a size", sizes_key));
      dims.push_back(*n);
    }
  }
  for (const auto& dtype : dtypes) {
    if (!dtype.is_string()) throw Malformed(fmt::format("\"{}\" is not a list of texts", dtypes_key));
    buffers.dtypes.push_back(shown(dtype.get_ref<const std::string&>()));
  }
  return buffers;
}

/// "shm:all_reduce", "shm:send 0->1", "shm:recv 1<-0", "shm:recv 1<-any"
void read_name(const TraceDump& dump, std::string_view name, TraceEntry& entry) {
  if (const auto colon = name.find(':'); colon != std::string_view::npos) {
    entry.backend = name.substr(0, colon);
    name.remove_prefix(colon + 1);
  }
  const auto space = name.find(' ');
  entry.op = name.substr(0, space);
  if (space == std::string_view::npos) return;
  const auto ends = name.substr(space + 1);
  for (const auto* const arrow : {"->", "<-"}) {
    const auto at = ends.find(arrow);
    if (at == std::string_view::npos) continue;
    const auto peer = parse_integer<int>(ends.substr(at + 2));
    if (peer) entry.peer = global_rank(dump, entry.group, *peer);
  }
}

TraceState read_state(const json& entry) {
  const auto state = text(entry, "state");
  if (state == "completed") return TraceState::completed;
  if (truth(entry, "retired")) return TraceState::failed;
  if (state == "started") return TraceState::started;
  if (state == "scheduled") return TraceState::scheduled;
  throw Malformed(fmt::format("\"state\" is \"{}\": scheduled, started or completed", state));
}

TraceEntry read_entry(const TraceDump& dump, const json& object) {
  if (!object.is_object()) throw Malformed("it is not a map");
  TraceEntry entry;
  const auto& group = member(object, "process_group");
  if (!group.is_array() || group.empty() || !group[0].is_string()) {
    throw Malformed("\"process_group\" is not a name and a description");
  }
  entry.group = shown(group[0].get_ref<const std::string&>());
  entry.rank = rank_of(dump, entry.group, object);
  entry.record_id = number(object, "record_id", 0);
  entry.collective_sequence = number(object, "collective_seq_id", 0);
  entry.p2p_sequence = number(object, "p2p_seq_id", 0);
  entry.op_id = number(object, "op_id", 0);
  entry.is_p2p = truth(object, "is_p2p");
  read_name(dump, text(object, "profiling_name"), entry);
  entry.input = read_buffers(object, "input_sizes", "input_dtypes");
  entry.output = read_buffers(object, "output_sizes", "output_dtypes");
  entry.state = read_state(object);
  entry.created_ns = time(object, "time_created_ns");
  entry.started_ns = time(object, "time_discovered_started_ns");
  entry.completed_ns = time(object, "time_discovered_completed_ns");
  entry.timeout_ms = number(object, "timeout_ms", 0);
  entry.thread = text(object, "thread_name");
  return entry;
}

int rank_in_name(const std::string& file) {
  const auto last = file.find_last_not_of("0123456789");
  const auto digits = last == std::string::npos ? file : file.substr(last + 1);
  return parse_integer<int>(digits).value_or(-1);
}

TraceDump read_document(const json& document, const std::string& file) {
  const auto version = text(document, "version");
  if (version.empty()) throw Malformed("it has no \"version\"");
  if (!version.starts_with("2.")) throw Malformed(fmt::format("version {} is not supported, only version 2", version));
  TraceDump dump;
  dump.file = file;
  dump.rank = checked_rank(number(document, "rank", rank_in_name(file)));
  dump.host = text(document, "host");
  dump.reason = text(document, "reason");
  for (const auto& [id, config] : member(document, "pg_config").items()) {
    auto group = read_group(id, config);
    dump.groups.insert_or_assign(group.id, std::move(group));
  }
  for (const auto& [number, status] : member(document, "pg_status").items()) {
    dump.statuses.push_back(read_status(dump, status));
  }
  const auto& entries = member(document, "entries");
  if (!entries.is_null() && !entries.is_array()) throw Malformed("\"entries\" is not a list");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    try {
      dump.entries.push_back(read_entry(dump, entries[i]));
    } catch (const Malformed& e) {
      throw Malformed(fmt::format("entry {}: {}", i, e.what()));
    }
  }
  return dump;
}

}  // namespace

std::string_view to_string(TraceState state) {
  constexpr std::array<std::string_view, 4> names = {"scheduled", "started", "completed", "failed"};
  return names.at(static_cast<std::size_t>(state));
}

std::int64_t TraceBuffers::elements() const {
  // Sizes come from a file: in unsigned arithmetic a product that is too large wraps instead of being undefined.
  std::uint64_t sum = 0;
  for (const auto& dims : sizes) {
    std::uint64_t product = 1;
    for (const auto size : dims) product *= static_cast<std::uint64_t>(size);
    sum += product;
  }
  return static_cast<std::int64_t>(sum);
}

TraceDump read_trace(std::string_view bytes, const std::string& file) {
  try {
    return read_document(parse(bytes), file);
  } catch (const Malformed& e) {
    throw ValueError(fmt::format("{} is not a flight recorder's dump: {}", file, e.what()));
  } catch (const json::exception& e) {
    throw ValueError(fmt::format("{} is not a flight recorder's dump: {}", file, e.what()));
  }
}

TraceDump read_trace_file(const std::string& path) {
  return read_trace(read_whole_file(path, longest_dump), path);
}

}  // namespace cohort::trace
