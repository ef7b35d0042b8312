// SPDX-License-Identifier: BSD-3-Clause
//
// What some versions of libtorch lack, from 1.13 to 2.14. Only this folder knows versions: other code asks for a
// feature by these names, or uses the types and functions of the other headers here. docs/libtorch.md says what a new
// version needs.
#pragma once

#include <torch/version.h>

#define COHORT_TORCH_SINCE(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

/// c10d::Backend: a group has one for each type of device. Before, a group is its backend.
#define COHORT_TORCH_HAS_C10D_BACKEND COHORT_TORCH_SINCE(2, 0)
/// at::_foreach_copy_().
#define COHORT_TORCH_HAS_FOREACH_COPY COHORT_TORCH_SINCE(2, 1)
/// Unsigned integers of 16, 32 and 64 bits, and floating point numbers of 8.
#define COHORT_TORCH_HAS_NARROW_FLOATS_AND_WIDE_UNSIGNED COHORT_TORCH_SINCE(2, 3)
/// Autocast of any type of device, by one function.
#define COHORT_TORCH_HAS_AUTOCAST_BY_DEVICE COHORT_TORCH_SINCE(2, 4)
/// c10::Stream::native_handle(), without which no stream of an accelerator can be passed on.
#define COHORT_TORCH_HAS_STREAM_HANDLES COHORT_TORCH_SINCE(2, 11)

/// c10d's splitGroup() numbers the members in the order in which they are given. Before (2.11 seen), in ascending
/// order.
#define COHORT_TORCH_SPLIT_KEEPS_ORDER COHORT_TORCH_SINCE(2, 14)

/// FakeTensor in C++, which takes DispatchKey::Fake for itself: since 2.14, and the version that registers a fallback
/// on the key is not yet released, so the header says it.
#if __has_include(<c10/core/impl/FakeTensorModeTLS.h>)
#define COHORT_TORCH_HAS_FAKE_TENSORS 1
#else
#define COHORT_TORCH_HAS_FAKE_TENSORS 0
#endif
