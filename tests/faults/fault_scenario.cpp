// SPDX-License-Identifier: BSD-3-Clause
#include "faults/fault_scenario.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <typeinfo>

#include "support/stores.h"

namespace cohort::test {

namespace {

constexpr char separator = '\x1f';
constexpr std::chrono::seconds store_timeout{30};

std::string type_of(const std::exception& error) {
  int status = 0;
  char* const name = abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status);
  std::string text = name == nullptr ? typeid(error).name() : name;
  std::free(name);
  return text.substr(text.rfind(':') == std::string::npos ? 0 : text.rfind(':') + 1);
}

std::string pack(const Word& word) {
  std::ostringstream out;
  out << word.what << separator << word.type << separator << word.at_fault << separator
      << word.when.time_since_epoch().count() << separator << word.text;
  return out.str();
}

Word unpack(const std::string& bytes) {
  std::istringstream in(bytes);
  Word word;
  std::string number;
  std::getline(in, word.what, separator);
  std::getline(in, word.type, separator);
  std::getline(in, number, separator);
  word.at_fault = std::stoi(number);
  std::getline(in, number, separator);
  word.when = Clock::time_point(Clock::duration(std::stoll(number)));
  std::getline(in, word.text, '\0');
  return word;
}

/// When nobody reads any more, the parent has given up and will kill this process.
void send(int socket, const std::string& bytes) {
  static_cast<void>(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Word& word) {
  out << word.what << ": ";
  if (word.type.empty()) return out << "ok " << word.text;
  return out << word.type << " (rank " << word.at_fault << ") " << word.text;
}

StorePtr Member::open_store() const {
  return std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = store_, .timeout = store_timeout});
}

ProcessGroupPtr Member::join(std::chrono::milliseconds timeout, StorePtr store) const {
  return new_group("shm", timeout, "cpu", {}, {.store = std::move(store), .rank = rank_, .size = size_, .name = name_});
}

void Member::say(const std::string& what, const std::string& text) const {
  send(socket_, pack({.what = what, .text = text, .when = Clock::now()}));
}

void Member::say_error(const std::string& what, const std::exception& error) const {
  Word word{.what = what, .type = type_of(error), .text = error.what(), .when = Clock::now()};
  if (const auto* const ours = dynamic_cast<const Error*>(&error)) word.at_fault = ours->context().rank.value_or(-1);
  send(socket_, pack(word));
}

bool Member::attempt(const std::string& what, const std::function<void()>& body) const {
  try {
    body();
  } catch (const std::exception& e) {
    say_error(what, e);
    return false;
  }
  say(what);
  return true;
}

void Member::await_go() const {
  char byte = 0;
  while (::recv(socket_, &byte, 1, 0) < 0 && errno == EINTR) {
  }
}

bool Member::is_told_to_go() const {
  char byte = 0;
  return ::recv(socket_, &byte, 1, MSG_DONTWAIT) > 0;
}

void Member::idle() {
  for (;;) ::pause();
}

FaultScenario::FaultScenario(const StoreHost& store, int size, const Body& body, std::chrono::milliseconds bound)
    : until_(Clock::now() + bound) {
  static std::atomic<int> scenarios{0};
  const auto name = "scenario-" + std::to_string(scenarios++);
  ranks_.resize(static_cast<std::size_t>(size));
  std::cout.flush();  // or a rank that leaves by exit() prints it again
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw std::runtime_error("socketpair failed");
    }
    const FileDescriptor child_end(ends[1]);
    at(rank).socket = FileDescriptor(ends[0]);
    at(rank).process.emplace([&]() -> int {
      for (auto& other : ranks_) other.socket.reset();
      Member member(rank, size, store.endpoint(), name, child_end.get());
      body(member);
      return 0;
    });
  }
}

int FaultScenario::remaining() const {
  return static_cast<int>(std::max<std::int64_t>(0, milliseconds_between(Clock::now(), until_)));
}

void FaultScenario::give_up(int rank, const std::string& why) const {
  std::ostringstream text;
  text << "rank " << rank << ": " << why << ". What was said:";
  for (int each = 0; each < size(); ++each) {
    for (const auto& word : at(each).said) text << "\n  rank " << each << " " << word;
  }
  throw std::runtime_error(text.str());
}

Word FaultScenario::hear(int rank, const std::string& what) {
  auto& from = at(rank);
  pollfd polled{.fd = from.socket.get(), .events = POLLIN, .revents = 0};
  if (::poll(&polled, 1, remaining()) <= 0) give_up(rank, "reported nothing about \"" + what + "\" in time");
  std::array<char, 8192> bytes{};
  const auto length = ::recv(from.socket.get(), bytes.data(), bytes.size(), 0);
  if (length <= 0) give_up(rank, "ended before it reported anything about \"" + what + "\"");
  from.said.push_back(unpack({bytes.data(), static_cast<std::size_t>(length)}));
  if (from.said.back().what != what) give_up(rank, "reported something else than \"" + what + "\"");
  return from.said.back();
}

std::vector<Word> FaultScenario::hear_all(const std::string& what, int but) {
  std::vector<Word> words;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != but) words.push_back(hear(rank, what));
  }
  return words;
}

void FaultScenario::go(int rank) const {
  send(at(rank).socket.get(), "g");
}

void FaultScenario::go_all(int but) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != but) go(rank);
  }
}

Clock::time_point FaultScenario::signal(int rank, int number) const {
  const auto now = Clock::now();
  at(rank).process->signal(number);
  return now;
}

int FaultScenario::end_of(int rank) {
  auto& process = at(rank).process;
  const FileDescriptor end(static_cast<int>(::syscall(SYS_pidfd_open, process->pid(), 0)));
  pollfd polled{.fd = end.get(), .events = POLLIN, .revents = 0};
  if (::poll(&polled, 1, remaining()) <= 0) give_up(rank, "did not end in time");
  const int status = process->wait();
  process.reset();
  return status;
}

void FaultScenario::expect_end(int but) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == but) continue;
    EXPECT_TRUE(end_of(rank) == 0 || had_failed_) << "rank " << rank << " did not end with success";
  }
}

FaultTest::FaultTest() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  processes_end_ = FileDescriptor(ends[0]);
  process_lives_ = FileDescriptor(ends[1]);
}

std::set<std::string> FaultTest::shared_memory_names() {
  std::set<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    if (entry.path().filename().string().find("cohort") != std::string::npos) found.insert(entry.path().string());
  }
  return found;
}

std::vector<std::string> FaultTest::own_sockets() {
  std::set<std::string> inodes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();  // socket:[12345]
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> found;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream fields(line);
    std::string inode;
    std::string name;
    std::string other;
    for (int i = 0; i < 6; ++i) fields >> other;
    fields >> inode >> name;
    if (name.starts_with("@cohort/") && inodes.contains(inode)) found.push_back(name);
  }
  return found;
}

void FaultTest::TearDown() {
  store_.reset();
  EXPECT_TRUE(::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) << "a process is left";
  process_lives_.reset();
  pollfd ended{.fd = processes_end_.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&ended, 1, 10'000), 1) << "a process of this test is left, though no child of it";
  EXPECT_EQ(own_sockets(), std::vector<std::string>());
  EXPECT_EQ(shared_memory_names(), names_before_);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

void expect_all_reduce_works(ProcessGroup& group, std::size_t elements) {
  std::vector<float> data(elements);
  std::iota(data.begin(), data.end(), static_cast<float>(group.rank()));
  group.all_reduce(data);
  const auto n = static_cast<float>(group.size());
  for (std::size_t i = 0; i < elements; ++i) {
    const float expected = n * static_cast<float>(i) + n * (n - 1) / 2;
    if (data[i] != expected) {
      ADD_FAILURE() << "element " << i << " is " << data[i] << ", not " << expected;
      return;
    }
  }
}

void note(const std::string& scenario, const Word& got, std::int64_t milliseconds) {
  std::cout << "[  scenario   ] " << scenario << ": " << got.type << ", rank " << got.at_fault << ", " << milliseconds
            << " ms\n";
}

}  // namespace cohort::test
