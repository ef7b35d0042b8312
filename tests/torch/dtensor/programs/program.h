// SPDX-License-Identifier: BSD-3-Clause
//
// Small programs of operators on distributed tensors. The same program runs on dense tensors, which is what it must
// compute.
#pragma once

#include <ATen/ATen.h>
#include <cohort/torch/placement.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <random>
#include <string>
#include <vector>

namespace cohort::test::programs {

using Sizes = std::vector<std::int64_t>;
using Tensors = std::vector<at::Tensor>;
using Numbers = std::vector<std::int64_t>;
using Random = std::mt19937;

/// An input, or what an operator makes of earlier values.
struct Value {
  std::string op = "input";
  std::vector<std::size_t> arguments{};  ///< earlier values
  Numbers numbers{};                     ///< the sizes of an input; which dimension and the like of an operator
  Placements placements{};               ///< of an input, and the target of "redistribute"
  std::int64_t below = 0;  ///< an input with integers below this, for indices; 0: numbers of double precision
};

struct Program {
  Sizes shape;  ///< of the mesh
  std::vector<Value> values{};
};

/// As C++, for a regression test.
std::string to_string(const Program& program);
std::ostream& operator<<(std::ostream& out, const Program& program);

/// The operator does not take such tensors.
struct Unfit {};

/// An argument after the first.
struct Wanted {
  Sizes sizes;
  std::int64_t below = 0;
};

struct Operator {
  std::string name;
  /// Throws Unfit or an error of libtorch if the tensors do not fit. Numbers count modulo what is possible.
  std::function<at::Tensor(const Tensors&, const Numbers&)> run;
  /// Arguments that fit the first one; throws Unfit.
  std::function<std::vector<Wanted>(const Sizes& first, Random& random)> others{};
  /// Views that would cut a sharded dimension are refused; the program then goes on with replicated arguments.
  bool may_refuse = false;
  bool is_wrong = false;  ///< with a fault of its own, to see that it is found; not for random programs
};
const std::vector<Operator>& operators();
const Operator& operator_named(const std::string& name);

/// The values of a dense run. Inputs of double precision are leaves that require gradients. Throws Unfit if the program
/// makes no sense.
Tensors run_dense(const Program& program);
/// The same for one value, of the earlier ones.
at::Tensor dense_value(const Value& value, std::size_t number, const Tensors& earlier);
/// Whether run_dense() and all placements fit.
bool is_fit(const Program& program);

/// The program of a seed, with up to `most` operators.
Program generate(std::uint32_t seed, std::size_t most = 6);

/// What is wrong, for each program; empty: nothing. The programs have the same mesh.
std::vector<std::string> failures_of(const std::vector<Program>& programs);
std::string failure_of(const Program& program);
/// How many backwards have been refused by now, as it is documented for some placements: these programs were compared
/// forward only.
std::size_t refused_backwards();

/// The smallest program that can be found within the time for which `fails` still says true.
Program shrink(Program program, const std::function<bool(const Program&)>& fails, std::chrono::milliseconds limit);

}  // namespace cohort::test::programs
