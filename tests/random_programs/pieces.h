// SPDX-License-Identifier: BSD-3-Clause
//
// The memory of one step on one rank: its inputs and outputs, laid out as the step says, between bytes that must not
// change.
#pragma once

#include <cohort/buffer.h>
#include <cohort/memory.h>
#include <cohort/operations.h>
#include <cohort/process_group.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "random_programs/program.h"
#include "random_programs/reference.h"

namespace cohort::random_programs {

class Pieces {
 public:
  Pieces(ProcessGroup& group, const Step& step, Values values);

  Buffer input(std::size_t i) const { return buffer(inputs_.at(i)); }
  Buffer output(std::size_t i) const { return buffer(outputs_.at(i)); }
  ConstBufferList inputs() const;
  BufferList outputs() const;
  std::size_t output_count() const { return outputs_.size(); }
  ByteVector content_of_output(std::size_t i) const;

  /// Changes the last byte of the last output, if there is one. For tests of the tests.
  void tamper() const;
  /// What is wrong after the step, in words; empty if every output is as expected and nothing else has changed.
  std::string verify(const std::vector<ByteVector>& expected) const;

 private:
  struct Piece {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  Buffer buffer(const Piece& piece) const;
  void place(std::vector<Piece>& pieces, Layout layout, std::size_t& end) const;
  void write(const Piece& piece, const ByteVector& bytes) const;

  DType dtype_;
  bool hides_empty_pieces_ = false;
  std::vector<Piece> inputs_;
  std::vector<Piece> outputs_;
  ByteVector before_;
  GroupMemory shared_;
  std::vector<std::uint64_t> ordinary_;
  std::uint8_t* base_ = nullptr;
};

}  // namespace cohort::random_programs
