// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/export.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace cohort {

/// Atomically replaces the file at `path`: a reader that opens it finds either the old content or the whole new
/// content. A process that is killed while it writes leaves nothing behind (on file systems without O_TMPFILE, it
/// leaves PATH.new). Throws Error on failure.
COHORT_API void write_whole_file(const std::string& path, std::string_view content);

/// Opens neither a link nor anything but a regular file, and takes memory only for a file of at most `limit` bytes.
/// Throws Error otherwise, and on failure.
COHORT_API std::string read_whole_file(const std::string& path, std::size_t limit);

}  // namespace cohort
