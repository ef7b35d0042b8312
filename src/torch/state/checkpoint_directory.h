// SPDX-License-Identifier: BSD-3-Clause
//
// Folders: the checkpoints in one, and the checkpoint that is one. The latter has a file for each rank and an index in
// the form that Hugging Face's libraries read, which says in which file each tensor is:
//
//   model-00001-of-00004.safetensors  ...  model-00004-of-00004.safetensors  model.safetensors.index.json
//
// It is written as PATH.partial and renamed when all of it is on the disk. Reading takes the names of the files from
// the index and everything else from the files, which are sealed; the index is not.
#pragma once

#include <cohort/secret.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "torch/state/safetensors.h"

namespace cohort {

struct FoundCheckpoint {
  std::string path{};
  std::uint64_t serial = 0;  ///< counts up in a folder: says which is newest whatever clocks and names say
};
/// The checkpoints of Cohort in a folder, newest first, judged by their headers; none if the folder does not exist.
/// Files that look like one and are none are named in a warning if `warns`.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& folder, bool warns = false);
/// One more than the highest in the folder.
std::uint64_t next_serial(const std::string& folder);
/// Checks all files of a checkpoint, in little memory. Throws a CheckpointError.
void verify_checkpoint(const std::string& path, const Secret* secret);
/// False with errno set if something of it is left.
bool remove_checkpoint(const std::string& path);

/// Links to folders are not followed.
bool is_folder(const std::string& path);
/// The paths of the files of a checkpoint that is a folder, in order: those in its index, or its one model.safetensors.
std::vector<std::string> files_of_folder(const std::string& path);

/// Finds out whether the files of a folder are all those of one save.
class SaveCheck {
 public:
  void add(const std::map<std::string, std::string>& metadata);
  /// A CheckpointError if files are missing or of different saves. Files that Cohort did not write are not judged.
  void finish(const std::string& path) const;

 private:
  std::set<std::string> saves_;
  std::set<std::uint64_t> ranks_;
  std::set<std::uint64_t> shards_;
};

/// The file of one rank in a checkpoint that is being written.
std::string partial_folder(const std::string& path);
std::string rank_file(const std::string& folder, int rank, int ranks);
/// Makes an empty PATH.partial.
void begin_folder(const std::string& path);
/// Checks that the files of all ranks are there and belong to the save of this name, writes the index and renames.
void commit_folder(const std::string& path, int ranks, const std::string& save_id);
/// After a failure.
void discard_folder(const std::string& path);

/// Keys of the metadata. All values are texts as in value_text.h.
inline constexpr std::string_view serial_key = "cohort.serial";
inline constexpr std::string_view ranks_key = "cohort.ranks";
inline constexpr std::string_view save_key = "cohort.save";    ///< random; the same in all files of a folder
inline constexpr std::string_view shard_key = "cohort.shard";  ///< the rank that wrote it

}  // namespace cohort
