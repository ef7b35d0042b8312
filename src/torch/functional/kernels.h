// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace torch {
class Library;
}

namespace cohort::functional {

/// The kernels that communicate; the same for the host and for devices, whose groups differ in their backends.
void add_kernels(torch::Library& library);
/// Kernels for tensors without memory: they return tensors of the right sizes, strides and dtype.
void add_shape_only_kernels(torch::Library& library);

}  // namespace cohort::functional
