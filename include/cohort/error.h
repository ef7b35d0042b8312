// SPDX-License-Identifier: BSD-3-Clause
//
// Errors: one family, typed by what went wrong, each carrying who and where.
//
//   try {
//     store->get("config");
//   } catch (const cohort::StoreTimeoutError& e) {   // just this one
//   } catch (const cohort::Error& e) {               // everything Cohort throws
//     if (e.kind() == cohort::ErrorKind::timeout) retry();  // any timeout, whichever layer it came from
//     std::cerr << e.what();                          // message, then [group, op, seq, rank] as far as known
//   }
//
// Which class is thrown when, beside the reference system's name for it:
//
// ```text
//   reference kind        class                  kind()          thrown for
//   --------------------  ---------------------  --------------  ------------------------------------------------
//   Error                 Error                  error           argument checks, generic failures
//   ValueError            ValueError             value           a value out of range, malformed or missing
//   TypeError             TypeError              type            a value of the wrong type
//   KeyError              KeyError               key             an unknown option or key
//   IndexError            IndexError             index           an index out of range
//   AssertionError        AssertionError         assertion       something given that must not be (twice, or at all)
//   NotImplementedError   NotSupportedError      not_supported   a store or backend lacks the operation
//   DistError             DistributedError       distributed     base of everything below
//   DistBackendError      BackendError           backend         a backend or communicator failed
//     (operation timeout) OperationTimeoutError  timeout         an operation missed its deadline
//     (lost peer)         PeerLostError          peer_lost       a peer died or became unreachable; rank() says who
//     (mismatch)          MismatchError          mismatch        ranks called different things; rank() says who differs
//     (abort)             AbortedError           aborted         the group was aborted while or before the call
//   DistStoreError        StoreError             store           the store refused or failed an operation
//     (wait timeout)      StoreTimeoutError      timeout         a key, or the server's answer, did not come in time
//   DistQueueEmptyError   QueueEmptyError        queue_empty     non-blocking queue_pop on an empty queue
//   DistNetworkError      NetworkError           network         a connection failed or was refused
//   SocketError           SocketError            socket          bind, listen or connect failed
//   TimeoutError          TimeoutError           timeout         connecting or resolving a name took too long
// ```
//
// All classes have default visibility, so that loadable backends can throw them across library boundaries.
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace cohort {

enum class ErrorKind : std::uint8_t {
  error,
  value,
  type,
  key,
  index,
  assertion,
  not_supported,
  distributed,
  backend,
  timeout,
  peer_lost,
  mismatch,
  aborted,
  store,
  queue_empty,
  network,
  socket,
};

/// "timeout", "peer_lost", ...: the enumerator's own name, for logs and JSON.
COHORT_API std::string_view to_string(ErrorKind kind);

/// Where and to whom it happened, as far as the thrower knows.
struct ErrorContext {
  std::string group{};                      ///< id of the process group
  std::string op{};                         ///< "all_reduce", "store.get", ...
  std::optional<std::uint64_t> sequence{};  ///< sequence number of the operation in its group
  std::optional<int> rank{};                ///< the rank at fault (group-relative), not the one that noticed
  std::exception_ptr cause{};               ///< the lower-level error this one was made from
};

class COHORT_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ErrorContext context = {});

  ErrorKind kind() const noexcept { return kind_; }
  const ErrorContext& context() const noexcept { return context_; }
  /// The message alone; what() adds the context.
  const std::string& message() const noexcept { return message_; }

 protected:
  Error(ErrorKind kind, const std::string& message, ErrorContext context);

 private:
  ErrorKind kind_;
  std::string message_;
  ErrorContext context_;
};

class COHORT_API ValueError : public Error {
 public:
  explicit ValueError(const std::string& message, ErrorContext context = {})
      : Error(ErrorKind::value, message, std::move(context)) {}
};

class COHORT_API TypeError : public Error {
 public:
  explicit TypeError(const std::string& message, ErrorContext context = {})
      : Error(ErrorKind::type, message, std::move(context)) {}
};

class COHORT_API KeyError : public Error {
 public:
  explicit KeyError(const std::string& message, ErrorContext context = {})
      : Error(ErrorKind::key, message, std::move(context)) {}
};

class COHORT_API IndexError : public Error {
 public:
  explicit IndexError(const std::string& message, ErrorContext context = {})
      : Error(ErrorKind::index, message, std::move(context)) {}
};

class COHORT_API AssertionError : public Error {
 public:
  explicit AssertionError(const std::string& message, ErrorContext context = {})
      : Error(ErrorKind::assertion, message, std::move(context)) {}
};

class COHORT_API NotSupportedError : public Error {
 public:
  explicit NotSupportedError(const std::string& message, ErrorContext context = {})
      : Error(ErrorKind::not_supported, message, std::move(context)) {}
};

class COHORT_API DistributedError : public Error {
 public:
  explicit DistributedError(const std::string& message, ErrorContext context = {})
      : Error(ErrorKind::distributed, message, std::move(context)) {}

 protected:
  using Error::Error;
};

class COHORT_API BackendError : public DistributedError {
 public:
  explicit BackendError(const std::string& message, ErrorContext context = {})
      : DistributedError(ErrorKind::backend, message, std::move(context)) {}

 protected:
  using DistributedError::DistributedError;
};

class COHORT_API OperationTimeoutError : public BackendError {
 public:
  explicit OperationTimeoutError(const std::string& message, ErrorContext context = {})
      : BackendError(ErrorKind::timeout, message, std::move(context)) {}
};

class COHORT_API PeerLostError : public BackendError {
 public:
  explicit PeerLostError(const std::string& message, ErrorContext context = {})
      : BackendError(ErrorKind::peer_lost, message, std::move(context)) {}
};

class COHORT_API MismatchError : public BackendError {
 public:
  explicit MismatchError(const std::string& message, ErrorContext context = {})
      : BackendError(ErrorKind::mismatch, message, std::move(context)) {}
};

class COHORT_API AbortedError : public BackendError {
 public:
  explicit AbortedError(const std::string& message, ErrorContext context = {})
      : BackendError(ErrorKind::aborted, message, std::move(context)) {}
};

class COHORT_API StoreError : public DistributedError {
 public:
  explicit StoreError(const std::string& message, ErrorContext context = {})
      : DistributedError(ErrorKind::store, message, std::move(context)) {}

 protected:
  using DistributedError::DistributedError;
};

class COHORT_API StoreTimeoutError : public StoreError {
 public:
  explicit StoreTimeoutError(const std::string& message, ErrorContext context = {})
      : StoreError(ErrorKind::timeout, message, std::move(context)) {}
};

class COHORT_API QueueEmptyError : public StoreError {
 public:
  explicit QueueEmptyError(const std::string& message, ErrorContext context = {})
      : StoreError(ErrorKind::queue_empty, message, std::move(context)) {}
};

class COHORT_API NetworkError : public DistributedError {
 public:
  explicit NetworkError(const std::string& message, ErrorContext context = {})
      : DistributedError(ErrorKind::network, message, std::move(context)) {}

 protected:
  using DistributedError::DistributedError;
};

class COHORT_API SocketError : public NetworkError {
 public:
  explicit SocketError(const std::string& message, ErrorContext context = {})
      : NetworkError(ErrorKind::socket, message, std::move(context)) {}
};

class COHORT_API TimeoutError : public NetworkError {
 public:
  explicit TimeoutError(const std::string& message, ErrorContext context = {})
      : NetworkError(ErrorKind::timeout, message, std::move(context)) {}
};

}  // namespace cohort
