// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/error.h>
#include <cohort/export.h>

#include <string>
#include <utility>

namespace cohort {

/// The file is not an intact checkpoint, cannot be read or written, or does not match what is to be loaded. The message
/// begins with the file's name.
class COHORT_API CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message, ErrorContext context = {})
      : Error(ErrorKind::error, message, std::move(context)) {}
};

}  // namespace cohort
