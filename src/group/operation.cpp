// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/operation.h>

namespace cohort {

Operation Operation::moving(OpType type, std::span<const ConstBytes> ins, std::span<const Bytes> outs, int root,
                            DType dtype) {
  return {.type = type,
          .dtype = dtype,
          .root = root,
          .ins = detail::SmallList<ConstBytes>(ins),
          .outs = detail::SmallList<Bytes>(outs)};
}

Operation Operation::reduction(OpType type, std::span<const ConstBytes> ins, std::span<const Bytes> outs, DType dtype,
                               const ReduceOp& op) {
  return {.type = type,
          .dtype = dtype,
          .reduce = op,
          .ins = detail::SmallList<ConstBytes>(ins),
          .outs = detail::SmallList<Bytes>(outs)};
}

}  // namespace cohort
