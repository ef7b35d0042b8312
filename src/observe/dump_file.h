// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

namespace cohort::observe {

/// Puts a file with this content at `path`, in place of what was there, so that whoever opens it finds the old content
/// or the whole new one. A process killed while writing leaves nothing (on file systems without O_TMPFILE: PATH.new).
/// An Error when it does not work.
void write_whole_file(const std::string& path, std::string_view content);

}  // namespace cohort::observe
