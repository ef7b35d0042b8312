// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/log.h>

#include <mutex>
#include <string>

namespace cohort::test {

/// Captures what is logged during its lifetime. Only one may exist at a time.
class LogCapture {
 public:
  LogCapture() {
    set_log_sink([this](const LogRecord& record) {
      const std::lock_guard lock(mutex_);
      text_ += std::string(record.message) + "\n";
    });
  }
  ~LogCapture() { set_log_sink(nullptr); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

}  // namespace cohort::test
