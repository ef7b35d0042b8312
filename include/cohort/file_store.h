// SPDX-License-Identifier: BSD-3-Clause
//
// A store in a file that all ranks can open: no server, no port. For one host, or a file system with working locks.
//
//   auto store = std::make_shared<cohort::FileStore>("/tmp/job17", world_size);
//
// The file is a log that only grows; readers follow it, every 10 ms at most. When `world_size` ranks have opened the
// store and the last of them is gone, by exit or by death, the file is removed by the last that leaves in order; one
// left behind because all were killed is recognised and emptied by the next job. With no world size the file stays.
#pragma once

#include <cohort/store.h>

#include <memory>
#include <string>

namespace cohort {

class COHORT_API FileStore final : public Store {
 public:
  /// Creates the file if need be; waits up to `timeout` for its folder to appear. A file that is there and is not a
  /// store is a StoreError and stays untouched. `world_size` 0 is a ValueError; -1: not known.
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

  void do_set(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string do_get(std::string_view key, Deadline deadline) override;
  std::int64_t do_add(std::string_view key, std::int64_t amount, Deadline deadline) override;
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             Deadline deadline) override;
  void do_wait(const Keys& keys, Deadline deadline) override;
  bool do_check(const Keys& keys, Deadline deadline) override;
  bool do_delete_key(std::string_view key, Deadline deadline) override;
  std::int64_t do_num_keys(Deadline deadline) override;
  void do_append(std::string_view key, std::string_view value, Deadline deadline) override;

  std::shared_ptr<Membership> membership_;
  std::unique_ptr<Log> log_;
};

}  // namespace cohort
