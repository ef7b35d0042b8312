// SPDX-License-Identifier: BSD-3-Clause
//
// The backends on which ranks can be lost and replaced.
#pragma once

#include <cohort/new_group.h>

#include <ostream>
#include <string>
#include <string_view>

#include "faults/fault_scenario.h"
#include "support/groups.h"

namespace cohort::test {

/// On shm the survivors agree in shared memory, on the others through the store. Two hosts of hybrid are two names for
/// this one.
struct Where {
  const char* backend;
  int hosts;

  ProcessGroupPtr join(const Member& me, int size) const {
    name_host(me.rank(), size, hosts);
    return new_group(backend, std::chrono::seconds(20), "cpu", {},
                     {.store = me.open_store(), .rank = me.rank(), .size = size, .name = me.name()});
  }
  ProcessGroupPtr join(const Member& me) const { return join(me, me.size()); }
  bool needs_store() const { return std::string_view(backend) == "gloo" || hosts > 1; }
  friend std::string to_string(const Where& where) {
    return where.backend + (where.hosts > 0 ? std::to_string(where.hosts) : std::string());
  }
  friend void PrintTo(const Where& where, std::ostream* out) { *out << to_string(where); }
};

inline constexpr Where everywhere[] = {{"shm", 0}, {"gloo", 0}, {"hybrid", 1}, {"hybrid", 2}};

}  // namespace cohort::test
