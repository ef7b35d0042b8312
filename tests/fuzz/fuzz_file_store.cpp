// SPDX-License-Identifier: BSD-3-Clause
//
// A file that claims to be a store: whatever is in it, opening and reading it ends with an answer or an Error.
#include <cohort/error.h>
#include <cohort/file_store.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "accepted.h"
#include "core/file_descriptor.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string path = "/tmp/cohort-fuzz-file-store-XXXXXX";
  const cohort::FileDescriptor fd(::mkstemp(path.data()));
  if (!fd || ::write(fd.get(), data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    cohort::FileStore store(path, -1, std::chrono::milliseconds(100));
    store.num_keys();
    store.set("k", "v");
    if (store.get("k") != "v") std::abort();
    cohort::fuzz::accepted = true;
  } catch (const cohort::Error&) {  // NOLINT(bugprone-empty-catch): a refusal is an answer
  }
  ::unlink(path.c_str());
  return 0;
}
