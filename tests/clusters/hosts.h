// SPDX-License-Identifier: BSD-3-Clause
//
// Several hosts on one machine: network namespaces, each linked to a switch in a namespace of its own.
//
//   Hosts hosts(3);                                            // 10.77.0.1, 10.77.0.2, 10.77.0.3
//   Program rank(command, {.network = hosts.network(1)});
//   hosts.cut_off(1);                                          // as if somebody had pulled the cable
//
// The names of the namespaces contain the process number. A killed test leaves them behind; the next one removes them.
#pragma once

#include <string>

namespace cohort::test {

class Hosts {
 public:
  enum class Switch {
    bridge,  ///< the kernel's
    none,    ///< the links have no other end; see relay.h
  };

  explicit Hosts(int count, Switch how = Switch::bridge);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// The names of the features that this machine does not permit; empty if it permits all of them.
  static const std::string& what_is_missing();

  int count() const { return count_; }
  /// File of the namespace; for Program.
  std::string network(int host) const { return path_of(host_name(host)); }
  std::string network_of_switch() const { return path_of(switch_name()); }
  /// Name of the host's port at the switch.
  static std::string port(int host) { return "port" + std::to_string(host); }
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }

  /// Takes the port down: what is sent to and from this host is lost, and nobody is told.
  void cut_off(int host) const;

 private:
  static std::string path_of(const std::string& name) { return "/run/netns/" + name; }
  std::string host_name(int host) const;
  std::string switch_name() const;
  void build(Switch how) const;
  void remove() const;

  int count_;
};

}  // namespace cohort::test
