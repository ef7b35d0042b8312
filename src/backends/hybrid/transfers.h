// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace cohort::hybrid {

/// The backend through which a rank is reached, and the number of that rank in it.
struct Route {
  Backend* backend = nullptr;
  int peer = 0;
};

/// A transfer of one part of the group, whose ranks and errors are translated to those of the whole group.
class TranslatedTransfer final : public Transfer {
 public:
  using Explain = std::function<void(const BackendError&)>;
  /// `peer` is the source in this group if it is known; if it is negative, the inner transfer tells the source.
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
  void someone_waits() override { inner_->someone_waits(); }
  void miss_deadline() override {
    said_here([&] {
      inner_->miss_deadline();
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

/// A receive from any rank, on this host or another: it polls both parts in turn, so that it takes only messages that
/// no other receive waits for.
class ReceiveFromEither final : public Transfer {
 public:
  ReceiveFromEither(Backend& local, std::vector<int> here, Backend& world, Operation op, const Call& call)
      : local_(local), here_(std::move(here)), world_(world), op_(std::move(op)), call_(call) {}

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
