// SPDX-License-Identifier: BSD-3-Clause
//
// A file that claims to be a checkpoint, or the index of one, by the ways on which load() and latest() read it: the
// answer is its content or a CheckpointError, and the ways agree.
#include <cohort/secret.h>
#include <cohort/torch/checkpoint_error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "accepted.h"
#include "torch/checkpoint/checkpoint_directory.h"
#include "torch/checkpoint/checkpoint_file.h"
#include "torch/checkpoint/saved_parts.h"
#include "torch/state/box.h"
#include "torch/state/value_text.h"

namespace {

using namespace cohort;  // NOLINT(google-build-using-namespace)

/// A folder for one file, which is made once.
const std::string& folder() {
  static const std::string path = [] {
    std::string made = "/tmp/cohort-fuzz-checkpoint-XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) std::abort();
    return made;
  }();
  return path;
}

template <class F>
bool answers(F&& body) {
  try {
    body();
    return true;
  } catch (const CheckpointError&) {  // NOLINT(bugprone-empty-catch): a refusal is an answer
    return false;
  }
}

std::uint64_t read_everything(const CheckpointContent& content) {
  std::uint64_t sum = 0;
  for (const auto& tensor : content.header().tensors) {
    const auto data = content.data(tensor);
    if (data.size() != tensor_bytes(tensor)) std::abort();
    for (const char byte : data) sum += static_cast<unsigned char>(byte);
  }
  for (const auto& [key, text] : content.header().metadata) {
    sum += text_to_string(text).value_or("").size() + text_to_list(text).value_or(std::vector<std::int64_t>()).size();
    sum += static_cast<std::uint64_t>(text_to_bool(text).has_value() + text_to_integer(text).has_value() +
                                      text_to_unsigned(text).has_value() + text_to_double(text).has_value());
  }
  return sum;
}

/// The parts of distributed tensors that the header claims: where they make a tensor whole, it is no larger than the
/// parts, so that a reader can take memory for it.
void judge_parts(const SafetensorsHeader& header) {
  PartCatalog catalog;
  const bool is_whole = answers([&] {
    catalog.take_parts(0, header);
    catalog.check();
  });
  if (!is_whole) return;
  for (const auto& [name, saved] : catalog.tensors()) {
    std::uint64_t bytes = 0;
    for (const auto& part : saved.parts) {
      bytes += part.info.end - part.info.begin;
      if (part_name(name, part.box) != part.info.name && parse_part_name(part.info.name)->box != part.box) std::abort();
      const auto common = intersection(part.box, whole_box(saved.shape));
      if (common.has_value() && *common != part.box) std::abort();
    }
    if (static_cast<std::uint64_t>(count_elements(saved.shape).value()) > 8 * bytes) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Secret secret = Secret::generate();
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const bool good = answers([&] {
    const CheckpointContent content(bytes, "memory", nullptr);
    read_everything(content);
    judge_parts(content.header());
  });
  if (answers([&] { CheckpointContent(bytes, "memory", &secret); })) std::abort();  // nobody knows the secret

  const auto path = folder() + "/model.safetensors";
  const auto index = folder() + "/model.safetensors.index.json";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  if (answers([&] { verify_file(path, nullptr); }) != good) std::abort();
  if (answers([&] { CheckpointContent::read_file(path, nullptr); }) < good) std::abort();
  if (answers([&] { judge_parts(read_header(path)); }) < good) std::abort();
  if (answers([&] { const CheckpointPieces pieces(summarize_file(path, nullptr), nullptr); }) != good) std::abort();
  cohort::fuzz::accepted = good;
  // The same bytes as an index.
  std::ofstream(index, std::ios::binary | std::ios::trunc) << bytes;
  answers([&] {
    for (const auto& file : files_of_folder(folder())) {
      if (file.find('/', folder().size() + 1) != std::string::npos) std::abort();
    }
    cohort::fuzz::accepted = true;
  });
  ::unlink(index.c_str());
  find_checkpoints(folder());
  return 0;
}
