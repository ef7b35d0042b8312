// SPDX-License-Identifier: BSD-3-Clause
//
// What takes part in a comparison: asked for one measurement at a time, so that all of them are measured in turn.
#pragma once

#include <cohort/deadline.h>

#include <chrono>
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
  /// What it cannot do is in the answer's error. After a crash or a timeout every answer says so.
  virtual Answer ask(const Command& command) = 0;
  virtual void release_memory() = 0;

 private:
  ContestantName name_;
};

/// In this process, which is one of its ranks.
class LocalContestant final : public Contestant {
 public:
  LocalContestant(ContestantName name, std::unique_ptr<System> system)
      : Contestant(std::move(name)), system_(std::move(system)) {}
  Answer ask(const Command& command) override;
  void release_memory() override { system_->release(); }

 private:
  std::unique_ptr<System> system_;
};

struct DriverStart {
  std::vector<std::string> command{};
  std::vector<std::pair<std::string, std::string>> environment{};  ///< on top of ours
  std::chrono::milliseconds timeout{60000};                        ///< for starting, and for each measurement
};

/// A driver (driver.h) in processes of its own, which end with this object.
class DrivenContestant final : public Contestant {
 public:
  /// Returns at once; the first ask() waits until it is ready. Error: it cannot be started.
  DrivenContestant(ContestantName name, const DriverStart& start, const tool::Guard& guard);
  ~DrivenContestant() override;

  Answer ask(const Command& command) override;
  void release_memory() override;
  /// Waits for it to be ready; false: it is out.
  bool is_ready();

 private:
  Answer exchange(std::string_view line);
  /// Ends it; every later answer is an error with this reason and what it last said.
  void give_up(const std::string& reason);
  void stop();
  std::string last_words() const;

  std::chrono::milliseconds timeout_;
  FileDescriptor errors_;  ///< what it writes to standard error: memory, so that nobody has to read along
  FileDescriptor to_;
  FileDescriptor from_;
  LineReader reader_{-1};
  std::unique_ptr<tool::Process> process_;
  bool is_ready_ = false;
  std::string out_;  ///< why it is out
};

}  // namespace cohort::bench
