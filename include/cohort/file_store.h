// SPDX-License-Identifier: BSD-3-Clause
//
// A store in a file that all ranks can open. It needs no server and no port, but one host or a file system with working
// locks.
//
//   auto store = std::make_shared<cohort::FileStore>("/tmp/job17", world_size);
//
// The file is a log that only grows. Waiting calls look for news at least every 10 ms. Once `world_size` ranks have
// opened the store, the last rank to close it removes the file. A file that is left because all ranks were killed is
// recognised and emptied by the next job. Without a world size the file stays. The file has mode 0600: ranks of other
// users cannot take part.
#pragma once

#include <cohort/store.h>

#include <memory>
#include <string>

namespace cohort {

class COHORT_API FileStore final : public Store {
 public:
  /// Creates the file if it does not exist, and waits up to `timeout` for its folder to appear. Throws StoreError if
  /// what is there is not a store, belongs to another user than this one or root, may be opened by others, or is a
  /// symbolic link or no regular file, and leaves it untouched. `world_size` is -1 if it is not known; 0 is a
  /// ValueError.
  explicit FileStore(std::string path, int world_size = -1, std::chrono::milliseconds timeout = default_timeout);
  ~FileStore() override;

  const std::string& path() const;

  bool has_extended_api() const override { return true; }
  bool has_queues() const override { return false; }
  StorePtr clone() override;

 private:
  class Membership;
  class Log;
  FileStore(std::shared_ptr<Membership> membership, std::chrono::milliseconds timeout);

  StoreReply execute(const StoreRequest& request, Deadline deadline) override;

  std::shared_ptr<Membership> membership_;
  std::unique_ptr<Log> log_;
};

}  // namespace cohort
