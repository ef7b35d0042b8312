// SPDX-License-Identifier: BSD-3-Clause
//
// The exceptions that Cohort throws, one class per kind of failure. Each error says where it happened and which rank is
// at fault, as far as that is known.
//
//   try {
//     store->get("config");
//   } catch (const cohort::StoreTimeoutError& e) {   // only this class
//   } catch (const cohort::Error& e) {               // everything that Cohort throws
//     if (e.kind() == cohort::ErrorKind::timeout) retry();  // any timeout, whichever layer it came from
//     std::cerr << e.what();                          // message, then [group, op, seq, rank] as far as known
//   }
//
// When each class is thrown, and the name of the corresponding error in PyTorch:
//
// ```text
//   PyTorch               class                  kind()          thrown for
//   --------------------  ---------------------  --------------  ------------------------------------------------
//   Error                 Error                  error           argument checks, generic failures
//   ValueError            ValueError             value           a value out of range, malformed or missing
//   TypeError             TypeError              type            a value of the wrong type
//   KeyError              KeyError               key             an unknown option or key
//   IndexError            IndexError             index           an index out of range
//   AssertionError        AssertionError         assertion       an argument that must not be given (twice, or at all)
//   NotImplementedError   NotSupportedError      not_supported   a store or backend lacks the operation
//   DistError             DistributedError       distributed     base of everything below
//   DistBackendError      BackendError           backend         a backend or communicator failed
//     (operation timeout) OperationTimeoutError  timeout         an operation missed its deadline
//     (lost peer)         PeerLostError          peer_lost       a peer died or is unreachable; context().rank names it
//     (mismatch)          MismatchError          mismatch        ranks made different calls; context().rank names one
//     (abort)             AbortedError           aborted         the group was aborted before or during the call
//   DistStoreError        StoreError             store           the store refused or failed an operation
//     (wait timeout)      StoreTimeoutError      timeout         a key or the server's answer did not arrive in time
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

enum class COHORT_API ErrorKind : std::uint8_t {
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

/// The name of the enumerator ("timeout", "peer_lost", ...), for logs and JSON.
COHORT_API std::string_view to_string(ErrorKind kind);

/// Where the error happened and which rank caused it, as far as the thrower knows.
struct ErrorContext {
  std::string group{};                      ///< id of the process group
  std::string op{};                         ///< "all_reduce", "store.get", ...
  std::optional<std::uint64_t> sequence{};  ///< sequence number of the operation in its group
  std::optional<int> rank{};                ///< the rank at fault, numbered within the group; not the rank that noticed
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

/// Base of the classes in the table at the top of this file: an error of kind `Kind` that can also be caught as `Base`.
template <ErrorKind Kind, class Base>
class COHORT_API ErrorOf : public Base {
 public:
  explicit ErrorOf(const std::string& message, ErrorContext context = {}) : Base(Kind, message, std::move(context)) {}

 protected:
  /// For derived classes, which have kinds of their own.
  ErrorOf(ErrorKind kind, const std::string& message, ErrorContext context) : Base(kind, message, std::move(context)) {}
};

// These are classes, not aliases, so that they can be forward-declared and so that debuggers and the message about an
// uncaught exception show the short name.
// clang-format off
struct COHORT_API ValueError            : ErrorOf<ErrorKind::value, Error>              { using ErrorOf::ErrorOf; };
struct COHORT_API TypeError             : ErrorOf<ErrorKind::type, Error>               { using ErrorOf::ErrorOf; };
struct COHORT_API KeyError              : ErrorOf<ErrorKind::key, Error>                { using ErrorOf::ErrorOf; };
struct COHORT_API IndexError            : ErrorOf<ErrorKind::index, Error>              { using ErrorOf::ErrorOf; };
struct COHORT_API AssertionError        : ErrorOf<ErrorKind::assertion, Error>          { using ErrorOf::ErrorOf; };
struct COHORT_API NotSupportedError     : ErrorOf<ErrorKind::not_supported, Error>      { using ErrorOf::ErrorOf; };
struct COHORT_API DistributedError      : ErrorOf<ErrorKind::distributed, Error>        { using ErrorOf::ErrorOf; };
struct COHORT_API BackendError          : ErrorOf<ErrorKind::backend, DistributedError> { using ErrorOf::ErrorOf; };
struct COHORT_API OperationTimeoutError : ErrorOf<ErrorKind::timeout, BackendError>     { using ErrorOf::ErrorOf; };
struct COHORT_API PeerLostError         : ErrorOf<ErrorKind::peer_lost, BackendError>   { using ErrorOf::ErrorOf; };
struct COHORT_API MismatchError         : ErrorOf<ErrorKind::mismatch, BackendError>    { using ErrorOf::ErrorOf; };
struct COHORT_API AbortedError          : ErrorOf<ErrorKind::aborted, BackendError>     { using ErrorOf::ErrorOf; };
struct COHORT_API StoreError            : ErrorOf<ErrorKind::store, DistributedError>   { using ErrorOf::ErrorOf; };
struct COHORT_API StoreTimeoutError     : ErrorOf<ErrorKind::timeout, StoreError>       { using ErrorOf::ErrorOf; };
struct COHORT_API QueueEmptyError       : ErrorOf<ErrorKind::queue_empty, StoreError>   { using ErrorOf::ErrorOf; };
struct COHORT_API NetworkError          : ErrorOf<ErrorKind::network, DistributedError> { using ErrorOf::ErrorOf; };
struct COHORT_API SocketError           : ErrorOf<ErrorKind::socket, NetworkError>      { using ErrorOf::ErrorOf; };
struct COHORT_API TimeoutError          : ErrorOf<ErrorKind::timeout, NetworkError>     { using ErrorOf::ErrorOf; };
// clang-format on

}  // namespace cohort
