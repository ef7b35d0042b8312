// SPDX-License-Identifier: BSD-3-Clause
//
// What can be measured. Bytes are counted as in nccl-tests: a size is that of the whole array, so each of n ranks
// contributes an n-th of it to an all_gather, and keeps an n-th of it in a reduce_scatter.
#pragma once

#include <cohort/dtype.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::measure {

enum class Operation : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  barrier,
  send_recv,  ///< half a round trip between ranks 0 and 1
};

enum class Reduction : std::uint8_t { sum, prod, min, max, avg };

std::vector<Operation> all_operations();

std::string_view to_string(Operation operation);
std::string_view to_string(Reduction reduction);
/// Our names and those of nccl-tests' programs ("allreduce", "sendrecv"); else a ValueError that lists them.
Operation parse_operation(std::string_view name);
Reduction parse_reduction(std::string_view name);

bool reduces(Operation operation);
bool has_root(Operation operation);
/// Every rank's array is in n blocks, one for each rank.
bool has_blocks(Operation operation);
bool has_data(Operation operation);
/// Whether input and output may be the same memory, and whether they may differ.
bool works_in_place(Operation operation);
bool works_out_of_place(Operation operation);

/// The elements of a block where there are blocks, of the whole array otherwise; at least one.
std::size_t element_count(Operation operation, std::size_t bytes, DType dtype, int ranks);
/// What `count` elements make of the whole array.
std::size_t total_bytes(Operation operation, std::size_t count, DType dtype, int ranks);

/// Bus bandwidth over algorithm bandwidth: what the slowest link has to carry of each byte of the array.
double bus_factor(Operation operation, int ranks);

}  // namespace cohort::measure
