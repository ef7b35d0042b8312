// SPDX-License-Identifier: BSD-3-Clause
//
// What a store is asked to do, and what it replies. Users call the functions of Store; these types are for stores of
// your own, which implement one function. This one counts the requests to another store:
//
//   class CountingStore final : public cohort::Store {
//    public:
//     explicit CountingStore(cohort::StorePtr inner) : inner_(std::move(inner)) {}
//     bool has_extended_api() const override { return inner_->has_extended_api(); }
//     bool has_queues() const override { return inner_->has_queues(); }
//     cohort::StorePtr clone() override { return std::make_shared<CountingStore>(inner_->clone()); }
//
//    private:
//     cohort::StoreReply execute(const cohort::StoreRequest& request, cohort::Deadline deadline) override {
//       ++count_;
//       return execute_on(*inner_, request, deadline);
//     }
//     cohort::StorePtr inner_;
//     std::atomic<int> count_{0};
//   };
//
// A store with data of its own switches on request.op and implements each operation as described below.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

/// Each operation of Store, with what its request holds and what its reply must hold.
enum class StoreOp : std::uint8_t {
  set,          ///< keys and values: each key is set to the value beside it
  get,          ///< keys: waits for all of them; replies with their values in the same order
  add,          ///< a key and the number to add; replies with the sum as number
  compare_set,  ///< a key and the values expected and desired; replies with one value
  wait,         ///< keys: returns when all of them exist
  check,        ///< keys: replies with number 1 if all of them exist, otherwise 0
  delete_key,   ///< a key: replies with number 1 if there was something to remove, otherwise 0
  num_keys,     ///< replies with number
  append,       ///< a key and a value
  queue_push,   ///< a key and a value
  queue_pop,    ///< a key, and `block`: waits for a value if true; replies with one value
  queue_len,    ///< a key: replies with number
};

/// The keys and values belong to the caller and are valid until execute() returns. A store without has_extended_api()
/// is asked to set or get one key at a time.
struct StoreRequest {
  StoreOp op = StoreOp::set;
  std::vector<std::string_view> keys{};
  std::vector<std::string_view> values{};
  std::int64_t number = 0;
  bool block = true;
};

struct StoreReply {
  std::int64_t number = 0;
  std::vector<std::string> values{};
};

}  // namespace cohort
