// SPDX-License-Identifier: BSD-3-Clause
//
// A folder that is removed when the test is over.
#pragma once

#include <ftw.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace cohort::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cohort-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    // std::filesystem::remove_all is not used, because the one that PyTorch's builds of libtorch export crashes.
    const auto remove_one = [](const char* name, const struct stat* /*what*/, int /*type*/, struct FTW* /*where*/) {
      return ::remove(name);
    };
    ::nftw(path_.c_str(), remove_one, 16, FTW_DEPTH | FTW_PHYS);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace cohort::test
