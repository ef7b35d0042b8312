// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace cohort::python {

/// From now on, errors of the library become exceptions of these classes of Python (cohort/errors.py), by kind. That
/// holds for errors that come through PyTorch's own functions as well: pybind11 shares its translators among modules.
void set_error_classes(const pybind11::dict& classes);

}  // namespace cohort::python
