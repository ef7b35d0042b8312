// SPDX-License-Identifier: BSD-3-Clause
#include "torch/checkpoint/checkpoint_file.h"

#include <cohort/torch/checkpoint_error.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "core/file_descriptor.h"
#include "torch/checkpoint/input_file.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

constexpr std::size_t copy_bytes = std::size_t{1} << 20;

std::string errno_text() {
  return std::generic_category().message(errno);
}

/// Puts the file's name in front of what `body` reports.
template <class F>
auto naming(const std::string& path, F&& body) {
  try {
    return body();
  } catch (const CheckpointError& e) {
    throw CheckpointError(path + ": " + e.message());
  } catch (const std::bad_alloc&) {
    throw CheckpointError(path + ": there is not enough memory to read it");
  }
}

/// A file that does not fit into the machine's memory cannot be loaded; a file that claims to be that long, as a sparse
/// one can, is refused before memory is taken for it.
void require_loadable(std::uint64_t bytes) {
  const auto memory =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > memory) {
    throw CheckpointError(fmt::format("has {} bytes, more than the {} bytes of memory of this machine", bytes, memory));
  }
}

/// What other kinds of files begin with, which users may take for a checkpoint.
void refuse_other_kinds(std::string_view start) {
  if (start.starts_with("COHORTCK")) {
    throw CheckpointError(
        "is a checkpoint in the format of an early version of Cohort, whose sections are archives of libtorch: loading "
        "these can execute code from the file, so they are not read any more. Load it with the version that wrote it "
        "and "
        "write what is in it as safetensors, or begin the run again");
  }
  if (start.starts_with("PK\3\4")) {
    throw CheckpointError(
        "is an archive of libtorch (torch::save, torch.save or TorchScript), which can contain code and is not read. "
        "Convert it in a place where you trust it, for example with safetensors.torch.save_file in Python");
  }
}

struct FileLayout {
  SafetensorsHeader header{};
  std::uint64_t data_begin = 0;
  const TensorInfo* seal = nullptr;
  bool ours = false;
};

/// Finds out whether the file is ours, and if so where its seal is.
void find_seal(FileLayout& layout) {
  const auto& [tensors, metadata] = layout.header;
  if (!tensors.empty() && tensors.back().name.starts_with(seal_name)) layout.seal = &tensors.back();
  const auto format = metadata.find(std::string(format_key));
  layout.ours = format != metadata.end();
  if (layout.ours) {
    const auto number = text_to_unsigned(format->second);
    if (!number.has_value() || *number != checkpoint_format) {
      throw CheckpointError(fmt::format("is of format version {}; this version of Cohort reads {}",
                                        printable(format->second), checkpoint_format));
    }
  }
  if (layout.ours != (layout.seal != nullptr)) throw CheckpointError("is damaged: its seal or its format is missing");
  if (layout.seal == nullptr) return;
  const auto bytes = layout.seal->end - layout.seal->begin;
  if (layout.seal->dtype != "U8" || (bytes != crc_bytes && bytes != crc_bytes + hmac_bytes)) {
    throw CheckpointError("is damaged: its seal is malformed");
  }
}

/// `read(from, count)` returns bytes of the file.
template <class Read>
FileLayout read_layout(std::uint64_t file_bytes, Read&& read) {
  const std::string start(read(0, std::min<std::uint64_t>(file_bytes, safetensors_length_bytes)));
  refuse_other_kinds(start);
  const auto length = safetensors_header_bytes(start, file_bytes);
  FileLayout layout{.data_begin = safetensors_length_bytes + length};
  layout.header = parse_safetensors_header(read(safetensors_length_bytes, length), file_bytes - layout.data_begin);
  find_seal(layout);
  return layout;
}

FileLayout read_layout(const InputFile& file) {
  return read_layout(file.bytes(), [&](std::uint64_t from, std::uint64_t count) { return file.read(from, count); });
}

void require_hmac(bool good) {
  if (!good) {
    throw CheckpointError(
        "is not signed with this secret: somebody else wrote it, it was changed, or it was saved without a secret");
  }
}

/// The checksum of the first bytes of the file.
std::uint64_t crc_of(const InputFile& file, std::uint64_t bytes) {
  Crc64 crc;
  file.pass(0, bytes, [&](const char* data, std::size_t count) { crc.add(data, count); });
  return crc.value();
}

}  // namespace

bool sync_folder(const std::string& path) {
  const FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot synchronise a folder (EINVAL); nothing more can be done there.
  return folder && (::fsync(folder.get()) == 0 || errno == EINVAL);
}

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void make_folder(const std::string& folder) {
  if (::access(folder.c_str(), F_OK) == 0) return;
  const auto above = folder_of(folder);
  if (above != folder) make_folder(above);
  if (::mkdir(folder.c_str(), 0777) == 0) sync_folder(above);
}

CheckpointWriter::CheckpointWriter(std::string path, const Secret* secret, bool with_name)
    : path_(std::move(path)), folder_(folder_of(path_)), partial_(path_ + std::string(partial_suffix)), seal_(secret) {
  ::unlink(partial_.c_str());  // left by a save that was killed
  if (!with_name) fd_ = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (with_name || (fd_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL))) {
    fd_ = ::open(partial_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    has_name_ = fd_ >= 0;
  }
  if (fd_ < 0) fail(fmt::format("no file can be made in {}", folder_));
  buffer_.reserve(copy_bytes);
}

CheckpointWriter::~CheckpointWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (has_name_) ::unlink(partial_.c_str());
}

void CheckpointWriter::fail(std::string_view what) const {
  throw CheckpointError(fmt::format("{}: {}: {}", path_, what, errno_text()));
}

void CheckpointWriter::write(const void* data, std::size_t bytes) {
  seal_.add(data, bytes);
  if (buffer_.size() + bytes > copy_bytes) flush();
  if (bytes > copy_bytes) return write_through(data, bytes);
  buffer_.append(static_cast<const char*>(data), bytes);
}

void CheckpointWriter::write_through(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto count = ::write(fd_, next, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("writing failed");
    next += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void CheckpointWriter::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void CheckpointWriter::commit() {
  flush();
  const auto seal = seal_.finish();
  write_through(seal.data(), seal.size());
  if (::fsync(fd_) != 0) fail("the data cannot be brought to the disk");
  give_name();
  if (!sync_folder(folder_)) fail("the folder cannot be brought to the disk");
}

void CheckpointWriter::give_name() {
  if (!has_name_) {
    const auto self = fmt::format("/proc/self/fd/{}", fd_);
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0) return;
    // link() cannot replace a file, so the new one gets another name first.
    if (errno != EEXIST) fail("the file cannot be given its name");
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, partial_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      fail("the file cannot be given its name");
    }
    has_name_ = true;
  }
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail("the file cannot be given its name");
  has_name_ = false;
}

std::string CheckpointContent::read_file(const std::string& path, const Secret* secret) {
  return naming(path, [&] {
    const InputFile file(path);
    require_loadable(file.bytes());
    if (secret == nullptr) read_layout(file);
    return file.read(0, file.bytes());
  });
}

CheckpointContent::CheckpointContent(std::string bytes, const std::string& path, const Secret* secret)
    : bytes_(std::make_shared<const std::string>(std::move(bytes))) {
  naming(path, [&] {
    const std::string_view all = *bytes_;
    if (secret != nullptr) {
      const auto covered = all.size() < hmac_bytes ? 0 : all.size() - hmac_bytes;
      CheckpointHmac hmac(*secret);
      hmac.add(all.data(), covered);
      require_hmac(hmac.finish_as(all.substr(covered)));
    }
    auto layout = read_layout(all.size(), [&](std::uint64_t from, std::uint64_t count) {
      return all.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(count));
    });
    Crc64 crc;
    if (layout.seal != nullptr) {
      const auto seal = static_cast<std::size_t>(layout.data_begin + layout.seal->begin);
      crc.add(all.data(), seal);
      if (all.substr(seal, crc_bytes) != crc_text(crc.value())) {
        throw CheckpointError("is damaged: its checksum differs");
      }
    } else {
      crc.add(all.data(), all.size());
    }
    checksum_ = crc.value();
    data_begin_ = static_cast<std::size_t>(layout.data_begin);
    ours_ = layout.ours;
    header_ = std::move(layout.header);
    if (ours_) header_.tensors.pop_back();  // the seal
  });
}

std::string_view CheckpointContent::data(const TensorInfo& tensor) const {
  return std::string_view(*bytes_).substr(data_begin_ + static_cast<std::size_t>(tensor.begin),
                                          static_cast<std::size_t>(tensor.end - tensor.begin));
}

SafetensorsHeader read_header(const std::string& path) {
  return naming(path, [&] { return read_layout(InputFile(path)).header; });
}

FileSummary summarize_file(const std::string& path, const Secret* secret) {
  if (secret != nullptr) {  // nothing of it is interpreted before it is verified
    const CheckpointContent content(CheckpointContent::read_file(path, secret), path, secret);
    return {.path = path, .header = content.header(), .is_ours = content.is_ours(), .checksum = content.checksum()};
  }
  return naming(path, [&] {
    const InputFile file(path);
    require_loadable(file.bytes());
    auto layout = read_layout(file);
    FileSummary summary{.path = path, .is_ours = layout.ours};
    if (layout.ours) {
      summary.checksum = crc_number(file.read(layout.data_begin + layout.seal->begin, crc_bytes));
      layout.header.tensors.pop_back();  // the seal
    } else {
      summary.checksum = crc_of(file, file.bytes());
    }
    summary.header = std::move(layout.header);
    return summary;
  });
}

CheckpointPieces::CheckpointPieces(const FileSummary& summary, const Secret* secret) : path_(summary.path) {
  const auto require_same = [&](std::uint64_t checksum) {
    if (checksum != summary.checksum) throw CheckpointError("is damaged: its checksum differs");
  };
  if (secret != nullptr) content_.emplace(CheckpointContent::read_file(path_, secret), path_, secret);
  naming(path_, [&] {
    if (content_.has_value()) return require_same(content_->checksum());
    file_.emplace(path_);
    const auto layout = read_layout(*file_);
    data_begin_ = layout.data_begin;
    if (layout.ours != summary.is_ours) throw CheckpointError("was replaced while it was read");
    // The checksum covers the header too: it is the one in the summary.
    if (layout.ours) require_same(crc_of(*file_, layout.data_begin + layout.seal->begin));
  });
}

void CheckpointPieces::read(const TensorInfo& tensor, std::uint64_t from, char* to, std::size_t count) const {
  if (content_.has_value()) {
    content_->data(tensor).copy(to, count, static_cast<std::size_t>(from));
    return;
  }
  naming(path_, [&] { file_->read(data_begin_ + tensor.begin + from, to, count); });
}

void verify_file(const std::string& path, const Secret* secret) {
  naming(path, [&] {
    const InputFile file(path);
    require_loadable(file.bytes());
    const auto layout = read_layout(file);
    if (secret != nullptr) {
      const auto covered = file.bytes() - std::min<std::uint64_t>(file.bytes(), hmac_bytes);
      CheckpointHmac hmac(*secret);
      file.pass(0, covered, [&](const char* data, std::size_t count) { hmac.add(data, count); });
      require_hmac(hmac.finish_as(file.read(covered, file.bytes() - covered)));
    }
    if (layout.seal == nullptr) return;
    const auto seal = layout.data_begin + layout.seal->begin;
    if (file.read(seal, crc_bytes) != crc_text(crc_of(file, seal))) {
      throw CheckpointError("is damaged: its checksum differs");
    }
  });
}

std::string read_small_file(const std::string& path) {
  return naming(path, [&] {
    const InputFile file(path);
    if (file.bytes() > safetensors_header_limit) {
      throw CheckpointError(fmt::format("has {} bytes, too many for an index", file.bytes()));
    }
    return file.read(0, file.bytes());
  });
}

}  // namespace cohort
