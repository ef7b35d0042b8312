// SPDX-License-Identifier: BSD-3-Clause
#include "random_programs/pieces.h"

#include <fmt/format.h>

#include <algorithm>

namespace cohort::random_programs {

namespace {

constexpr std::size_t line = 64;
constexpr std::uint8_t fence = 0xA5;

}  // namespace

Pieces::Pieces(ProcessGroup& group, const Step& step, Values values) : dtype_(step.dtype) {
  const int rank = group.rank();
  const auto shape = shape_of(step, group.size(), rank);
  const auto size = size_of(dtype_);
  for (const auto count : shape.inputs) inputs_.push_back({0, count * size});
  for (const auto count : shape.outputs) outputs_.push_back({0, count * size});

  const auto layout = layout_of(step, rank);
  hides_empty_pieces_ = layout == Layout::apart;
  std::size_t end = line;
  place(outputs_, layout, end);
  if (step.is_in_place) {
    const bool is_list = step.kind == Kind::all_gather_list;
    const auto mine = static_cast<std::size_t>(rank);
    inputs_[0].offset = is_list ? outputs_[mine].offset : outputs_[0].offset + mine * inputs_[0].bytes;
  } else {
    place(inputs_, layout, end);
  }

  if (wants_group_memory(step, rank) && group.capabilities().group_memory) {
    shared_ = group.allocate(end);
    base_ = static_cast<std::uint8_t*>(shared_.data());
  } else {
    ordinary_.resize(end / sizeof(std::uint64_t) + 1);
    base_ = reinterpret_cast<std::uint8_t*>(ordinary_.data());
  }
  std::fill_n(base_, end, fence);
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    write(inputs_[i], contents(step, rank, i, shape.inputs[i], values));
  }
  // Reductions and broadcasts in place have no inputs besides.
  if (is_reduction(step.kind) || step.kind == Kind::broadcast) {
    for (std::size_t i = 0; inputs_.empty() && i < outputs_.size(); ++i) {
      write(outputs_[i], contents(step, rank, i, shape.outputs[i], values));
    }
  }
  before_.assign(base_, base_ + end);
}

void Pieces::place(std::vector<Piece>& pieces, Layout layout, std::size_t& end) const {
  if (layout == Layout::backwards) std::reverse(pieces.begin(), pieces.end());
  for (auto& piece : pieces) {
    piece.offset = end;
    end += piece.bytes + (layout == Layout::adjacent ? 0 : size_of(dtype_));
  }
  if (layout == Layout::backwards) std::reverse(pieces.begin(), pieces.end());
  end = (end + 2 * line) / line * line;
}

void Pieces::write(const Piece& piece, const ByteVector& bytes) const {
  std::copy(bytes.begin(), bytes.end(), base_ + piece.offset);
}

Buffer Pieces::buffer(const Piece& piece) const {
  void* const data = piece.bytes == 0 && hides_empty_pieces_ ? nullptr : base_ + piece.offset;
  return {data, dtype_, {static_cast<std::int64_t>(piece.bytes / size_of(dtype_))}};
}

ConstBufferList Pieces::inputs() const {
  std::vector<Buffer> all;
  for (const auto& piece : inputs_) all.push_back(buffer(piece));
  return all;
}
BufferList Pieces::outputs() const {
  std::vector<Buffer> all;
  for (const auto& piece : outputs_) all.push_back(buffer(piece));
  return all;
}

ByteVector Pieces::content_of_output(std::size_t i) const {
  const auto& piece = outputs_.at(i);
  return {base_ + piece.offset, base_ + piece.offset + piece.bytes};
}

void Pieces::tamper() const {
  if (outputs_.empty() || outputs_.back().bytes == 0) return;
  base_[outputs_.back().offset + outputs_.back().bytes - 1] ^= 1;
}

std::string Pieces::verify(const std::vector<ByteVector>& expected) const {
  if (expected.size() != outputs_.size()) return "the reference has another number of outputs";
  ByteVector rest = before_;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const auto differs = difference(dtype_, content_of_output(i), expected[i]);
    if (!differs.empty()) return fmt::format("output {}: {}", i, differs);
    std::copy_n(base_ + outputs_[i].offset, outputs_[i].bytes,
                rest.begin() + static_cast<std::ptrdiff_t>(outputs_[i].offset));
  }
  const auto [where, was] = std::mismatch(rest.begin(), rest.end(), base_);
  if (where == rest.end()) return {};
  const auto at = static_cast<std::size_t>(where - rest.begin());
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (at >= inputs_[i].offset && at < inputs_[i].offset + inputs_[i].bytes) {
      return fmt::format("input {} was changed at byte {}", i, at - inputs_[i].offset);
    }
  }
  return fmt::format("memory beside the buffers was written, {} bytes behind the first output",
                     at - std::min(at, outputs_.empty() ? at : outputs_[0].offset));
}

}  // namespace cohort::random_programs
