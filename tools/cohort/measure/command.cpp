// SPDX-License-Identifier: BSD-3-Clause
#include "measure/command.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/parse.h"

namespace cohort::bench {

namespace {

constexpr std::string_view ok = "ok";
constexpr std::string_view refused = "refused ";
constexpr std::string_view error = "error ";

[[noreturn]] void refuse(std::string_view what, std::string_view line) {
  throw ValueError(fmt::format("not a line of a benchmark driver ({}): \"{}\"", what, line));
}

/// The words of "name=value" form behind the fixed ones.
class Fields {
 public:
  Fields(const std::vector<std::string_view>& words, std::size_t first, std::string_view line)
      : words_(words.begin() + static_cast<std::ptrdiff_t>(first), words.end()), line_(line) {}

  std::string_view text(std::string_view name) const {
    for (const auto word : words_) {
      if (word.size() > name.size() && word.substr(0, name.size()) == name && word[name.size()] == '=') {
        return word.substr(name.size() + 1);
      }
    }
    refuse(name, line_);
  }

  template <class T>
  T number(std::string_view name) const {
    const auto value = parse_integer<T>(text(name));
    if (!value || *value < 0) refuse(name, line_);
    return *value;
  }

 private:
  std::vector<std::string_view> words_;
  std::string_view line_;
};

std::vector<double> parse_list(std::string_view text, std::string_view line) {
  std::vector<double> values;
  for (const auto piece : split(text, ',')) {
    double value = 0;
    const auto [stop, failed] = std::from_chars(piece.data(), piece.data() + piece.size(), value);
    if (failed != std::errc{} || stop != piece.data() + piece.size() || !(value >= 0)) refuse("us", line);
    values.push_back(value);
  }
  return values;
}

}  // namespace

std::string to_line(const Command& command) {
  return fmt::format(
      "{} {} {} {} root={} warmup={} iters={} batch={} back_to_back={:d} blocking={:d} in_place={:d} check={:d} "
      "limit_us={}",
      to_string(command.operation), to_string(command.dtype), to_string(command.reduction), command.bytes, command.root,
      command.warmup, command.iters, command.batch, command.back_to_back, command.blocking, command.in_place,
      command.check, command.limit.count());
}

Command parse_command(std::string_view line) {
  const auto words = split(line, ' ');
  if (words.size() < 4) refuse("too short", line);
  const auto bytes = parse_integer<std::size_t>(words[3]);
  if (!bytes) refuse("bytes", line);
  const Fields fields(words, 4, line);
  return {.operation = parse_operation(words[0]),
          .dtype = parse_dtype(words[1]),
          .reduction = parse_reduction(words[2]),
          .bytes = *bytes,
          .root = fields.number<int>("root"),
          .warmup = fields.number<int>("warmup"),
          .iters = std::max(fields.number<int>("iters"), 1),
          .batch = fields.number<int>("batch"),
          .back_to_back = fields.number<int>("back_to_back") != 0,
          .blocking = fields.number<int>("blocking") != 0,
          .in_place = fields.number<int>("in_place") != 0,
          .check = fields.number<int>("check") != 0,
          .limit = std::chrono::microseconds(fields.number<std::int64_t>("limit_us"))};
}

std::string to_line(const Answer& answer) {
  const auto in_one_line = [](std::string_view kind, std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return fmt::format("{}{}", kind, text);
  };
  if (!answer.refusal.empty()) return in_one_line(refused, answer.refusal);
  if (!answer.error.empty()) return in_one_line(error, answer.error);
  return fmt::format("{} batch={} wrong={} us={:.4f}", ok, answer.batch, answer.wrong,
                     fmt::join(answer.microseconds, ","));
}

Answer parse_answer(std::string_view line) {
  Answer answer;
  if (line.substr(0, refused.size()) == refused) {
    answer.refusal = line.substr(refused.size());
    return answer;
  }
  if (line.substr(0, error.size()) == error) {
    answer.error = line.substr(error.size());
    return answer;
  }
  const auto words = split(line, ' ');
  if (words.front() != ok) refuse("neither ok nor refused nor error", line);
  const Fields fields(words, 1, line);
  answer.batch = fields.number<int>("batch");
  answer.wrong = fields.number<std::uint64_t>("wrong");
  answer.microseconds = parse_list(fields.text("us"), line);
  return answer;
}

}  // namespace cohort::bench
