// SPDX-License-Identifier: BSD-3-Clause
//
// The bootstrap of a group of processes:
//
//   root                                         each other rank
//   makes segment and socket, publishes the ticket
//                                              <--  hello: rank, the ticket's token, CPUs, its arena's memfd
//   the arenas of all ranks and the segment    -->
//                                              <--  mapped, or why not
//   decision: go, or which rank failed and why  -->
//
// If a rank has not joined by the deadline, or left before, the decision that all others receive names it.
//
// The decision is all or none, also if the root dies while it sends it: it is made in the segment, by one
// compare-and-swap (Making), and the message only brings the news. A member that does not receive the message, because
// the root died or the deadline passed, calls the group off, unless it finds there that the group was made.
#include "backends/shm/bootstrap/bootstrap.h"

#include <cohort/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "backends/shm/bootstrap/fd_socket.h"
#include "backends/shm/memory/arena.h"
#include "backends/shm/memory/process_memory.h"
#include "core/cpus.h"
#include "core/parse.h"
#include "core/random.h"
#include "core/rank_index.h"

namespace cohort::shm {

namespace {

using Token = std::array<std::uint8_t, 16>;

constexpr std::uint32_t protocol = 1;

template <class Bytes>
std::string hex(const Bytes& bytes) {
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

struct Hello {
  std::uint32_t version = protocol;
  std::int32_t rank = 0;
  Token token{};
  ArenaId arena{};
  std::uint32_t has_arena = 0;
  std::uint64_t probe = probe_address();
  double quota = 0;
  cpu_set_t cpus{};
};

enum class Kind : std::uint32_t { welcome = 1, decision = 2 };

/// One of a series of messages: it carries the descriptors of `count` arenas from rank `first` on. The first message
/// also carries the descriptor of the segment.
struct Welcome {
  Kind kind = Kind::welcome;
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::uint32_t has_segment = 0;
  std::uint64_t probe = probe_address();  ///< an address in the root, to test whether it can be read
};

struct ArenaEntry {
  ArenaId id{};
  std::uint32_t exists = 0;
};

struct Reply {
  std::uint32_t is_ok = 0;
  std::uint32_t reaches_all = 0;
  std::uint32_t reads_root = 0;
};

struct BootstrapDecision {
  Kind kind = Kind::decision;
  std::uint32_t is_go = 0;
  std::int32_t rank = -1;   ///< the rank at fault
  std::uint32_t error = 0;  ///< an ErrorKind
};

/// The decision whether the group is made. Called by several ranks; the first counts.
class Making {
 public:
  explicit Making(const Board& board) : record_(board.header().making) {}

  /// The root has written the other members of the record before. Returns false if a member has called the group off.
  bool make() { return settle(made) == made; }
  /// Returns false if the group was made before.
  bool call_off(int rank) { return settle(made + 1 + static_cast<std::uint32_t>(rank)) != made; }
  /// The rank that called the group off; valid if make() returned false.
  int who_called_off() const { return static_cast<int>(record_.decision.load(std::memory_order_relaxed) - made - 1); }

 private:
  static constexpr std::uint32_t made = 1;

  std::uint32_t settle(std::uint32_t decision) {
    std::uint32_t current = 0;
    // Release and acquire: a rank that reads that the group was made also reads the rest of the record.
    return record_.decision.compare_exchange_strong(current, decision, std::memory_order_acq_rel) ? decision : current;
  }

  MakingRecord& record_;
};

template <class T>
std::string as_bytes(const T& value, std::string_view text = {}) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes.append(text);
}
template <class T>
std::optional<T> from_bytes(std::string_view bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

struct Ticket {
  std::string socket{};
  Token token{};

  std::string text() const { return fmt::format("shm {} {}", socket, hex(token)); }
  static Ticket parse(std::string_view text) {
    const auto parts = split(text, ' ');
    if (parts.size() != 3 || parts[0] != "shm" || parts[2].size() != 2 * sizeof(Token)) {
      throw BackendError(fmt::format("shm: rank 0 published \"{}\": does it use another backend?", text));
    }
    Ticket ticket{.socket = std::string(parts[1])};
    for (std::size_t i = 0; i < ticket.token.size(); ++i) {
      const auto digits = parts[2].substr(2 * i, 2);
      const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
      ticket.token[i] = static_cast<std::uint8_t>(value(digits[0]) * 16 + value(digits[1]));
    }
    return ticket;
  }
};

/// What every rank holds in the end.
struct Outcome {
  std::shared_ptr<Segment> segment{};
  std::vector<std::shared_ptr<Segment>> arenas{};
  Liveness liveness{};
  bool all_reach_all = false;
  bool all_read_all = false;
  bool own_cpus = false;
};

Hello hello_of(const Bootstrap& bootstrap, const Token& token, const Arena* arena) {
  const auto cpus = usable_cpus();
  Hello hello{.rank = bootstrap.rank, .token = token, .quota = cpus.quota.value_or(0), .cpus = cpus.mask};
  if (arena != nullptr) {
    hello.arena = arena->id();
    hello.has_arena = 1;
  }
  return hello;
}

std::vector<pid_t> pids_of(const Board& board) {
  std::vector<pid_t> pids;
  pids.reserve(static_cast<std::size_t>(board.ranks()));
  for (int rank = 0; rank < board.ranks(); ++rank) {
    pids.push_back(board.info(rank).pid.load(std::memory_order_relaxed));
  }
  return pids;
}

Liveness watch_members(const std::shared_ptr<Segment>& segment, const Bootstrap& bootstrap) {
  return {pids_of(Board(segment, bootstrap.size)), bootstrap.rank};
}

Failure missing_ranks(const Bootstrap& bootstrap, const std::vector<int>& missing) {
  return {.kind = ErrorKind::timeout,
          .rank = missing.front(),
          .reporter = bootstrap.rank,
          .text = fmt::format("{} of {} ranks did not join: rank{} {}", missing.size(), bootstrap.size,
                              missing.size() == 1 ? "" : "s", fmt::join(missing, ", "))};
}

/// A member's mappings of its peers' arenas. An entry is null if it is not needed or could not be mapped.
struct PeerArenas {
  std::vector<std::shared_ptr<Segment>> mapped{};
  bool reaches_all = true;

  explicit PeerArenas(int size) : mapped(index_of(size)) {}
  void add(std::size_t rank, const ArenaId& id, FileDescriptor fd) {
    try {
      mapped[rank] = map_peer_arena(id, std::move(fd));
    } catch (const Error&) {
      reaches_all = false;  // too little address space: the group works without it
    }
  }
};

class BootstrapRoot {
 public:
  explicit BootstrapRoot(const Bootstrap& bootstrap)
      : bootstrap_(bootstrap),
        until_(shortly_before(bootstrap.deadline)),
        arena_(Arena::of_this_process()),
        members_(static_cast<std::size_t>(bootstrap.size)) {}

  Outcome found() {
    Ticket ticket;
    FileDescriptor segment_fd;
    try {
      fill_random(std::as_writable_bytes(std::span(ticket.token)));
      std::array<std::uint8_t, 16> name{};
      fill_random(std::as_writable_bytes(std::span(name)));
      ticket.socket = "cohort/shm/" + hex(name);
      listener_ = listen_abstract(ticket.socket, bootstrap_.size);
      segment_fd = make_memfd("cohort-group", Board::size_for(bootstrap_.size));
      segment_ = map_memfd(duplicate(segment_fd));
      auto board = Board::make(segment_, bootstrap_.size);
      join(board, 0, ::getpid());
    } catch (const Error& e) {
      bootstrap_.exchange(refusal_ticket(e.message()));
      throw;
    }
    bootstrap_.exchange(ticket.text());
    own_hello_ = hello_of(bootstrap_, ticket.token, arena_.get());
    Outcome outcome{.segment = segment_};
    try {
      gather(ticket.token);
      welcome(segment_fd.get());
      hear_replies();
      outcome.liveness = watch_members(segment_, bootstrap_);
      decide();
    } catch (const Error& e) {
      tell({.is_go = 0, .rank = 0, .error = static_cast<std::uint32_t>(ErrorKind::backend)}, "rank 0: " + e.message());
      throw;
    } catch (const Refusal& refusal) {
      try {
        if (listener_) accept_pending();
      } catch (const NetworkError&) {  // no descriptor for them: they only see that the root is gone
      }
      tell({.is_go = 0, .rank = refusal.failure.rank, .error = static_cast<std::uint32_t>(refusal.failure.kind)},
           refusal.failure.text);
      throw_failure(refusal.failure, {.group = bootstrap_.group, .op = "new_group"});
    }
    outcome.arenas = std::move(arenas_.mapped);
    outcome.all_reach_all = arenas_.reaches_all;
    outcome.all_read_all = all_read_all_;
    outcome.own_cpus = has_own_cpus();
    tell({.is_go = 1}, {});
    return outcome;
  }

  static void join(const Board& board, int rank, pid_t pid) {
    board.info(rank).pid.store(pid, std::memory_order_relaxed);
    board.info(rank).state.store(static_cast<std::uint32_t>(RankState::joined), std::memory_order_release);
  }

 private:
  struct Refusal {
    Failure failure;
  };
  struct Member {
    FileDescriptor socket{};
    Hello hello{};
    FileDescriptor arena{};
  };

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < bootstrap_.size; ++rank) {
      if (!members_[index_of(rank)].socket) ranks.push_back(rank);
    }
    return ranks;
  }

  /// Waits until every rank has said hello. Unknown processes, and connections that send nothing, only cost a
  /// descriptor.
  void gather(const Token& token) {
    while (!missing().empty()) {
      std::vector<pollfd> polled{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      for (const auto& each : silent_) polled.push_back({.fd = each.get(), .events = POLLIN, .revents = 0});
      const auto until = earlier(until_, Deadline::after(std::chrono::milliseconds(20)));
      const auto slice = bootstrap_.failure_check ? until : until_;
      if (::poll(polled.data(), polled.size(), slice.poll_timeout()) <= 0) {
        if (until_.expired()) throw Refusal{missing_ranks(bootstrap_, missing())};
        if (bootstrap_.failure_check) {
          if (const auto failure = bootstrap_.failure_check()) throw Refusal{*failure};
        }
        continue;
      }
      for (std::size_t i = polled.size() - 1; i >= 1; --i) {
        if (polled[i].revents == 0) continue;
        admit(std::move(silent_[i - 1]), token);
        silent_.erase(silent_.begin() + static_cast<std::ptrdiff_t>(i - 1));
      }
      if (polled[0].revents != 0) accept_pending();
    }
    silent_.clear();
    listener_.reset();
  }

  void accept_pending() {
    while (auto fd = accept_trusted(listener_.get())) silent_.push_back(std::move(*fd));
  }

  void admit(FileDescriptor socket, const Token& token) {
    auto message = receive_message(socket.get(), until_);
    const auto hello = from_bytes<Hello>(message.bytes);
    if (!hello || hello->version != protocol || hello->token != token || hello->rank < 1 ||
        hello->rank >= bootstrap_.size) {
      return;
    }
    auto& member = members_[static_cast<std::size_t>(hello->rank)];
    if (member.socket) {
      throw Refusal{{.kind = ErrorKind::backend,
                     .rank = hello->rank,
                     .text = fmt::format("two processes claim to be rank {}", hello->rank)}};
    }
    const auto pid = peer_pid(socket.get());
    member.socket = std::move(socket);
    member.hello = *hello;
    if (hello->has_arena != 0 && !message.fds.empty()) member.arena = std::move(message.fds.front());
    Board(segment_, bootstrap_.size).info(hello->rank).pid.store(pid, std::memory_order_relaxed);
  }

  void welcome(int segment_fd) {
    std::string table;
    for (int rank = 0; rank < bootstrap_.size; ++rank) {
      const auto& hello = rank == 0 ? own_hello_ : members_[index_of(rank)].hello;
      table += as_bytes(ArenaEntry{.id = hello.arena, .exists = hello.has_arena});
    }
    for (int first = 0; first < bootstrap_.size;) {
      const int count = std::min(bootstrap_.size - first, static_cast<int>(most_fds) - 1);
      std::vector<int> fds;
      const Welcome head{.first = first, .count = count, .has_segment = first == 0};
      if (first == 0) fds.push_back(segment_fd);
      for (int rank = first; rank < first + count; ++rank) {
        const auto& arena = members_[index_of(rank)].arena;
        if (rank == 0 ? arena_ != nullptr : static_cast<bool>(arena))
          fds.push_back(rank == 0 ? arena_->fd() : arena.get());
      }
      for (int rank = 1; rank < bootstrap_.size; ++rank) {
        with_member(rank, [&](int fd) { send_message(fd, as_bytes(head, table), fds, until_); });
      }
      first += count;
    }
    arenas_.reaches_all = arena_ != nullptr;
    for (int rank = 1; rank < bootstrap_.size; ++rank) {
      auto& member = members_[index_of(rank)];
      if (member.arena) {
        arenas_.add(index_of(rank), member.hello.arena, std::move(member.arena));
      } else {
        arenas_.reaches_all = false;
      }
    }
  }

  void hear_replies() {
    for (int rank = 1; rank < bootstrap_.size; ++rank) {
      with_member(rank, [&](int fd) {
        const auto message = receive_message(fd, until_);
        const auto reply = from_bytes<Reply>(message.bytes);
        if (!reply) {
          throw Refusal{{.kind = ErrorKind::peer_lost,
                         .rank = rank,
                         .text = fmt::format("rank {} left while the group was being made", rank)}};
        }
        if (reply->is_ok == 0) {
          throw Refusal{{.kind = ErrorKind::backend,
                         .rank = rank,
                         .text = fmt::format("rank {}: {}", rank, message.bytes.substr(sizeof(Reply)))}};
        }
        arenas_.reaches_all = arenas_.reaches_all && reply->reaches_all != 0;
        // The kernel's rule is the same for all processes of a user, so the result for the root holds for every other
        // rank.
        const auto& hello = members_[index_of(rank)].hello;
        all_read_all_ = all_read_all_ && reply->reads_root != 0 && can_read(peer_pid(fd), hello.probe);
      });
    }
  }

  void decide() {
    const Board board(segment_, bootstrap_.size);
    auto& record = board.header().making;
    record.all_reach_all = arenas_.reaches_all ? 1 : 0;
    record.all_read_all = all_read_all_ ? 1 : 0;
    record.own_cpus = has_own_cpus() ? 1 : 0;
    Making making(board);
    if (making.make()) return;
    const int rank = making.who_called_off();
    throw Refusal{{.kind = ErrorKind::timeout,
                   .rank = rank,
                   .text = fmt::format("rank {} gave up while the group was being made", rank)}};
  }

  /// A member that does not answer in time or is gone is the one at fault.
  template <class Do>
  void with_member(int rank, Do&& with) {
    try {
      with(members_[index_of(rank)].socket.get());
    } catch (const NetworkError& e) {
      const bool is_late = e.kind() == ErrorKind::timeout;
      throw Refusal{{.kind = is_late ? ErrorKind::timeout : ErrorKind::peer_lost,
                     .rank = rank,
                     .text = fmt::format("rank {} {} while the group was being made", rank,
                                         is_late ? "did not answer" : "left")}};
    }
  }

  void tell(const BootstrapDecision& decision, std::string_view text) {
    const auto send = [&](const FileDescriptor& socket) {
      if (!socket) return;
      try {
        // A decision fits into the buffer of any socket, so this does not wait for anybody.
        send_message(socket.get(), as_bytes(decision, text), {}, Deadline::after(std::chrono::milliseconds(100)));
      } catch (const NetworkError&) {
        return;  // it has gone in the meantime; the survivors will detect its death in the group
      }
    };
    for (const auto& member : members_) send(member.socket);
    for (const auto& each : silent_) send(each);
  }

  bool has_own_cpus() const {
    cpu_set_t all = own_hello_.cpus;
    double quota = own_hello_.quota;
    for (int rank = 1; rank < bootstrap_.size; ++rank) {
      const auto& hello = members_[index_of(rank)].hello;
      CPU_OR(&all, &all, &hello.cpus);
      quota = std::max(quota, hello.quota);
    }
    return bootstrap_.size <= CPU_COUNT(&all) && (quota == 0 || bootstrap_.size <= quota);
  }

  const Bootstrap& bootstrap_;
  const Deadline until_;  // before the members give up, so that they can be told which ranks are missing
  std::shared_ptr<Arena> arena_;
  std::vector<Member> members_;
  FileDescriptor listener_;
  std::vector<FileDescriptor> silent_;  // connected, but no hello yet
  std::shared_ptr<Segment> segment_;
  Hello own_hello_{};
  PeerArenas arenas_{bootstrap_.size};
  bool all_read_all_ = true;
};

[[noreturn]] void throw_decision(const std::string& bytes, const ErrorContext& context) {
  const auto decision = from_bytes<BootstrapDecision>(bytes).value_or(BootstrapDecision{});
  throw_failure({.kind = static_cast<ErrorKind>(decision.error),
                 .rank = decision.rank,
                 .text = bytes.substr(std::min(bytes.size(), sizeof(BootstrapDecision)))},
                context);
}

PeerLostError root_left(const ErrorContext& context) {
  PeerLostError error("rank 0 left while the group was being made", context);
  return error;
}

/// Returns if the group was made; otherwise throws, on this and on every other rank. `segment` is null if this rank has
/// told the root that it could not map it.
void await_decision(int socket, const std::shared_ptr<Segment>& segment, const Bootstrap& bootstrap,
                    const ErrorContext& context) {
  const auto was_made = [&] {
    return segment != nullptr && !Making(Board(segment, bootstrap.size)).call_off(bootstrap.rank);
  };
  Message message;
  try {
    message = receive_message(socket, bootstrap.deadline);
  } catch (const NetworkError&) {
    if (was_made()) return;
    throw;
  }
  const auto decision = from_bytes<BootstrapDecision>(message.bytes);
  if (decision && decision->is_go == 0) throw_decision(message.bytes, context);
  if (!was_made()) throw root_left(context);
}

/// What a member gets from the root.
struct Welcomed {
  std::shared_ptr<Segment> segment{};
  PeerArenas arenas;
  bool reads_root = false;
  std::string problem{};  ///< why this rank cannot map the segment
};

Welcomed receive_welcome(int socket, bool has_arena, const Bootstrap& bootstrap, const ErrorContext& context) {
  Welcomed got{.arenas = PeerArenas(bootstrap.size)};
  got.arenas.reaches_all = has_arena;
  for (int next = 0; next < bootstrap.size;) {
    auto message = receive_message(socket, bootstrap.deadline);
    if (message.bytes.empty()) throw root_left(context);
    if (from_bytes<Kind>(message.bytes) == Kind::decision) throw_decision(message.bytes, context);
    const auto head = from_bytes<Welcome>(message.bytes);
    if (!head) break;
    got.reads_root = can_read(peer_pid(socket), head->probe);
    std::size_t fd = 0;
    if (head->has_segment != 0 && !message.fds.empty()) {
      try {
        got.segment = map_memfd(std::move(message.fds[fd++]));
      } catch (const Error& e) {
        got.problem = e.message();
      }
    }
    for (int rank = next; rank < head->first + head->count; ++rank) {
      const auto at = sizeof(Welcome) + index_of(rank) * sizeof(ArenaEntry);
      const auto entry =
          from_bytes<ArenaEntry>(std::string_view(message.bytes).substr(std::min(at, message.bytes.size())));
      if (!entry || entry->exists == 0 || fd >= message.fds.size()) {
        got.arenas.reaches_all = false;
        continue;
      }
      if (rank != bootstrap.rank) got.arenas.add(index_of(rank), entry->id, std::move(message.fds[fd]));
      ++fd;
    }
    next = std::max(next + 1, head->first + head->count);
  }
  return got;
}

/// Watches the other members and says on the board that this rank has joined. Returns why it cannot, or nothing.
std::string join_board(const std::shared_ptr<Segment>& segment, const Bootstrap& bootstrap, Liveness& liveness) {
  if (segment == nullptr || !Board(segment, bootstrap.size).is_sound()) {
    return "the root's memory has an unexpected layout (another version of Cohort?)";
  }
  try {
    liveness = watch_members(segment, bootstrap);
    Board(segment, bootstrap.size)
        .info(bootstrap.rank)
        .state.store(static_cast<std::uint32_t>(RankState::joined), std::memory_order_release);
    return {};
  } catch (const Error& e) {
    return e.message();
  }
}

Outcome join_root(const Bootstrap& bootstrap) {
  const auto text = bootstrap.exchange({});
  check_ticket(text, bootstrap);
  const auto ticket = Ticket::parse(text);
  const ErrorContext context{.group = bootstrap.group, .op = "new_group", .rank = 0};
  try {
    const auto socket = connect_abstract(ticket.socket);
    const auto arena = Arena::of_this_process();
    const auto hello = hello_of(bootstrap, ticket.token, arena.get());
    const int arena_fd = arena == nullptr ? -1 : arena->fd();
    send_message(socket.get(), as_bytes(hello), {&arena_fd, arena == nullptr ? 0U : 1U}, bootstrap.deadline);

    auto [segment, arenas, reads_root, problem] = receive_welcome(socket.get(), arena != nullptr, bootstrap, context);
    Outcome outcome{.segment = std::move(segment)};
    if (problem.empty()) problem = join_board(outcome.segment, bootstrap, outcome.liveness);
    send_message(
        socket.get(),
        as_bytes(Reply{.is_ok = problem.empty(), .reaches_all = arenas.reaches_all, .reads_root = reads_root}, problem),
        {}, bootstrap.deadline);
    await_decision(socket.get(), problem.empty() ? outcome.segment : nullptr, bootstrap, context);
    const auto& record = Board(outcome.segment, bootstrap.size).header().making;
    outcome.arenas = std::move(arenas.mapped);
    outcome.all_reach_all = record.all_reach_all != 0;
    outcome.all_read_all = record.all_read_all != 0;
    outcome.own_cpus = record.own_cpus != 0;
    return outcome;
  } catch (const TimeoutError&) {
    throw OperationTimeoutError("rank 0 did not answer in time", context);
  } catch (const NoDescriptors& e) {
    throw BackendError(fmt::format("rank {}: {}", bootstrap.rank, e.message()),
                       {.group = bootstrap.group, .op = "new_group", .rank = bootstrap.rank});
  } catch (const NetworkError& e) {
    throw PeerLostError(e.message(), context);
  }
}

}  // namespace

Deadline shortly_before(Deadline deadline) {
  if (deadline.is_never()) return deadline;
  const auto margin = std::min<Deadline::Clock::duration>(deadline.remaining() / 10, std::chrono::milliseconds(200));
  return Deadline::at(deadline.when() - margin);
}

std::string refusal_ticket(std::string_view why) {
  return fmt::format("refused {}", why.substr(0, ticket_bytes - 16));
}

void check_ticket(std::string_view ticket, const Bootstrap& bootstrap) {
  constexpr std::string_view refused = "refused ";
  if (ticket.substr(0, refused.size()) != refused) return;
  throw BackendError(fmt::format("rank 0: {}", ticket.substr(refused.size())),
                     {.group = bootstrap.group, .op = "new_group", .rank = 0});
}

WaitPolicy wait_policy(bool own_cpus) {
  // About 50 microseconds: longer than any flag takes if its rank is running.
  return {.spins = own_cpus ? 2000U : 0U};
}

EngineParts bootstrap_processes(const Bootstrap& bootstrap) {
  auto outcome = bootstrap.rank == 0 ? BootstrapRoot(bootstrap).found() : join_root(bootstrap);
  EngineParts parts{.name = bootstrap.name,
                    .group = bootstrap.group,
                    .board = Board(outcome.segment, bootstrap.size),
                    .rank = bootstrap.rank,
                    .policy = wait_policy(outcome.own_cpus)};
  parts.liveness = std::move(outcome.liveness);
  parts.peer_memory = std::make_unique<ArenaPeerMemory>(
      outcome.all_reach_all ? Arena::of_this_process() : nullptr, bootstrap.rank, std::move(outcome.arenas),
      outcome.all_read_all ? pids_of(parts.board) : std::vector<pid_t>());
  return parts;
}

}  // namespace cohort::shm
