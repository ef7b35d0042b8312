// SPDX-License-Identifier: BSD-3-Clause
//
// Network interfaces, names and GPUs.
#include <arpa/inet.h>
#include <cohort/error.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>

#include "doctor/report.h"
#include "store/socket.h"

namespace cohort::tool {

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string address_text(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* binary = nullptr;
  if (address.sa_family == AF_INET) {
    binary = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  } else if (address.sa_family == AF_INET6) {
    binary = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  } else {
    return {};
  }
  const char* const result = ::inet_ntop(address.sa_family, binary, text.data(), text.size());
  return result == nullptr ? std::string() : std::string(result);
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

bool host_resolves(const std::string& name) {
  try {
    return !resolve(Endpoint::tcp(name, 0), Deadline::after(2s)).empty();
  } catch (const NetworkError&) {
    return false;
  }
}

std::vector<InterfaceReport> examine_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, &::freeifaddrs);
  std::vector<InterfaceReport> interfaces;
  for (const auto* entry = first; entry != nullptr; entry = entry->ifa_next) {
    auto it = std::find_if(interfaces.begin(), interfaces.end(),
                           [&](const InterfaceReport& known) { return known.name == entry->ifa_name; });
    if (it == interfaces.end()) {
      it = interfaces.insert(it, {.name = entry->ifa_name,
                                  .up = (entry->ifa_flags & IFF_UP) != 0,
                                  .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
    }
    if (entry->ifa_addr == nullptr) continue;
    if (auto text = address_text(*entry->ifa_addr); !text.empty()) it->addresses.push_back(std::move(text));
  }
  return interfaces;
}

GpuReport examine_gpus() {
  GpuReport report;
  std::error_code none;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    Gpu found{.pci = gpu.path().filename()};
    std::ifstream information(gpu.path() / "information");
    constexpr std::string_view key = "Model:";
    for (std::string line; std::getline(information, line);) {
      if (line.starts_with(key)) found.model = trimmed(line.substr(key.size()));
    }
    report.gpus.push_back(std::move(found));
  }
  std::sort(report.gpus.begin(), report.gpus.end(), [](const Gpu& a, const Gpu& b) { return a.pci < b.pci; });
  for (const auto& file : fs::directory_iterator("/dev", none)) {
    const auto name = file.path().filename().string();
    constexpr std::string_view prefix = "nvidia";
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos) {
      ++report.device_files;
    }
  }
  std::ifstream version("/proc/driver/nvidia/version");
  std::getline(version, report.driver);
  // Loading it starts nothing on the GPU; cuInit would.
  if (void* const cuda = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    report.libcuda = true;
    ::dlclose(cuda);
  }
  return report;
}

}  // namespace cohort::tool
