// SPDX-License-Identifier: BSD-3-Clause
//
// The flight recorder keeps the last operations of all groups of this process, so that a job that hangs can say what
// each rank was doing. It is always on, since recording an operation costs about 20 ns, and keeps the newest 2000
// (COHORT_TRACE_BUFFER_SIZE; 0 turns it off). A dump of it is written
//
// - when an operation times out, and on FlightRecorder::dump(), to the file COHORT_TRACE_FILE with the rank added;
// - when a signal comes: COHORT_TRACE_SIGNAL=USR2, or FlightRecorder::dump_on_signal(SIGUSR2).
//
// Where no file is named nothing is written. `cohort trace FILE...` reads the dumps of all ranks and says what went
// wrong.
//
//   cohort::FlightRecorder::dump("before the checkpoint");
//   cohort::FlightRecorder::set_writer([](std::string_view dump, int rank) { upload(rank, dump); });
//   std::cout << cohort::FlightRecorder::dump_json({.only_active = true});       // what has not ended yet
//
// The dump has PyTorch's form (version 2.10): pg_config, pg_status and entries, with a few fields more. Sequence
// numbers of collectives and of point-to-point operations are counted apart. A time that is not known is 0; an entry
// that is retired but not completed has failed. All functions are safe from several threads.
#pragma once

#include <cohort/export.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace cohort {

struct DumpOptions {
  bool only_active = false;  ///< without the operations that have completed
  bool stacks = true;        ///< with who called, where that was recorded (COHORT_TRACE_STACKS)
};

class COHORT_API FlightRecorder {
 public:
  FlightRecorder() = delete;  ///< there is one in a process

  static std::string dump_json(const DumpOptions& options = {});
  /// The same content in binary (RFC 8949).
  static std::string dump_cbor(const DumpOptions& options = {});

  /// How many operations are kept now, and at most.
  static std::size_t size();
  static std::size_t capacity();

  /// Hides what was recorded so far and counts records from 0 again. Operations in flight are hidden too; their end
  /// touches no newer record.
  static void reset_all();

  /// Gets the dump, as JSON, and the rank of this process. Called by one thread at a time.
  using Writer = std::function<void(std::string_view bytes, int rank)>;
  /// Instead of the file COHORT_TRACE_FILE names. The last one wins; null brings the file back.
  static void set_writer(Writer writer);

  /// Writes a dump that carries the reason. False when nothing says where to, or it did not work, which is logged;
  /// never throws, since it is called where something has gone wrong already.
  static bool dump(std::string_view reason) noexcept;

  /// From now on this signal makes a thread of the recorder write a dump; 0 ends that, which brings the program's
  /// earlier handling of the signal back. A ValueError for a signal that cannot be caught.
  static void dump_on_signal(int signal);
};

}  // namespace cohort
