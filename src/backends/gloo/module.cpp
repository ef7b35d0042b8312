// SPDX-License-Identifier: BSD-3-Clause
//
// The module libcohort_gloo.so: backends/gloo/engine_interface.h on Gloo's TCP transport.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/reduce.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "backends/common/deadline_timer.h"
#include "backends/gloo/engine_interface.h"
#include "backends/gloo/quiet_pipes.h"
#include "backends/gloo/watched_transport.h"

namespace cohort::gloo {

namespace {

/// Longer than any deadline; Gloo adds it to the current time.
constexpr std::chrono::hours for_ever{24 * 365};

/// Gloo has only a blocking wait, which fails the whole mesh when its timeout expires, but which another thread can end
/// without harm. A caller that has time therefore waits itself, with a timer set; one that has none leaves the waiting
/// to a thread.
class Piece final : public Message {
 public:
  explicit Piece(std::unique_ptr<::gloo::transport::UnboundBuffer> buffer) : buffer_(std::move(buffer)) {}
  ~Piece() override {
    if (!waiter_.joinable()) return;
    end_wait();
    waiter_.join();
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  void send(int to, std::uint64_t slot, std::size_t bytes) override {
    const QuietPipes quiet;
    is_send_ = true;
    buffer_->send(to, slot, 0, bytes);
  }
  void recv(int from, std::uint64_t slot, std::size_t bytes) override {
    const QuietPipes quiet;
    buffer_->recv(from, slot, 0, bytes);
  }
  void recv_any(std::span<const int> from, std::uint64_t slot, std::size_t bytes) override {
    const QuietPipes quiet;
    buffer_->recv(std::vector<int>(from.begin(), from.end()), slot, 0, bytes);
  }

  bool is_done(Time until) override {
    std::unique_lock lock(mutex_);
    const bool has_time = until > std::chrono::steady_clock::now();
    if (!ended() && !is_waited_for_) {
      is_waited_for_ = true;
      if (has_time) {
        lock.unlock();
        wait(until);
        lock.lock();
      } else {
        if (waiter_.joinable()) waiter_.join();  // it ended together with an earlier wait
        waiter_ = std::thread([this] {
          ::pthread_setname_np(::pthread_self(), "cohort-gloo");
          wait(Time::max());
        });
      }
    }
    if (has_time) changed_.wait_until(lock, until, [this] { return ended(); });
    if (error_) std::rethrow_exception(error_);
    return is_done_;
  }
  int peer() const override { return peer_; }

 private:
  bool ended() const { return is_done_ || error_ != nullptr; }
  void end_wait() { is_send_ ? buffer_->abortWaitSend() : buffer_->abortWaitRecv(); }

  void wait(Time until) {
    bool done = false;
    int peer = -1;
    std::exception_ptr error;
    try {
      const auto gloo_wait = [&] {
        return is_send_ ? buffer_->waitSend(&peer, for_ever) : buffer_->waitRecv(&peer, for_ever);
      };
      if (until == Time::max()) {
        done = gloo_wait();
      } else {
        const DeadlineTimer timer(until, [this] { end_wait(); });
        done = gloo_wait();
      }
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    is_waited_for_ = false;
    is_done_ = done;
    peer_ = peer;
    error_ = error;
    changed_.notify_all();
  }

  std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
  bool is_send_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_waited_for_ = false;
  bool is_done_ = false;
  int peer_ = -1;
  std::exception_ptr error_;
  std::thread waiter_;
};

/// Gloo's Context with access to its transport.
class OpenContext final : public ::gloo::Context {
 public:
  OpenContext(int own_rank, int ranks) : ::gloo::Context(own_rank, ranks) {}

  void attach(std::shared_ptr<::gloo::transport::Device> device, std::chrono::milliseconds timeout) {
    device_ = std::move(device);
    setTimeout(timeout);
    const auto inner = device_->createContext(rank, size);
    inner->setTimeout(timeout);
    watched_ = std::make_shared<WatchedTransport>(inner);
    transportContext_ = watched_;
  }
  WatchedTransport& transport() { return *watched_; }

 private:
  std::shared_ptr<WatchedTransport> watched_;
};

/// One thread moves the bytes of all meshes that use an address.
std::shared_ptr<::gloo::transport::Device> device_of(const std::string& address) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<::gloo::transport::Device>> devices;
  const std::lock_guard lock(mutex);
  auto& known = devices[address];
  auto device = known.lock();
  if (device == nullptr) {
    const QuietPipes quiet;  // for the thread that it starts
    device = ::gloo::transport::tcp::CreateDevice(::gloo::transport::tcp::attr(address.c_str()));
    known = device;
  }
  return device;
}

class TcpMesh final : public Mesh {
 public:
  explicit TcpMesh(const MeshOptions& options) : context_(std::make_shared<OpenContext>(options.rank, options.size)) {
    context_->attach(device_of(options.address), options.timeout);
  }
  /// Closes the pairs without waiting for what the peers still send.
  ~TcpMesh() override { context_->closeConnections(); }
  TcpMesh(const TcpMesh&) = delete;
  TcpMesh& operator=(const TcpMesh&) = delete;

  void connect(const Put& put, const Get& get) override {
    const QuietPipes quiet;
    // Each pair listens at an address of its own; a rank publishes the addresses of all its pairs in rank order.
    std::string mine;
    std::size_t each = 0;
    for (int peer = 0; peer < context_->size; ++peer) {
      if (peer == context_->rank) continue;
      const auto bytes = context_->transport().createPair(peer)->address().bytes();
      each = bytes.size();
      mine.append(bytes.begin(), bytes.end());
    }
    put("address/" + std::to_string(context_->rank), mine);
    for (int peer = 0; peer < context_->size; ++peer) {
      if (peer == context_->rank) continue;
      const auto theirs = get("address/" + std::to_string(peer));
      const auto place = each * static_cast<std::size_t>(context_->rank < peer ? context_->rank : context_->rank - 1);
      if (theirs.size() != mine.size())
        throw std::runtime_error("rank " + std::to_string(peer) + " published an address of another kind");
      const auto address = theirs.substr(place, each);
      context_->transport().getPair(peer)->connect(std::vector<char>(address.begin(), address.end()));
    }
  }

  void all_reduce(const Operands& data, const Combine& combine, std::uint32_t tag,
                  std::chrono::milliseconds timeout) override {
    const QuietPipes quiet;
    ::gloo::AllreduceOptions options(context_);
    fill(options, data, tag, timeout);
    options.setReduceFunction(combine);
    ::gloo::allreduce(options);
  }
  void reduce(const Operands& data, const Combine& combine, int root, std::uint32_t tag,
              std::chrono::milliseconds timeout) override {
    const QuietPipes quiet;
    ::gloo::ReduceOptions options(context_);
    fill(options, data, tag, timeout);
    options.setReduceFunction(combine);
    options.setRoot(root);
    ::gloo::reduce(options);
  }
  void broadcast(void* data, std::size_t bytes, int root, std::uint32_t tag,
                 std::chrono::milliseconds timeout) override {
    const QuietPipes quiet;
    ::gloo::BroadcastOptions options(context_);
    options.setOutput(static_cast<char*>(data), bytes);
    options.setRoot(root);
    options.setTag(tag);
    options.setTimeout(timeout);
    ::gloo::broadcast(options);
  }
  void all_gather(const void* in, void* out, std::size_t bytes, std::uint32_t tag,
                  std::chrono::milliseconds timeout) override {
    const QuietPipes quiet;
    ::gloo::AllgatherOptions options(context_);
    // Gloo only reads it, but its interface is not const.
    if (in != nullptr) options.setInput(static_cast<char*>(const_cast<void*>(in)), bytes);
    options.setOutput(static_cast<char*>(out), bytes * static_cast<std::size_t>(context_->size));
    options.setTag(tag);
    options.setTimeout(timeout);
    ::gloo::allgather(options);
  }
  void barrier(std::uint32_t tag, std::chrono::milliseconds timeout) override {
    const QuietPipes quiet;
    ::gloo::BarrierOptions options(context_);
    options.setTag(tag);
    options.setTimeout(timeout);
    ::gloo::barrier(options);
  }

  std::unique_ptr<Message> message(void* data, std::size_t bytes) override {
    return std::make_unique<Piece>(context_->createUnboundBuffer(data, bytes));
  }

  void fail(const std::string& /*why*/) override {
    context_->transport().give_up();
    // A wait that times out makes Gloo fail every connection of a context and wake everyone who waits on them.
    char nothing = 0;
    const auto buffer = context_->createUnboundBuffer(&nothing, 0);
    try {
      buffer->waitRecv(std::chrono::milliseconds(1));
    } catch (const ::gloo::Exception&) {  // expected
    }
    context_->transport().end_waits();
  }
  bool is_broken(int rank) override {
    const QuietPipes quiet;
    char nothing = 0;
    const auto buffer = context_->createUnboundBuffer(&nothing, 0);
    try {
      buffer->recv(rank, ~std::uint64_t{0});
    } catch (const ::gloo::Exception&) {
      return true;
    }
    return false;
  }

 private:
  template <class Options>
  static void fill(Options& options, const Operands& data, std::uint32_t tag, std::chrono::milliseconds timeout) {
    with_width(data.element_bytes, [&](auto element) {
      using Element = decltype(element);
      if (data.in != data.out) {
        options.setInput(static_cast<Element*>(const_cast<void*>(data.in)), data.count);
      }
      options.setOutput(static_cast<Element*>(data.out), data.count);
    });
    options.setTag(tag);
    options.setTimeout(timeout);
  }
  /// Gloo takes the width of an element from a type.
  template <class Use>
  static void with_width(std::size_t bytes, Use&& use) {
    struct Wide {
      char bytes[16];  // NOLINT(modernize-avoid-c-arrays)
    };
    switch (bytes) {
      case 1:
        return use(std::uint8_t{});
      case 2:
        return use(std::uint16_t{});
      case 4:
        return use(std::uint32_t{});
      case 8:
        return use(std::uint64_t{});
      case 16:
        return use(Wide{});
      default:
        throw std::invalid_argument("elements of " + std::to_string(bytes) + " bytes");
    }
  }

  std::shared_ptr<OpenContext> context_;
};

}  // namespace

}  // namespace cohort::gloo

// Both sides are C++ of one build; C linkage only fixes the name.
#ifdef __clang__
#pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
#endif
extern "C" __attribute__((visibility("default"))) std::unique_ptr<cohort::gloo::Mesh> cohort_gloo_make_mesh_1(
    const cohort::gloo::MeshOptions& options) {
  return std::make_unique<cohort::gloo::TcpMesh>(options);
}
