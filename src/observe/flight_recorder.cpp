// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/flight_recorder.h>

#include <fmt/format.h>

#include <array>
#include <memory>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/immortal.h"
#include "core/log_format.h"
#include "core/whole_file.h"
#include "observe/dump.h"
#include "observe/recorder.h"
#include "observe/signal_dump.h"

namespace cohort {

namespace {

using observe::Recorder;

void set_dump_signal(int signal) {
  // Destroyed when the process exits, which joins its thread.
  static std::mutex mutex;
  static std::unique_ptr<observe::SignalDump> current;
  const std::lock_guard lock(mutex);
  current.reset();
  if (signal == 0) return;
  current = std::make_unique<observe::SignalDump>(signal, [signal] {
    if (!FlightRecorder::dump(fmt::format("signal {}", signal))) {
      log_warn("flight recorder: got signal {}, but wrote no dump; COHORT_TRACE_FILE names the file", signal);
    }
  });
}

/// The recorder of this process. Never destroyed, because threads may record and dump while the process exits.
struct Recording {
  explicit Recording(const Env& env) : recorder({.capacity = env.trace_buffer_size, .stacks = env.trace_stacks}) {
    if (env.trace_signal != 0) set_dump_signal(env.trace_signal);
  }

  Recorder recorder;
  std::mutex dumping;  ///< one dump at a time; also guards the writer
  FlightRecorder::Writer writer;
};

Recording& recording() {
  static Immortal<Recording> instance(Env::read());
  return *instance;
}

int process_rank(const Env& env) {
  const int rank = recording().recorder.first_rank();
  return rank >= 0 ? rank : env.integer("RANK").value_or(0);
}

nlohmann::json current_dump(const DumpOptions& options, int rank, std::string_view reason = {}) {
  return observe::make_dump(recording().recorder.snapshot(), rank, options, reason);
}

}  // namespace

Recorder& Recorder::process() {
  return recording().recorder;
}

std::string FlightRecorder::dump_json(const DumpOptions& options) {
  return observe::encode_json(current_dump(options, process_rank(Env::read())));
}

std::string FlightRecorder::dump_cbor(const DumpOptions& options) {
  return observe::encode_cbor(current_dump(options, process_rank(Env::read())));
}

std::size_t FlightRecorder::size() {
  return recording().recorder.size();
}

std::size_t FlightRecorder::capacity() {
  return recording().recorder.capacity();
}

void FlightRecorder::reset_all() {
  recording().recorder.reset_all();
}

void FlightRecorder::set_writer(Writer writer) {
  const std::lock_guard lock(recording().dumping);
  recording().writer = std::move(writer);
}

bool FlightRecorder::dump(std::string_view reason) noexcept {
  try {
    const auto env = Env::read();
    const std::lock_guard lock(recording().dumping);
    const auto& writer = recording().writer;
    if (!writer && env.trace_file.empty()) return false;
    const int rank = process_rank(env);
    const auto bytes = observe::encode_json(current_dump({}, rank, reason));
    if (writer) {
      writer(bytes, rank);
    } else {
      const auto path = fmt::format("{}{}", env.trace_file, rank);
      write_whole_file(path, bytes);
      log_info("flight recorder: wrote {} ({})", path, reason);
    }
    return true;
  } catch (const std::exception& e) {
    log_warn("flight recorder: the dump was not written: {}", e.what());
  } catch (...) {
    log_warn("flight recorder: the dump was not written");
  }
  return false;
}

void FlightRecorder::dump_on_signal(int signal) {
  static_cast<void>(recording());  // applies the environment first, so that it does not override this call later
  set_dump_signal(signal);
}

}  // namespace cohort
