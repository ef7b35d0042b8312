// SPDX-License-Identifier: BSD-3-Clause
//
// What takes part in a comparison. Contestants are asked for one measurement at a time, so that they can take turns.
#pragma once

#include <cohort/deadline.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/guard.h"
#include "common/pipe.h"
#include "common/process.h"
#include "measure/command.h"
#include "measure/driver.h"

namespace cohort::bench {

struct ContestantName {
  std::string backend{};  ///< "shm", "openmpi:default"
  std::string memory{};   ///< "ordinary", "group"
  bool is_peer = false;

  /// "shm (group)"; peers have ordinary memory alone.
  std::string label() const;
};

class Contestant {
 public:
  explicit Contestant(ContestantName name) : name_(std::move(name)) {}
  virtual ~Contestant() = default;
  Contestant(const Contestant&) = delete;
  Contestant& operator=(const Contestant&) = delete;

  const ContestantName& name() const { return name_; }
  /// Failures are in the answer's error. After a crash or a timeout every answer is that error.
  virtual measure::Answer ask(const measure::Command& command) = 0;
  virtual void release_memory() = 0;

 private:
  ContestantName name_;
};

/// A contestant of which this process is a rank.
class LocalContestant final : public Contestant {
 public:
  LocalContestant(ContestantName name, std::unique_ptr<measure::System> system)
      : Contestant(std::move(name)), system_(std::move(system)) {}
  measure::Answer ask(const measure::Command& command) override;
  void release_memory() override { system_->release(); }

 private:
  std::unique_ptr<measure::System> system_;
};

struct DriverStart {
  std::vector<std::string> command{};
  std::map<std::string, std::string> environment{};  ///< on top of ours
  std::chrono::milliseconds timeout{60000};          ///< for starting, and for each measurement
};

/// Other programs that measure the same, from a file:
///
///   [{"name": "openmpi:default", "command": ["mpirun", "-np", "2", "mpi_driver"], "environment": {"NAME": "value"}}]
///
/// None where there is no name of a file. Throws a ValueError that names the file where it cannot be read or is not
/// such a list.
std::vector<std::pair<ContestantName, DriverStart>> read_peers(const std::string& file,
                                                               std::chrono::milliseconds timeout);

/// A driver (driver.h) in processes of its own, which end with this object.
class DrivenContestant final : public Contestant {
 public:
  /// Returns at once; the first ask() waits until the driver is ready. Throws an Error where it cannot be started.
  DrivenContestant(ContestantName name, const DriverStart& start, const tool::Guard& guard);
  ~DrivenContestant() override;

  measure::Answer ask(const measure::Command& command) override;
  void release_memory() override;
  /// Waits until the driver is ready; false if it never will be.
  bool is_ready();

 private:
  measure::Answer exchange(std::string_view line);
  /// Ends the driver; every later answer is an error with this reason and the driver's last output.
  void give_up(const std::string& reason);
  void stop();
  std::string last_words() const;

  std::chrono::milliseconds timeout_;
  FileDescriptor errors_;  ///< its standard error, in memory, so that nobody has to read it meanwhile
  FileDescriptor to_;
  FileDescriptor from_;
  measure::LineReader reader_{-1};
  std::unique_ptr<tool::Process> process_;
  bool is_ready_ = false;
  std::string out_;  ///< why the driver no longer takes part; empty: it does
};

}  // namespace cohort::bench
