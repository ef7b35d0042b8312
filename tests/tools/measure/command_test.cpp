// SPDX-License-Identifier: BSD-3-Clause
#include "measure/command.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "support/expect_error.h"

namespace {

using namespace cohort::measure;
using cohort::DType;
using cohort::ValueError;

TEST(BenchCommand, SurvivesItsLine) {
  const Command command{.operation = Operation::reduce_scatter,
                        .dtype = DType::bf16,
                        .reduction = Reduction::max,
                        .bytes = 65536,
                        .root = 3,
                        .warmup = 7,
                        .iters = 11,
                        .batch = 13,
                        .back_to_back = true,
                        .blocking = false,
                        .in_place = false,
                        .check = true,
                        .limit = std::chrono::microseconds(1234)};
  EXPECT_EQ(parse_command(to_line(command)), command);
}

TEST(BenchCommand, OtherLinesAreRefused) {
  const auto line = to_line(Command{});
  const auto with = [&](const std::string& piece, const std::string& other) {
    return std::regex_replace(line, std::regex(piece), other);
  };
  for (const auto& wrong :
       {std::string(), std::string("all_reduce"), with("\"bytes\":0,", ""), with("\"bytes\":0", "\"bytes\":[]")}) {
    EXPECT_ERROR(ValueError, parse_command(wrong), "not a line of a benchmark driver");
  }
  EXPECT_ERROR(ValueError, parse_command(with("all_reduce", "dance")), "\"dance\" is no collective");
}

TEST(BenchAnswer, SurvivesItsLine) {
  const Answer answer{.microseconds = {0.5, 1234.25, 3}, .batch = 12, .wrong = 4};
  EXPECT_EQ(parse_answer(to_line(answer)), answer);
}

TEST(BenchAnswer, ReasonsStayInOneLine) {
  const auto line = to_line(Answer{.error = "first\nsecond"});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(parse_answer(line).error, "first\nsecond");
  EXPECT_EQ(parse_answer(to_line(Answer{.refusal = "has none"})).refusal, "has none");
}

TEST(BenchAnswer, OtherLinesAreRefused) {
  for (const auto* const line : {"", "okay", "{}", R"({"batch":1,"wrong":0})", R"({"batch":1,"wrong":0,"us":[]})",
                                 R"({"batch":1,"wrong":0,"us":["two"]})", R"({"batch":"x","wrong":0,"us":[1]})"}) {
    EXPECT_ERROR(ValueError, parse_answer(line), "not a line of a benchmark driver");
  }
}

TEST(BenchOperation, NamesOfNcclTestsAreKnown) {
  EXPECT_EQ(parse_operation("allreduce"), Operation::all_reduce);
  EXPECT_EQ(parse_operation("sendrecv"), Operation::send_recv);
  for (const auto operation : all_operations()) EXPECT_EQ(parse_operation(to_string(operation)), operation);
  EXPECT_ERROR(ValueError, parse_operation("all-reduce"), "all_reduce, broadcast");
}

TEST(BenchOperation, SizesAreThoseOfTheWholeArray) {
  EXPECT_EQ(element_count(Operation::all_reduce, 64, DType::f32, 4), 16U);
  EXPECT_EQ(element_count(Operation::all_gather, 64, DType::f32, 4), 4U);
  EXPECT_EQ(total_bytes(Operation::all_gather, 4, DType::f32, 4), 64U);
  EXPECT_EQ(element_count(Operation::all_to_all, 4, DType::f32, 4), 1U) << "at least one";
  EXPECT_EQ(total_bytes(Operation::all_to_all, 1, DType::f32, 4), 16U);
  EXPECT_EQ(element_count(Operation::barrier, 64, DType::f32, 4), 0U);
}

TEST(BenchOperation, BusFactors) {
  EXPECT_DOUBLE_EQ(bus_factor(Operation::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::reduce_scatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::all_to_all, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::broadcast, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::reduce, 8), 1);
}

}  // namespace
