// SPDX-License-Identifier: BSD-3-Clause
//
// Runs a fuzz target without a fuzzer: over the files of its corpus, and over mutations of them that are the same every
// time. A seed that is refused is a failure, unless its name says so, and one that is accepted then.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

/// Whether it was accepted.
bool run(const std::string& input) {
  cohort::fuzz::accepted = false;
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  return cohort::fuzz::accepted;
}

std::string mutated(std::string input, std::mt19937& random) {
  const int changes = static_cast<int>(random() % 4) + 1;
  for (int i = 0; i < changes; ++i) {
    const auto at = input.empty() ? 0 : random() % input.size();
    switch (random() % 4) {
      case 0:
        input.insert(at, 1, static_cast<char>(random()));
        break;
      case 1:
        input.resize(at);
        break;
      case 2:
        input += input.substr(at);
        break;
      default:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> seeds = {""};
  int wrong = 0;
  if (argc > 1 && std::filesystem::is_directory(argv[1])) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
      std::ifstream file(entry.path(), std::ios::binary);
      seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      const bool accepted = run(seeds.back());
      if (accepted != entry.path().filename().string().starts_with("refused_")) continue;
      std::printf("the seed %s is %s\n", entry.path().c_str(), accepted ? "accepted" : "refused");
      ++wrong;
    }
  }
  std::mt19937 random(1);
  run(seeds.front());
  constexpr int mutations = 3000;
  for (int i = 0; i < mutations; ++i) run(mutated(seeds[random() % seeds.size()], random));
  std::printf("%zu seeds, %d mutations\n", seeds.size(), mutations);
  return wrong == 0 ? 0 : 1;
}
