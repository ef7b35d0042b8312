// SPDX-License-Identifier: BSD-3-Clause
//
// The distributed tensors in the files of a folder: for each its shape, and which file has which box of it (box.h). The
// metadata of a file that has a part of a tensor says the shape of the whole, under "cohort.shape." and the tensor's
// name. Everything is judged by the headers, before memory is taken; a tensor whose parts do not make it whole is a
// CheckpointError that names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "torch/checkpoint/safetensors.h"
#include "torch/state/box.h"

namespace cohort {

struct SavedPart {
  std::size_t file = 0;
  TensorInfo info{};
  Box box{};
};

struct SavedParts {
  std::vector<std::int64_t> shape{};
  std::string dtype{};
  bool is_complex = false;  ///< the tensors in the file have one more dimension, of 2
  std::vector<SavedPart> parts{};
};

/// A tensor that a file has as a whole.
SavedParts saved_whole(std::size_t file, const TensorInfo& info, const SafetensorsHeader& header);

class PartCatalog {
 public:
  /// Takes the parts out of what the file of this number has, and returns its other tensors.
  std::vector<TensorInfo> take_parts(std::size_t file, const SafetensorsHeader& header);
  /// After the last file: whether the parts of each tensor make it whole.
  void check() const;
  const std::map<std::string, SavedParts>& tensors() const { return tensors_; }

 private:
  void add_part(const std::string& name, std::vector<std::int64_t> shape, const SavedParts& part);

  std::map<std::string, SavedParts> tensors_;
};

}  // namespace cohort
