// SPDX-License-Identifier: BSD-3-Clause
//
// The file of a checkpoint: named sections of bytes. It is complete or does not exist.
//
//   header (64 bytes) | the sections' bytes, one after another | index: for each section u32 length of its name, name,
//   u64 length of its bytes
//
// Sections are streamed, so the index comes after them and the header, which holds lengths and checksums, is written
// last. Errors are CheckpointErrors that begin with the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch/state/crc64.h"

namespace cohort {

struct CheckpointHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t sections;
  std::uint64_t serial;  ///< counts up in a folder: says which is newest whatever clocks and names say
  std::uint64_t ranks;
  std::uint64_t data_bytes;
  std::uint64_t index_bytes;
  std::uint64_t body_crc;    ///< of data and index
  std::uint64_t header_crc;  ///< of what is before it
};
static_assert(sizeof(CheckpointHeader) == 64);

/// Writes a file that gets its name at commit(), or never.
class CheckpointWriter {
 public:
  /// `with_name`: works as on a file system that does not support files without a name.
  CheckpointWriter(std::string path, std::uint64_t serial, std::uint64_t ranks, bool with_name = false);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// What is written until the next call belongs to this section.
  void begin_section(std::string name);
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
  std::uint64_t serial_;
  std::uint64_t ranks_;
  std::vector<std::pair<std::string, std::uint64_t>> sections_;
  std::string buffer_;
  Crc64 crc_;
};

/// The bytes of a file that was checked.
class CheckpointContent {
 public:
  static std::string read_file(const std::string& path);
  /// Checks everything; `path` is named in errors.
  CheckpointContent(std::string bytes, const std::string& path);

  std::uint64_t ranks() const { return header_.ranks; }
  std::uint64_t checksum() const { return header_.body_crc; }
  bool has(std::string_view name) const;
  /// Empty if there is no such section.
  std::string_view section(std::string_view name) const;

 private:
  std::string bytes_;
  CheckpointHeader header_{};
  std::vector<std::pair<std::string, std::string_view>> sections_;
};

struct FoundCheckpoint {
  std::string path{};
  std::uint64_t serial = 0;
};
/// The files of a folder that begin like a checkpoint, newest first; none if the folder does not exist.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& folder);
std::string folder_of(const std::string& path);
/// Creates the folder and those above it, each synchronised to disk before the next; failures are ignored.
void make_folder(const std::string& folder);

}  // namespace cohort
