// SPDX-License-Identifier: BSD-3-Clause
//
// One file of a checkpoint: a safetensors file with a seal (seal.h). It is complete or does not exist. Errors are
// CheckpointErrors that begin with the file's name. Files without a seal, which other programs wrote, are read as well.
#pragma once

#include <cohort/secret.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "torch/checkpoint/input_file.h"
#include "torch/checkpoint/safetensors.h"
#include "torch/checkpoint/seal.h"

namespace cohort {

inline constexpr std::string_view partial_suffix = ".partial";
/// The version of what the metadata says (docs/checkpoints.md). Version 1 was a format of its own.
inline constexpr std::uint64_t checkpoint_format = 2;
/// A key of the metadata, which files of Cohort have and other files do not.
inline constexpr std::string_view format_key = "cohort.format";

/// Writes a file that gets its name at commit(), or never.
class CheckpointWriter {
 public:
  /// `with_name`: works as on a file system that does not support files without a name.
  CheckpointWriter(std::string path, const Secret* secret, bool with_name = false);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// The size of the tensor that commit() writes after all that was written.
  std::size_t seal_bytes() const { return seal_.bytes(); }
  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  [[noreturn]] void fail(std::string_view what) const;
  void write_through(const void* data, std::size_t bytes);
  void flush();
  void give_name();

  std::string path_;
  std::string folder_;
  std::string partial_;
  bool has_name_ = false;  ///< that of partial_
  int fd_ = -1;
  std::string buffer_;
  Seal seal_;
};

/// The bytes of a file that was checked.
class CheckpointContent {
 public:
  /// Reads a regular file after checking its header against its size. With a secret nothing of it is interpreted.
  static std::string read_file(const std::string& path, const Secret* secret);
  /// Checks everything; `path` is named in errors.
  CheckpointContent(std::string bytes, const std::string& path, const Secret* secret);

  const SafetensorsHeader& header() const { return header_; }
  /// Those of a tensor. They live as long as bytes().
  std::string_view data(const TensorInfo& tensor) const;
  const std::shared_ptr<const std::string>& bytes() const { return bytes_; }
  /// Whether Cohort wrote it.
  bool is_ours() const { return ours_; }
  /// The checksum of the whole file.
  std::uint64_t checksum() const { return checksum_; }

 private:
  std::shared_ptr<const std::string> bytes_;
  std::size_t data_begin_ = 0;
  SafetensorsHeader header_;
  bool ours_ = false;
  std::uint64_t checksum_ = 0;
};

/// What is known of a file before its tensors are read.
struct FileSummary {
  std::string path{};
  SafetensorsHeader header{};  ///< without the seal
  bool is_ours = false;
  /// The one in the file's seal, which nobody has compared with the bytes yet; of a file without a seal, that of its
  /// bytes.
  std::uint64_t checksum = 0;
};
/// Checks the header against the size of the file. With a secret it reads and verifies the whole file first.
FileSummary summarize_file(const std::string& path, const Secret* secret);

/// A file whose tensors are read in pieces, so that memory is taken for these alone.
class CheckpointPieces {
 public:
  /// Checks everything, which reads the whole file once, and that it is the file of the summary. With a secret the file
  /// is kept in memory: what is read is what was verified.
  CheckpointPieces(const FileSummary& summary, const Secret* secret);

  /// Bytes of one of the summary's tensors; the caller stays within it.
  void read(const TensorInfo& tensor, std::uint64_t from, char* to, std::size_t count) const;

 private:
  std::string path_;
  std::optional<InputFile> file_;
  std::optional<CheckpointContent> content_;
  std::uint64_t data_begin_ = 0;
};

/// The header of a regular file, checked against the file's size. The tensors are not read.
SafetensorsHeader read_header(const std::string& path);
/// Checks the whole file as CheckpointContent does, in little memory. Throws a CheckpointError.
void verify_file(const std::string& path, const Secret* secret);
/// A small regular file, such as an index, as it is.
std::string read_small_file(const std::string& path);

std::string folder_of(const std::string& path);
/// Creates the folder and those above it, each synchronised to disk before the next; failures are ignored.
void make_folder(const std::string& folder);
/// False if it cannot be brought to the disk.
bool sync_folder(const std::string& folder);

}  // namespace cohort
