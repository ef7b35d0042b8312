// SPDX-License-Identifier: BSD-3-Clause
//
// A store of Cohort's as c10d sees it.
#include <cohort/error.h>
#include <cohort/torch/c10d.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "torch/c10d/store_bytes.h"
#include "torch/compat/features.h"

namespace cohort {

namespace {

class ExportedStore final : public c10d::Store {
 public:
  explicit ExportedStore(StorePtr store) : c10d::Store(store->timeout()), store_(std::move(store)) {}

  void set(const std::string& key, const C10dBytes& value) override { store_->set(key, store_text(value)); }
  C10dBytes get(const std::string& key) override { return store_bytes(store_->get(key)); }
  C10dBytes compareSet(const std::string& key, const C10dBytes& expected, const C10dBytes& desired) override {
    return store_bytes(store_->compare_set(key, store_text(expected), store_text(desired)));
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_->add(key, amount); }
  bool deleteKey(const std::string& key) override { return store_->delete_key(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  std::int64_t getNumKeys() override { return store_->num_keys(); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }
  /// A timeout of 0 is c10d's for no limit.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, timeout.count() == 0 ? no_timeout : timeout);
  }
  void setTimeout(const std::chrono::milliseconds& timeout) override {
    store_->set_timeout(timeout.count() == 0 ? no_timeout : timeout);
    c10d::Store::setTimeout(timeout);
  }

#if COHORT_TORCH_HAS_C10D_BACKEND
  // Without `override`, since they came at different times after 2.0.
  c10::intrusive_ptr<c10d::Store> clone() { return c10::make_intrusive<ExportedStore>(store_->clone()); }
  void append(const std::string& key, const C10dBytes& value) { store_->append(key, store_text(value)); }
  std::vector<C10dBytes> multiGet(const std::vector<std::string>& keys) {
    std::vector<C10dBytes> values;
    for (const auto& value : store_->multi_get(keys)) values.push_back(store_bytes(value));
    return values;
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<C10dBytes>& values) {
    std::vector<std::string> texts;
    for (const auto& value : values) texts.emplace_back(store_text(value));
    store_->multi_set(keys, texts);
  }
  bool hasExtendedApi() const { return store_->has_extended_api(); }
  void queuePush(const std::string& key, const C10dBytes& value) { store_->queue_push(key, store_text(value)); }
  C10dBytes queuePop(const std::string& key, bool block) { return store_bytes(store_->queue_pop(key, block)); }
  std::int64_t queueLen(const std::string& key) { return store_->queue_len(key); }
#endif

 private:
  const StorePtr store_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> to_c10d(StorePtr store) {
  if (store == nullptr) throw ValueError("to_c10d: no store");
  return c10::make_intrusive<ExportedStore>(std::move(store));
}

}  // namespace cohort
