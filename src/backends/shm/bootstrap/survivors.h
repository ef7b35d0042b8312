// SPDX-License-Identifier: BSD-3-Clause
//
// One rank's part in the agreement on which ranks are left (agreement.h) and in the bootstrap of their group.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/shm/bootstrap/bootstrap.h"
#include "backends/shm/engine.h"
#include "backends/shm/protocol/agreement.h"

namespace cohort::shm {

struct SurvivorGroup {
  std::vector<int> ranks{};            ///< ranks in the group that broke
  std::optional<EngineParts> parts{};  ///< nullopt: this rank was left out
};

class Survivors {
 public:
  Survivors(Engine& engine, std::span<const int> excluded, Deadline deadline);

  SurvivorGroup form_group(BootstrapFunction bootstrap, const std::string& name);

 private:
  /// Whether a rank has died, has left, or is to be left out.
  bool is_out(std::size_t rank);
  void vote();
  /// The members that the round decided on; empty if the round is over already.
  std::vector<int> decide();
  std::string exchange(const std::vector<int>& members, std::string_view ticket);
  std::optional<Failure> lost_among(const std::vector<int>& members);
  bool confirm(const std::vector<int>& members, bool is_ready);

  Engine& engine_;
  const std::size_t size_;
  const std::size_t rank_;
  AgreementBoard board_;
  std::vector<int> excluded_;
  const Deadline deadline_;
  std::uint32_t round_ = 0;
};

}  // namespace cohort::shm
