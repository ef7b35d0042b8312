// SPDX-License-Identifier: BSD-3-Clause
//
// SLURM's compressed lists.
#pragma once

#include <string>
#include <string_view>

namespace cohort {

/// The first host of a node list: "node[07-09,12],login1" gives "node07". Throws ValueError if it is malformed.
std::string first_slurm_host(std::string_view node_list);

/// The number of tasks on a node, from a list such as "2(x3),1", which stands for 2, 2, 2, 1. Throws ValueError if the
/// list is malformed or has no such node.
int slurm_tasks_on_node(std::string_view tasks_per_node, int node);

}  // namespace cohort
