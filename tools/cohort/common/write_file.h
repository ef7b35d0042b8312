// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <string_view>

#include "common/throw_errno.h"

namespace cohort::tool {

/// Throws an Error that names the file where it cannot be written.
inline void write_file(const std::string& path, std::string_view text) {
  std::ofstream out(path);
  out << text;
  if (!out.flush()) throw_errno(fmt::format("cannot write {}", path));
}

/// For results that take long to make: throws the same Error before they are made. Keeps what is in the file.
inline void expect_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app)) throw_errno(fmt::format("cannot write {}", path));
}

}  // namespace cohort::tool
