// SPDX-License-Identifier: BSD-3-Clause
#include "torch/checkpoint/read_folder.h"

#include <ATen/ATen.h>
#include <cohort/torch/checkpoint_error.h>
#include <cohort/torch/dtensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "torch/checkpoint/checkpoint_directory.h"
#include "torch/checkpoint/checkpoint_file.h"
#include "torch/checkpoint/saved_parts.h"
#include "torch/checkpoint/state_bytes.h"
#include "torch/dtensor/impl.h"
#include "torch/dtensor/local_boxes.h"
#include "torch/dtensor/redistribute_local.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

using dtensor::LocalBox;

/// A tensor that is being read: this rank's part of it, or all of it.
class IncomingTensor {
 public:
  IncomingTensor(SavedParts saved, const at::Tensor& target) : saved_(std::move(saved)), type_(scalar_type_of(saved_)) {
    if (is_dtensor(target) && target.sizes() == at::IntArrayRef(saved_.shape)) {
      layout_ = dtensor::find_impl(target)->layout();
      boxes_ = dtensor::local_boxes(saved_.shape, *layout_);
      sizes_ = dtensor::local_sizes(saved_.shape, *layout_);
    } else {
      const std::vector<std::int64_t> origin(saved_.shape.size());
      boxes_ = {{.offsets = origin, .local_offsets = origin, .sizes = saved_.shape}};
      sizes_ = saved_.shape;
    }
    std::erase_if(saved_.parts, [&](const SavedPart& part) {
      return std::none_of(boxes_.begin(), boxes_.end(),
                          [&](const LocalBox& box) { return common_box(part, box).has_value(); });
    });
  }

  bool needs_file(std::size_t file) const {
    return std::any_of(saved_.parts.begin(), saved_.parts.end(),
                       [&](const SavedPart& part) { return part.file == file; });
  }

  void read(std::size_t file, const CheckpointPieces& pieces) {
    for (const auto& part : saved_.parts) {
      if (part.file != file) continue;
      for (const auto& box : boxes_) {
        if (const auto common = common_box(part, box)) put(box, *common, read_common(pieces, part, *common));
      }
    }
  }

  /// After all files.
  at::Tensor finish() {
    if (!tensor_.defined()) tensor_ = at::empty(sizes_, type_);
    return layout_ == nullptr ? tensor_ : dtensor::wrap(tensor_, layout_, saved_.shape);
  }

 private:
  static std::optional<Box> common_box(const SavedPart& part, const LocalBox& box) {
    return intersection(part.box, {.offsets = box.offsets, .sizes = box.sizes});
  }

  at::Tensor read_common(const CheckpointPieces& pieces, const SavedPart& part, Box common) const {
    for (std::size_t dim = 0; dim < common.offsets.size(); ++dim) common.offsets[dim] -= part.box.offsets[dim];
    return read_box(pieces, part.info, saved_, common);
  }

  void put(const LocalBox& box, const Box& common, const at::Tensor& values) {
    if (common.sizes == sizes_) {  // all of it at once
      tensor_ = values.contiguous();
      return;
    }
    if (!tensor_.defined()) tensor_ = at::empty(sizes_, type_);
    auto place = tensor_;
    for (std::size_t dim = 0; dim < common.sizes.size(); ++dim) {
      place = place.narrow(static_cast<std::int64_t>(dim),
                           box.local_offsets[dim] + common.offsets[dim] - box.offsets[dim], common.sizes[dim]);
    }
    place.copy_(values);
  }

  SavedParts saved_;  ///< with the parts of which something is needed
  at::ScalarType type_;
  dtensor::LayoutPtr layout_;  ///< null: plain
  std::vector<LocalBox> boxes_;
  std::vector<std::int64_t> sizes_;  ///< of tensor_
  at::Tensor tensor_;
};

}  // namespace

FolderContent FolderReader::read() const {
  FolderContent content;
  std::vector<FileSummary> files;
  SaveCheck save_check;
  PartCatalog catalog;
  std::map<std::string, IncomingTensor> incoming;
  const auto expect = [&](const std::string& name, const SavedParts& saved, const std::string& file) {
    if (!needs(name, content.ours)) return;
    if (incoming.try_emplace(name, saved, target_of(name)).second) return;
    throw CheckpointError(
        fmt::format("{}: the tensor {} is in another file of the folder as well", file, printable(name)));
  };
  for (const auto& file : files_of_folder(path)) {
    const auto number = files.size();
    const auto& summary = files.emplace_back(summarize_file(file, secret));
    if (number == 0) content.ours = summary.is_ours;
    if (summary.is_ours != content.ours) throw CheckpointError(file + ": some files of the folder are not of Cohort");
    // Order matters to the sum, and the order is that of the names.
    content.checksum = content.checksum * 31 + summary.checksum;
    for (const auto& [key, text] : summary.header.metadata) content.state.set_text(key, text);
    if (content.ours) {
      save_check.add(summary.header.metadata);
      content.ranks = content.state.get<std::uint64_t>(std::string(ranks_key));
    }
    const auto whole = content.ours ? catalog.take_parts(number, summary.header) : summary.header.tensors;
    for (const auto& info : whole) expect(info.name, saved_whole(number, info, summary.header), file);
  }
  save_check.finish(path);
  catalog.check();
  for (const auto& [name, saved] : catalog.tensors()) expect(name, saved, path);

  for (std::size_t file = 0; file < files.size(); ++file) {
    const bool is_needed =
        std::any_of(incoming.begin(), incoming.end(), [&](const auto& each) { return each.second.needs_file(file); });
    if (!is_needed && file % static_cast<std::size_t>(ranks) != static_cast<std::size_t>(rank)) continue;
    const CheckpointPieces pieces(files[file], secret);
    for (auto& [name, tensor] : incoming) tensor.read(file, pieces);
  }
  for (auto& [name, tensor] : incoming) content.state.set(name, tensor.finish());
  return content;
}

}  // namespace cohort
