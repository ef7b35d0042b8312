// SPDX-License-Identifier: BSD-3-Clause
//
// A store of c10d's as Cohort sees it.
#include <cohort/error.h>
#include <cohort/torch/c10d.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "torch/c10d/error_text.h"
#include "torch/c10d/store_bytes.h"

namespace cohort {

namespace {

std::chrono::milliseconds time_left(Deadline deadline) {
  if (deadline.is_never()) return c10d::Store::kNoTimeout;
  return std::max(std::chrono::milliseconds(1), std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
}

/// A template, so that what libtorch 1.13 does not have yet can be asked for.
template <class C10dStore>
class ImportedStore final : public Store {
 public:
  explicit ImportedStore(c10::intrusive_ptr<C10dStore> store) : store_(std::move(store)) {
    const auto timeout = store_->getTimeout();
    if (timeout.count() > 0) set_timeout(timeout);
  }

  bool has_extended_api() const override {
    if constexpr (is_extended) {
      return store_->hasExtendedApi();
    } else {
      return false;
    }
  }
  /// c10d's stores do not say whether they have them.
  bool has_queues() const override { return false; }
  StorePtr clone() override {
    if constexpr (requires(C10dStore& store) { store.clone(); }) {
      return std::make_shared<ImportedStore>(store_->clone());
    } else {
      return std::make_shared<ImportedStore>(store_);
    }
  }

 private:
  static constexpr bool is_extended = requires(C10dStore& store) { store.hasExtendedApi(); };

  StoreReply execute(const StoreRequest& request, Deadline deadline) override {
    try {
      return ask(request, deadline);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      if (deadline.expired() && (request.op == StoreOp::get || request.op == StoreOp::wait)) {
        throw StoreTimeoutError(
            fmt::format("no value for {} in time; the store says: {}", fmt::join(request.keys, ", "), text_of(e)));
      }
      throw StoreError(fmt::format("the store of torch.distributed failed: {}", text_of(e)));
    }
  }

  StoreReply ask(const StoreRequest& request, Deadline deadline) {
    const auto key = request.keys.empty() ? std::string() : std::string(request.keys.front());
    switch (request.op) {
      case StoreOp::set:
        return set_all(request);
      case StoreOp::get:
        return get_all(request, deadline);
      case StoreOp::add:
        return {.number = store_->add(key, request.number)};
      case StoreOp::compare_set:
        return {.values = {store_text(
                    store_->compareSet(key, store_bytes(request.values[0]), store_bytes(request.values[1])))}};
      case StoreOp::wait:
        store_->wait(keys_of(request), time_left(deadline));
        return {};
      case StoreOp::check:
        return {.number = store_->check(keys_of(request)) ? 1 : 0};
      case StoreOp::delete_key:
        return {.number = store_->deleteKey(key) ? 1 : 0};
      case StoreOp::num_keys:
        return {.number = store_->getNumKeys()};
      case StoreOp::append:
        if constexpr (is_extended) {
          store_->append(key, store_bytes(request.values[0]));
          return {};
        }
        throw NotSupportedError("stores of this libtorch cannot append");
      default:
        throw NotSupportedError("a store of torch.distributed has no queues here");
    }
  }

  /// A store without the extended API is asked for one key at a time.
  StoreReply set_all(const StoreRequest& request) {
    if constexpr (is_extended) {
      if (request.keys.size() > 1) {
        std::vector<C10dBytes> values;
        for (const auto& value : request.values) values.push_back(store_bytes(value));
        store_->multiSet(keys_of(request), values);
        return {};
      }
    }
    store_->set(std::string(request.keys.front()), store_bytes(request.values.front()));
    return {};
  }

  StoreReply get_all(const StoreRequest& request, Deadline deadline) {
    const auto keys = keys_of(request);
    // c10d's get() waits for the store's own timeout, which cannot be set for one call.
    store_->wait(keys, time_left(deadline));
    StoreReply reply;
    if constexpr (is_extended) {
      if (keys.size() > 1) {
        for (const auto& value : store_->multiGet(keys)) reply.values.push_back(store_text(value));
        return reply;
      }
    }
    reply.values.push_back(store_text(store_->get(keys.front())));
    return reply;
  }

  static std::vector<std::string> keys_of(const StoreRequest& request) {
    return {request.keys.begin(), request.keys.end()};
  }

  const c10::intrusive_ptr<C10dStore> store_;
};

}  // namespace

StorePtr from_c10d(c10::intrusive_ptr<c10d::Store> store) {
  if (!store) throw ValueError("from_c10d: no store");
  return std::make_shared<ImportedStore<c10d::Store>>(std::move(store));
}

}  // namespace cohort
