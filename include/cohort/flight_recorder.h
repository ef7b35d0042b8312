// SPDX-License-Identifier: BSD-3-Clause
//
// The flight recorder keeps the most recent operations of all groups of this process, so that the dumps of a job that
// hangs show what each rank was doing. It is on by default, because recording an operation costs only about 20 ns, and
// keeps the newest 2000 operations (COHORT_TRACE_BUFFER_SIZE; 0 turns it off). A dump is written
//
// - when an operation of a group fails for the first time, and by FlightRecorder::dump();
// - when the process gets a signal: COHORT_TRACE_SIGNAL=USR2, or FlightRecorder::dump_on_signal(SIGUSR2).
//
// It goes to the file that COHORT_TRACE_FILE names, with the rank appended. If no file is named, nothing is written.
// `cohort trace FILE...` reads the dumps of all ranks and reports what went wrong.
//
//   cohort::FlightRecorder::dump("before the checkpoint");
//   cohort::FlightRecorder::set_writer([](std::string_view dump, int rank) { upload(rank, dump); });
//   std::cout << cohort::FlightRecorder::dump_json({.only_active = true});       // operations that have not ended
//
// The dump has the format of PyTorch's flight recorder (version 2.10): pg_config, pg_status and entries, with a few
// additional fields. Collectives and point-to-point operations have separate sequence numbers. A time that is not known
// is 0; an entry that is retired but not completed has failed. All functions are thread-safe.
#pragma once

#include <cohort/export.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace cohort {

struct DumpOptions {
  bool only_active = false;  ///< leave out operations that have completed
  bool stacks = true;        ///< include call stacks, if they were recorded (COHORT_TRACE_STACKS)
};

class COHORT_API FlightRecorder {
 public:
  FlightRecorder() = delete;  ///< there is one flight recorder in each process

  static std::string dump_json(const DumpOptions& options = {});
  /// The same content as CBOR (RFC 8949).
  static std::string dump_cbor(const DumpOptions& options = {});

  /// The number of operations kept now, and the largest number that is kept.
  static std::size_t size();
  static std::size_t capacity();

  /// Hides everything that was recorded so far and numbers records from 0 again. Operations in progress are hidden too;
  /// when they end, they change no newer record.
  static void reset_all();

  /// Is given the dump as JSON and the rank of this process. Called by one thread at a time.
  using Writer = std::function<void(std::string_view bytes, int rank)>;
  /// Passes dumps to `writer` instead of writing the file that COHORT_TRACE_FILE names. Replaces an earlier writer;
  /// null restores the file.
  static void set_writer(Writer writer);

  /// Writes a dump that contains the reason. Returns false if there is neither a file nor a writer, or if writing
  /// failed, which is logged. Never throws, because it is called where something has already gone wrong.
  static bool dump(std::string_view reason) noexcept;

  /// From now on, this signal makes a thread of the recorder write a dump. 0 restores the program's earlier handling of
  /// the signal. Throws ValueError if the signal cannot be caught.
  static void dump_on_signal(int signal);
};

}  // namespace cohort
