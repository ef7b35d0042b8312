// SPDX-License-Identifier: BSD-3-Clause
//
// Several hosts on one machine: network namespaces, each connected to a switch in a namespace of its own.
//
//   Hosts hosts(3);                                            // 10.77.0.1, 10.77.0.2, 10.77.0.3
//   Program rank(command, {.network = hosts.network(1)});
//   hosts.cut_off(1);                                          // somebody pulled the cable
//
// The names contain the process id. A test that was killed leaves its namespaces behind; the next one removes them.
#pragma once

#include <string>

namespace cohort::test {

class Hosts {
 public:
  enum class Switch {
    bridge,  ///< the kernel's bridge
    none,    ///< the links are not connected; see relay.h
  };

  explicit Hosts(int count, Switch how = Switch::bridge);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// What this machine does not permit, by name; empty if it permits everything.
  static const std::string& what_is_missing();

  int count() const { return count_; }
  /// The file of the namespace, for Program.
  std::string network(int host) const { return path_of(host_name(host)); }
  std::string network_of_switch() const { return path_of(switch_name()); }
  /// The name of the host's port at the switch.
  static std::string port(int host) { return "port" + std::to_string(host); }
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }

  /// Takes the port down: what is sent to this host and from it is lost, without any notification.
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
