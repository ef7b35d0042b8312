// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/env.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>

namespace cohort::tool {

/// The machine's cores, packages and NUMA nodes as hwloc finds them. Looking for the rest (caches, devices) takes far
/// longer, and nothing here asks for it.
class Topology {
 public:
  Topology() {
    is_loaded_ = init_without_plugins() &&
                 hwloc_topology_set_all_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_NONE) == 0 &&
                 hwloc_topology_set_type_filter(topology_, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 &&
                 hwloc_topology_set_type_filter(topology_, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 &&
                 hwloc_topology_load(topology_) == 0;
  }
  /// Restricted to these processors.
  explicit Topology(hwloc_const_cpuset_t allowed) : Topology() {
    is_loaded_ = is_loaded_ && hwloc_topology_restrict(topology_, allowed, 0) == 0;
  }
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  bool is_loaded() const { return is_loaded_; }
  hwloc_topology_t get() const { return topology_; }
  /// 0 where hwloc could not load the topology.
  int count(hwloc_obj_type_t type) const {
    return is_loaded_ ? std::max(0, hwloc_get_nbobjs_by_type(topology_, type)) : 0;
  }

 private:
  /// hwloc's plugins find devices and other formats of files. Loading them (OpenGL's and X11's libraries among others)
  /// would take longer than all that is asked for here. The environment is as before afterwards, for the ranks inherit
  /// it.
  bool init_without_plugins() {
    constexpr auto* path = "HWLOC_PLUGINS_PATH";
    const bool is_given = !Env::read_one(path).empty();
    // NOLINTBEGIN(concurrency-mt-unsafe): the command has no other threads yet
    if (!is_given) ::setenv(path, "", 1);
    const bool is_made = hwloc_topology_init(&topology_) == 0;
    if (!is_given) ::unsetenv(path);
    // NOLINTEND(concurrency-mt-unsafe)
    return is_made;
  }

  hwloc_topology_t topology_ = nullptr;
  bool is_loaded_ = false;
};

}  // namespace cohort::tool
