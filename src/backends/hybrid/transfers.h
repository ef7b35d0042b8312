// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace cohort::hybrid {

/// Which backend leads to a rank, and what the rank is called there.
struct Route {
  Backend* backend = nullptr;
  int peer = 0;
};

/// A transfer of a part, in words of the whole group.
class TranslatedTransfer final : public Transfer {
 public:
  using Explain = std::function<void(const BackendError&)>;
  /// `peer`: the source in this group where it is known, else what the inner transfer says.
  TranslatedTransfer(std::unique_ptr<Transfer> inner, int peer, Explain explain)
      : inner_(std::move(inner)), peer_(peer), explain_(std::move(explain)) {}

  bool advance() override {
    return said_here([&] { return inner_->advance(); });
  }
  void check() override {
    said_here([&] {
      inner_->check();
      return true;
    });
  }
  bool has_begun() const override { return inner_->has_begun(); }
  int source() const override { return peer_ >= 0 ? peer_ : inner_->source(); }

 private:
  template <class Run>
  bool said_here(Run&& run) {
    try {
      return run();
    } catch (const BackendError& e) {
      explain_(e);
      throw;
    }
  }

  std::unique_ptr<Transfer> inner_;
  int peer_;
  Explain explain_;
};

/// A receive from any rank, of this host or of others: asks both in turn, so it takes what no other receive waits for.
class ReceiveFromEither final : public Transfer {
 public:
  ReceiveFromEither(Backend& local, std::vector<int> here, Backend& world, const Operation& op, const Call& call)
      : local_(local), here_(std::move(here)), world_(world), op_(op), call_(call) {}

  bool advance() override {
    for (int looks = 0; looks < 2; ++looks) {
      if (current_ == nullptr) {
        auto& backend = asks_local_ ? local_ : world_;
        current_ = backend.start_recv(op_, call_);
      }
      if (current_->advance()) return true;
      if (current_->has_begun()) return false;
      current_.reset();
      asks_local_ = !asks_local_;
    }
    return false;
  }
  bool has_begun() const override { return current_ != nullptr; }
  int source() const override {
    const int source = current_->source();
    return asks_local_ ? here_[static_cast<std::size_t>(source)] : source;
  }

 private:
  Backend& local_;
  std::vector<int> here_;
  Backend& world_;
  const Operation op_;
  Call call_;
  bool asks_local_ = true;
  std::unique_ptr<Transfer> current_;
};

}  // namespace cohort::hybrid
