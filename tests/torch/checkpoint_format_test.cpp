// SPDX-License-Identifier: BSD-3-Clause
//
// Checkpoints as others see them: what is in the file byte by byte, files that others wrote, and files of enemies.
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/ddp.h>
#include <sys/stat.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "support/spawned.h"
#include "support/temporary.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

namespace fs = std::filesystem;

std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
void put_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Tensors of every kind, by name.
std::map<std::string, torch::Tensor> all_kinds() {
  std::map<std::string, torch::Tensor> all;
  const auto numbers = torch::arange(-6, 6).reshape({3, 4});
  for (const auto type :
       {torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64, torch::kFloat16, torch::kBFloat16,
        torch::kFloat32, torch::kFloat64, torch::kBool, torch::kComplexFloat, torch::kComplexDouble}) {
    const std::string name = c10::toString(type);
    all[name] = numbers.to(type);
    all[name + "_scalar"] = numbers.to(type)[1][3];
    all[name + "_empty"] = torch::empty({0, 3}, type);
  }
  all["transposed"] = torch::arange(6.0).reshape({2, 3}).t();
  all["expanded"] = torch::ones({1, 3}).expand({4, 3});
  all["view"] = torch::arange(10000).slice(0, 10, 20);
  all["conjugate"] = torch::complex(torch::ones({2}), torch::arange(2.0)).conj();
  all["extremes"] =
      torch::tensor({std::numeric_limits<double>::infinity(), -0.0, std::nan(""), 5e-324}, torch::kDouble);
  return all;
}

TEST(CheckpointFormat, EveryKindOfTensorKeepsItsBits) {
  const TemporaryFolder folder;
  const auto saved = all_kinds();
  Checkpoint saving;
  for (const auto& [name, tensor] : saved) saving.add(name, tensor);
  saving.save(folder / "kinds");
  EXPECT_LT(fs::file_size(folder / "kinds"), 40000U) << "of a view its own elements alone";
  std::map<std::string, torch::Tensor> loaded;
  Checkpoint loading;
  for (const auto& [name, tensor] : saved) {
    loaded[name] = torch::zeros(tensor.sizes(), tensor.options());
    loading.add(name, loaded[name]);
  }
  loading.load(folder / "kinds");
  for (const auto& [name, tensor] : saved) {
    EXPECT_EQ(loaded[name].scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(name == "extremes" || loaded[name].equal(tensor)) << name;
  }
  EXPECT_TRUE(loaded["extremes"].view(torch::kLong).equal(saved.at("extremes").view(torch::kLong))) << "to the bit";
}

TEST(CheckpointFormat, DtypesAgreeOrAreConvertedOnRequest) {
  const TemporaryFolder folder;
  const std::map<std::string, torch::Tensor> saved{{"Float", torch::tensor({1.5F, -2.0F})},
                                                   {"Double", torch::tensor({1.5, -2.0}, torch::kDouble)},
                                                   {"Long", torch::tensor({1, -2}, torch::kLong)},
                                                   {"ComplexFloat", torch::complex(torch::ones(2), torch::ones(2))}};
  for (const auto& [name, tensor] : saved) {
    for (const bool sharded : {false, true}) {
      Checkpoint saving;
      saving.add("x", tensor);
      const auto path = folder / (name + (sharded ? " in a folder" : ""));
      saving.save(path, nullptr, {.sharded = sharded});
      for (const auto& [other, like] : saved) {
        const auto own = torch::zeros_like(like);
        Checkpoint loading;
        loading.add("x", own);
        if (name == other) {
          EXPECT_NO_THROW(loading.load(path));
          continue;
        }
        EXPECT_ERROR(CheckpointError, loading.load(path), "is " + name + " there and " + other + " here");
        if (tensor.is_complex()) {
          EXPECT_ERROR(CheckpointError, loading.load(path, nullptr, {.convert_dtypes = true}), "no imaginary parts");
          EXPECT_TRUE(own.eq(0).all().item<bool>());
        } else {
          EXPECT_ERROR(CheckpointError, loading.load(path), "load with {.convert_dtypes = true}");
          loading.load(path, nullptr, {.convert_dtypes = true});
          EXPECT_TRUE(own.equal(tensor.to(like.scalar_type()))) << name << " into " << other;
        }
      }
    }
  }
}

TEST(CheckpointFormat, ARealTensorThatIsMarkedComplexIsNotLoadedAsHalfOfItself) {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 2);
  torch::optim::Adam optimizer(net->parameters(), 0.1);
  net(torch::ones({1, 2})).sum().backward();
  optimizer.step();
  const auto before = net->weight.detach().clone();
  // A third dimension of 2, and the mark, which the format has for complex tensors.
  put_file(folder / "marked", [] {
    const std::string header = R"({"__metadata__":{"cohort.complex.weight":"true"},)"
                               R"("bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                               R"("weight":{"dtype":"F32","shape":[2,2,2],"data_offsets":[8,40]}})";
    std::string length(8, '\0');
    const std::uint64_t count = header.size();
    std::memcpy(length.data(), &count, sizeof count);
    return length + header + std::string(40, '\0');
  }());
  Checkpoint into_net;
  into_net.add("model", net);
  EXPECT_ERROR(CheckpointError, into_net.load(folder / "marked"), "weight is ComplexFloat there and Float here");
  EXPECT_ERROR(CheckpointError, into_net.load(folder / "marked", nullptr, {.convert_dtypes = true}), "no imaginary");
  EXPECT_TRUE(net->weight.equal(before));
  // The state of an optimizer, which takes the dtype of the file.
  auto weight = torch::complex(torch::ones(2), torch::ones(2)).set_requires_grad(true);
  torch::optim::SGD of_complex({weight}, torch::optim::SGDOptions(0.1).momentum(0.9));
  weight.mutable_grad() = torch::ones_like(weight);
  of_complex.step();
  Checkpoint saving;
  saving.add("optimizer", of_complex);
  saving.save(folder / "complex state");
  torch::optim::SGD of_real({torch::ones(2).set_requires_grad(true)}, torch::optim::SGDOptions(0.1).momentum(0.9));
  Checkpoint loading;
  loading.add("optimizer", of_real);
  EXPECT_ERROR(CheckpointError, loading.load(folder / "complex state"), "is ComplexFloat, and its parameter is Float");
}

TEST(CheckpointFormat, WhatTheFormatDoesNotHaveIsRefusedByName) {
  const TemporaryFolder folder;
  Checkpoint sparse;
  sparse.add("embedding", torch::eye(3).to_sparse());
  EXPECT_ERROR(CheckpointError, sparse.save(folder / "file"), "the tensor \"embedding\" is not strided");
  std::string text = "\xff";
  Checkpoint bytes;
  bytes.add("text", text);
  EXPECT_ERROR(CheckpointError, bytes.save(folder / "file"), "file: 'text': a string that is not UTF-8");
  EXPECT_FALSE(fs::exists(folder / "file"));
  int number = 0;
  Checkpoint names;
  names.add("model", number);
  EXPECT_ERROR(ValueError, names.add("model.layer", number), "one lies inside the other");
  EXPECT_ERROR(ValueError, names.add("cohort.step", number), "Cohort's own");
}

// --- Python ---------------------------------------------------------------------------------------------------------

/// Runs a program that knows the format from its specification alone.
std::string python_says(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{"/usr/bin/python3", COHORT_TORCH_TESTS_FOLDER "/safetensors_reference.py"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const auto done = Spawned(command, {}).finish();
  EXPECT_EQ(done.status, 0) << done.output;
  return done.output;
}

TEST(CheckpointFormat, PythonReadsWhatWeWrite) {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 1);
  {
    const torch::NoGradGuard no_grad;
    net->weight.copy_(torch::tensor({{1.5, -2.0}}));
    net->bias.fill_(0.25);
  }
  std::int64_t step = 1LL << 60;
  double rate = 0.1;
  std::string text = "a \"string\"\nwith lines";
  bool flag = true;
  auto half = torch::tensor({1.0, -0.5}, torch::kBFloat16);
  Checkpoint checkpoint;
  checkpoint.add("model", net);
  checkpoint.add("step", step);
  checkpoint.add("rate", rate);
  checkpoint.add("text", text);
  checkpoint.add("flag", flag);
  checkpoint.add("half", half);
  checkpoint.add("transposed", torch::arange(6).reshape({2, 3}).t());
  checkpoint.save(folder / "ours.safetensors");
  const auto answer = python_says({"read", folder / "ours.safetensors"});
  for (const auto* const line :
       {"model.weight F32 [1, 2] [1.5, -2.0]", "model.bias F32 [1] [0.25]", "half BF16 [2] [1.0, -0.5]",
        "transposed I64 [3, 2] [0, 3, 1, 4, 2, 5]", "metadata step 1152921504606846976", "metadata rate 0.1",
        "metadata text 'a \"string\"\\nwith lines'", "metadata flag True"}) {
    EXPECT_THAT(answer, testing::HasSubstr(line));
  }
}

TEST(CheckpointFormat, WeReadWhatPythonWrites) {
  const TemporaryFolder folder;
  python_says({"write", folder / ""});
  torch::nn::Linear net(2, 1);
  const auto forget = [&] {
    const torch::NoGradGuard no_grad;
    for (auto& each : net->parameters()) each.zero_();
  };
  const auto expect = [&] {
    EXPECT_TRUE(net->weight.equal(torch::tensor({{1.5F, -2.0F}})));
    EXPECT_TRUE(net->bias.equal(torch::tensor({0.25F})));
  };
  Checkpoint checkpoint;
  checkpoint.add("model", net);
  // Bare names, those of a wrapped module, names under "model.", other types, tensors that are not aligned, and files
  // with an index.
  for (const auto* const name : {"bare.safetensors", "wrapped.safetensors", "prefixed.safetensors", "half.safetensors",
                                 "unaligned.safetensors", "sharded", "single"}) {
    forget();
    checkpoint.load(folder / name, nullptr, {.convert_dtypes = true});
    expect();
  }
  EXPECT_EQ(Checkpoint::latest(folder / ""), std::nullopt) << "files of others are not continued";
  int step = 3;
  checkpoint.add("step", step);
  EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "bare.safetensors"), "there is no 'step' in it");
  checkpoint.load(folder / "bare.safetensors", nullptr, {.allow_missing = true});
  EXPECT_EQ(step, 3);
  Checkpoint larger;
  larger.add("model", torch::nn::Linear(3, 1));
  EXPECT_ERROR(CheckpointError, larger.load(folder / "bare.safetensors"), "weight has shape [1, 2] there and [1, 3]");
  EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "duplicate"), "is in another file of the folder as well");
}

// --- enemies --------------------------------------------------------------------------------------------------------

TEST(CheckpointFormat, ArchivesOfLibtorchAreRefusedUnexecuted) {
  const TemporaryFolder folder;
  torch::jit::Module module("evil");
  module.define(
      "def __setstate__(self, state: int) -> None:\n  assert state == 2, 'executed'\n"
      "def __getstate__(self) -> int:\n  return 1\n"
      "def forward(self) -> int:\n  return 1\n");
  module.save(folder / "evil.pt");
  EXPECT_ANY_THROW(torch::jit::load(folder / "evil.pt")) << "libtorch's loader executes it";
  torch::nn::Linear net(2, 1);
  torch::save(net, folder / "saved.pt");
  Checkpoint checkpoint;
  checkpoint.add("model", net);
  for (const auto* const name : {"evil.pt", "saved.pt"}) {
    EXPECT_ERROR(CheckpointError, checkpoint.load(folder / name), "is an archive of libtorch");
  }
}

TEST(CheckpointFormat, OldCheckpointsAreRefusedWithWhatToDo) {
  const TemporaryFolder folder;
  put_file(folder / "step-1.ckpt", "COHORTCK\1" + std::string(200, '\0'));
  Checkpoint checkpoint;
  EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "step-1.ckpt"), "Load it with the version that wrote it");
  EXPECT_EQ(Checkpoint::latest(folder / ""), std::nullopt);
}

TEST(CheckpointFormat, LatestPassesOverWhateverIsNewerAndBroken) {
  const TemporaryFolder folder;
  int step = 1;
  Checkpoint checkpoint;
  checkpoint.add("step", step);
  checkpoint.save(folder / "good");
  checkpoint.save(folder / "torn");
  const auto bytes = file_bytes(folder / "torn");
  checkpoint.save(folder / "garbled");
  auto garbled = file_bytes(folder / "garbled");
  garbled[garbled.size() - 9] = static_cast<char>(garbled[garbled.size() - 9] ^ 1);  // the last byte of the tensors
  put_file(folder / "garbled", garbled);
  put_file(folder / "torn", bytes.substr(0, bytes.size() - 1));
  put_file(folder / "huge", bytes);
  ASSERT_EQ(::truncate((folder / "huge").c_str(), off_t{1} << 42U), 0);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink((folder / "good").c_str(), (folder / "link").c_str()), 0);
  fs::create_directory(folder / "folder");
  put_file(folder / "folder/model.safetensors.index.json", R"({"weight_map":{"x":"../good"}})");
  put_file(folder / "notes.txt", "not a checkpoint");
  EXPECT_EQ(Checkpoint::latest(folder / ""), folder / "good");
  for (const auto* const name : {"torn", "garbled", "huge", "pipe", "link", "folder", "notes.txt"}) {
    EXPECT_ERROR(CheckpointError, checkpoint.load(folder / name), folder / name);
  }
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "pipe", group), "is not a regular file");
  });
}

TEST(CheckpointFormat, ThousandsOfMutatedCheckpointsAreLoadedOrRefused) {
  const TemporaryFolder folder;
  auto net = torch::nn::Linear(3, 2);
  torch::optim::Adam optimizer(net->parameters(), 0.1);
  net(torch::ones({1, 3})).sum().backward();
  optimizer.step();
  int step = 1;
  Checkpoint checkpoint;
  checkpoint.add("model", net);
  checkpoint.add("optimizer", optimizer);
  checkpoint.add("step", step);
  checkpoint.save(folder / "file");
  const auto bytes = file_bytes(folder / "file");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  // Without the seal, so that what is in the file is interpreted: names, types, shapes and values that do not fit.
  const auto unsealed = [&](std::string text) {
    const auto seal = text.find(R"("cohort.seal":)");
    text.replace(seal, text.find("},", seal) + 2 - seal, "");
    const auto format = text.find(R"("cohort.format":)");
    text.replace(format, text.find(',', format) + 1 - format, "");
    return text;
  };
  const auto plain = unsealed(bytes.substr(8, header));
  const auto data = bytes.substr(8 + header, bytes.size() - 8 - header - 8);
  std::mt19937 random(3);
  int refused = 0;
  constexpr int files = 3'000;
  for (int i = 0; i < files; ++i) {
    auto text = plain;
    auto values = data;
    for (auto changes = random() % 3 + 1; changes > 0; --changes) {
      text[random() % text.size()] = static_cast<char>(random() % 2 == 0 ? '0' + random() % 10 : 32 + random() % 95);
      values[random() % values.size()] = static_cast<char>(random());
    }
    std::string length(8, '\0');
    const std::uint64_t count = text.size();
    std::memcpy(length.data(), &count, sizeof count);
    put_file(folder / "mutated", (i % 2 == 0 ? length + text + values : [&] {
               auto sealed = bytes;
               sealed[random() % sealed.size()] = static_cast<char>(random());
               return sealed;
             }()));
    try {
      checkpoint.load(folder / "mutated", nullptr, {.allow_missing = true});
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, files / 2);
  EXPECT_LT(refused, files) << "changed data alone is loaded where there is no seal";
}

TEST(CheckpointFormat, WithASecretOnlySignedCheckpointsAreLoaded) {
  const TemporaryFolder folder;
  const auto secret = Secret::generate();
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    int step = 5;
    Checkpoint signs({.secret = secret});
    signs.add("step", step);
    Checkpoint plain;
    plain.add("step", step);
    signs.save(folder / "signed", group);
    plain.save(folder / "unsigned", group);
    step = 0;
    signs.load(folder / "signed", group);
    EXPECT_EQ(step, 5);
    plain.load(folder / "signed", group);
    EXPECT_ERROR(CheckpointError, signs.load(folder / "unsigned", group), "is not signed with this secret");
    Checkpoint other({.secret = Secret::generate()});
    other.add("step", step);
    EXPECT_ERROR(CheckpointError, other.load(folder / "signed", group), "is not signed with this secret");
    EXPECT_EQ(Checkpoint::latest(folder / "", secret), folder / "signed");
    EXPECT_EQ(Checkpoint::latest(folder / ""), folder / "unsigned");
    signs.save(folder / "shards", group, {.sharded = true});
    EXPECT_ERROR(CheckpointError, other.load(folder / "shards", group), "is not signed with this secret");
    step = 0;
    signs.load(folder / "shards", group);
    EXPECT_EQ(step, 5);
  });
}

TEST(CheckpointFormat, LoadingRaisesTheVersionsOfTensors) {
  const TemporaryFolder folder;
  torch::nn::BatchNorm1d net(2);
  auto tensor = torch::ones({2});
  Checkpoint checkpoint;
  checkpoint.add("model", net);
  checkpoint.add("tensor", tensor);
  checkpoint.save(folder / "file");
  std::vector<torch::Tensor> all = net->parameters();
  for (const auto& buffer : net->buffers()) all.push_back(buffer);
  all.push_back(tensor);
  std::vector<std::int64_t> before;
  for (const auto& each : all) before.push_back(each._version());
  auto weight = torch::ones({2}).set_requires_grad(true);
  const auto loss = (weight * tensor).sum();  // keeps the tensor for backward
  checkpoint.load(folder / "file");
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_GT(all[i]._version(), before[i]) << i;
  EXPECT_THROW(loss.backward(), c10::Error) << "modified by an inplace operation";
}

}  // namespace
}  // namespace cohort::test
