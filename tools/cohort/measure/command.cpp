// SPDX-License-Identifier: BSD-3-Clause
#include "measure/command.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace cohort::measure {

namespace {

using nlohmann::json;

[[noreturn]] void refuse(std::string_view why, std::string_view line) {
  throw ValueError(fmt::format("not a line of a benchmark driver ({}): \"{}\"", why, line));
}

/// What `read` makes of the line, with every mistake in it as the same kind of error.
template <class Read>
auto parsed(std::string_view line, Read read) {
  try {
    return read(json::parse(line));
  } catch (const json::exception& e) {
    refuse(e.what(), line);
  }
}

}  // namespace

std::string to_line(const Command& command) {
  return json{{"operation", to_string(command.operation)},
              {"dtype", to_string(command.dtype)},
              {"reduction", to_string(command.reduction)},
              {"bytes", command.bytes},
              {"root", command.root},
              {"warmup", command.warmup},
              {"iters", command.iters},
              {"batch", command.batch},
              {"back_to_back", command.back_to_back},
              {"blocking", command.blocking},
              {"in_place", command.in_place},
              {"check", command.check},
              {"limit_us", command.limit.count()}}
      .dump();
}

Command parse_command(std::string_view line) {
  return parsed(line, [](const json& from) {
    return Command{.operation = parse_operation(from.at("operation").get<std::string>()),
                   .dtype = parse_dtype(from.at("dtype").get<std::string>()),
                   .reduction = parse_reduction(from.at("reduction").get<std::string>()),
                   .bytes = from.at("bytes"),
                   .root = from.at("root"),
                   .warmup = from.at("warmup"),
                   .iters = std::max(from.at("iters").get<int>(), 1),
                   .batch = from.at("batch"),
                   .back_to_back = from.at("back_to_back"),
                   .blocking = from.at("blocking"),
                   .in_place = from.at("in_place"),
                   .check = from.at("check"),
                   .limit = std::chrono::microseconds(from.at("limit_us").get<std::int64_t>())};
  });
}

std::string to_line(const Answer& answer) {
  json line;
  if (!answer.refusal.empty()) {
    line["refusal"] = answer.refusal;
  } else if (!answer.error.empty()) {
    line["error"] = answer.error;
  } else {
    line = {{"us", answer.microseconds}, {"batch", answer.batch}, {"wrong", answer.wrong}};
  }
  // The error text of a library need not be UTF-8.
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

Answer parse_answer(std::string_view line) {
  return parsed(line, [line](const json& from) {
    Answer answer{.refusal = from.value("refusal", ""), .error = from.value("error", "")};
    if (!answer.refusal.empty() || !answer.error.empty()) return answer;
    answer.microseconds = from.at("us").get<std::vector<double>>();
    if (answer.microseconds.empty()) refuse("no samples", line);
    answer.batch = from.at("batch");
    answer.wrong = from.at("wrong");
    return answer;
  });
}

}  // namespace cohort::measure
