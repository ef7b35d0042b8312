// SPDX-License-Identifier: BSD-3-Clause
//
// Reads what one rank needs of a checkpoint that is a folder. It looks into the headers of all files, takes memory for
// what it needs, and opens the files in which there is something of that: those it reads and verifies as a whole, one
// after the other. (A checksum covers a file, so a rank that reads some bytes of a file passes over all of them.) Of
// the other files each rank verifies its share, so that damage anywhere is noticed.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/secret.h>
#include <cohort/torch/state_dict.h>

#include <cstdint>
#include <functional>
#include <string>

namespace cohort {

struct FolderContent {
  StateDict state{};  ///< on the host; tensors with a distributed target are distributed as that is
  bool ours = true;
  std::uint64_t ranks = 0;     ///< that saved it
  std::uint64_t checksum = 0;  ///< of all files
};

struct FolderReader {
  std::string path{};
  const Secret* secret = nullptr;
  int rank = 0;
  int ranks = 1;
  /// Whether this rank needs the tensor of this name, in a folder of ours or in another one.
  std::function<bool(const std::string& name, bool ours)> needs{};
  /// The tensor into which this one will be loaded; undefined if that is not known.
  std::function<at::Tensor(const std::string& name)> target_of{};

  /// Throws a CheckpointError that names the file or the folder.
  FolderContent read() const;
};

}  // namespace cohort
