// SPDX-License-Identifier: BSD-3-Clause
//
// Folders: the checkpoints in one, and the checkpoint that is one. The latter has a file for each rank and an index in
// the form that Hugging Face's libraries read, which says in which file each tensor is:
//
//   model-00001-of-00004.safetensors  ...  model-00004-of-00004.safetensors  model.safetensors.index.json
//
// It is written as PATH.partial and renamed when all of it is on the disk. A folder that is deleted is renamed before,
// to PATH.ID.removed, so that no name has half of a checkpoint; the next save in the folder finishes what a killed
// process left of that. Reading takes the names of the files from the index and everything else from the files, which
// are sealed; the index is not.
#pragma once

#include <cohort/secret.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "torch/checkpoint/safetensors.h"

namespace cohort {

struct FoundCheckpoint {
  std::string path{};
  std::uint64_t serial = 0;  ///< counts up in a folder: says which is newest whatever clocks and names say
  bool is_signed = false;    ///< its serial number is
};
/// The checkpoints of Cohort in a folder, newest first, judged by their headers; none if the folder does not exist.
/// With a secret those alone whose serial number is signed with it, so that nobody else's can count as the newest.
/// Files that look like one and are none are named in a warning if `warns`.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& folder, const Secret* secret = nullptr,
                                              bool warns = false);
/// One more than the highest of those. A CheckpointError if none is higher.
std::uint64_t next_serial(const std::string& folder, const Secret* secret);
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
/// Random, in hexadecimal.
std::string new_save_id();
/// Makes an empty PATH.partial. A CheckpointError if there is a PATH already that may not be replaced: only an empty
/// folder may be, and one in which there are files of a save alone, be they torn.
void begin_folder(const std::string& path);
/// Checks that the files of all ranks are there and belong to the save of this name, writes the index and renames.
void commit_folder(const std::string& path, int ranks, const std::string& save_id);
/// Deletes what failed or killed saves of this path, and deletions in its folder, have left.
void discard_folder(const std::string& path);
/// Renames; a folder of that name is replaced, in one step where the file system can exchange two names. Returns the
/// name that it has then; empty if there was none.
std::string replace_folder(const std::string& from, const std::string& to, bool can_exchange = true);

/// Keys of the metadata. All values are texts as in value_text.h.
inline constexpr std::string_view serial_key = "cohort.serial";
inline constexpr std::string_view serial_proof_key = "cohort.serial_hmac";
inline constexpr std::string_view ranks_key = "cohort.ranks";
inline constexpr std::string_view save_key = "cohort.save";    ///< random; the same in all files of a folder
inline constexpr std::string_view shard_key = "cohort.shard";  ///< the rank that wrote it

}  // namespace cohort
