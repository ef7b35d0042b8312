// SPDX-License-Identifier: BSD-3-Clause
#include <torch/version.h>

#if TORCH_VERSION_MAJOR >= 2
constexpr bool is_new = true;
#endif
