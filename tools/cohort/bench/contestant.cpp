// SPDX-License-Identifier: BSD-3-Clause
#include "bench/contestant.h"

#include <cohort/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/environment.h"
#include "common/program.h"
#include "measure/measure.h"

namespace cohort::bench {

using namespace measure;

namespace {

/// Long enough for mpirun to end its ranks and clean up.
constexpr int grace_ms = 2000;

std::vector<std::string> environment_with(const std::map<std::string, std::string>& more) {
  auto variables = tool::own_environment();
  for (const auto& [name, value] : more) variables.insert_or_assign(name, value);
  return tool::environment_entries(variables);
}

FileDescriptor in_memory() {
  FileDescriptor memory(::memfd_create("cohort-bench-errors", MFD_CLOEXEC));
  if (!memory) throw Error("cannot keep a driver's messages in memory (memfd_create)");
  // Several processes write to it, and at the end each time.
  ::fcntl(memory.get(), F_SETFL, O_APPEND);
  return memory;
}

}  // namespace

std::string ContestantName::label() const {
  return is_peer ? backend : fmt::format("{} ({})", backend, memory);
}

Answer LocalContestant::ask(const Command& command) {
  return answer_to(*system_, command);
}

std::vector<std::pair<ContestantName, DriverStart>> read_peers(const std::string& file,
                                                               std::chrono::milliseconds timeout) {
  const auto refuse = [&](std::string_view why) { throw ValueError(fmt::format("--peers {}: {}", file, why)); };
  std::vector<std::pair<ContestantName, DriverStart>> peers;
  if (file.empty()) return peers;
  try {
    for (const auto& each : nlohmann::json::parse(std::ifstream(file))) {
      DriverStart start{.command = each.at("command"),
                        .environment = each.value("environment", std::map<std::string, std::string>()),
                        .timeout = timeout};
      if (start.command.empty()) refuse("a command is empty");
      tool::find_program(start.command.front());
      peers.emplace_back(
          ContestantName{
              .backend = each.at("name"), .memory = std::string(to_string(MemoryKind::ordinary)), .is_peer = true},
          std::move(start));
    }
  } catch (const nlohmann::json::exception& e) {
    refuse(e.what());
  } catch (const tool::ProgramError& e) {
    refuse(e.message);
  }
  return peers;
}

DrivenContestant::DrivenContestant(ContestantName name, const DriverStart& start, const tool::Guard& guard)
    : Contestant(std::move(name)), timeout_(start.timeout), errors_(in_memory()) {
  auto commands = tool::make_pipe();
  auto answers = tool::make_pipe();
  tool::ProcessSpec spec;
  spec.path = tool::find_program(start.command.front());
  spec.arguments = start.command;
  spec.environment = environment_with(start.environment);
  spec.input = commands.reading.get();
  spec.output = answers.writing.get();
  spec.error = errors_.get();
  spec.signals = tool::SignalState::now();
  ::getrlimit(RLIMIT_NOFILE, &spec.open_files);
  process_ = std::make_unique<tool::Process>(spec, guard);
  to_ = std::move(commands.writing);
  from_ = std::move(answers.reading);
  reader_ = LineReader(from_.get());
}

DrivenContestant::~DrivenContestant() {
  stop();
}

void DrivenContestant::stop() {
  to_.reset();  // its cue to end
  if (!process_) return;
  pollfd ended{process_->pidfd(), POLLIN, 0};
  const auto has_ended = [&] { return ::poll(&ended, 1, grace_ms) > 0; };
  if (!out_.empty() || !has_ended()) {
    process_->signal_group(SIGTERM);
    has_ended();
  }
  process_.reset();
}

std::string DrivenContestant::last_words() const {
  constexpr off_t at_most = 400;
  const auto size = ::lseek(errors_.get(), 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::clamp<off_t>(size, 0, at_most)), '\0');
  const auto n = ::pread(errors_.get(), text.data(), text.size(), std::max<off_t>(size - at_most, 0));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void DrivenContestant::give_up(const std::string& reason) {
  out_ = reason;
  stop();
  if (const auto words = last_words(); !words.empty()) out_ += ": " + words;
}

bool DrivenContestant::is_ready() {
  if (is_ready_ || !out_.empty()) return out_.empty();
  bool timed_out = false;
  // Programs that start others sometimes have something to say first.
  for (const auto deadline = Deadline::after(timeout_);;) {
    const auto line = reader_.next(deadline.poll_timeout(), timed_out);
    if (!line) {
      give_up(timed_out ? fmt::format("not ready after {} s", timeout_.count() / 1000) : "ended before it was ready");
      return false;
    }
    if (*line == ready_line) break;
  }
  is_ready_ = true;
  return true;
}

Answer DrivenContestant::exchange(std::string_view line) {
  if (!is_ready()) return {.error = out_};
  bool timed_out = false;
  if (write_line(to_.get(), line)) {
    if (const auto answer = reader_.next(static_cast<int>(timeout_.count()), timed_out)) return parse_answer(*answer);
  }
  give_up(timed_out ? fmt::format("no answer within {} s", timeout_.count() / 1000) : "ended unexpectedly");
  return {.error = out_};
}

Answer DrivenContestant::ask(const Command& command) {
  return exchange(to_line(command));
}

void DrivenContestant::release_memory() {
  exchange(release_line);
}

}  // namespace cohort::bench
