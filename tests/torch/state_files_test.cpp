// SPDX-License-Identifier: BSD-3-Clause
//
// The files of checkpoints, without libtorch: the format, what is refused, and what a refusal costs. Whatever the file,
// the answer is its content or a CheckpointError, and memory is taken for what the file has, not for what it claims.
#include <cohort/torch/checkpoint_error.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary.h"
#include "torch/checkpoint/checkpoint_directory.h"
#include "torch/checkpoint/checkpoint_file.h"
#include "torch/checkpoint/safetensors.h"
#include "torch/checkpoint/saved_parts.h"
#include "torch/state/box.h"
#include "torch/state/checkpoint_names.h"
#include "torch/state/save_plan.h"
#include "torch/state/value_text.h"

namespace {

/// The largest block that was asked for since it was last set to 0.
std::atomic<std::size_t> largest_block = 0;
/// Together.
std::atomic<std::size_t> bytes_asked_for = 0;

}  // namespace

// NOLINTBEGIN: replaced for the whole program, to see what is allocated. Not inlined: where one of them is and the
// other is not, compilers take them for mismatched.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  bytes_asked_for.fetch_add(bytes, std::memory_order_relaxed);
  auto before = largest_block.load(std::memory_order_relaxed);
  while (before < bytes && !largest_block.compare_exchange_weak(before, bytes, std::memory_order_relaxed)) {
  }
  if (void* const block = std::malloc(bytes)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, std::size_t /*bytes*/) noexcept {
  std::free(block);
}
// NOLINTEND

namespace cohort::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t small = std::size_t{2} << 20U;

std::string le64(std::uint64_t value) {
  return crc_text(value);
}
std::string file_with(const std::string& header, const std::string& data = {}) {
  return le64(header.size()) + header + data;
}
std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}
void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// A file as save() writes it: two tensors, some metadata and a seal.
std::string write_example(const std::string& path, const Secret* secret = nullptr, std::uint64_t serial = 1) {
  SafetensorsHeader header;
  header.metadata = {{std::string(format_key), unsigned_text(checkpoint_format)},
                     {std::string(serial_key), unsigned_text(serial)},
                     {"text", string_text("two\nlines")}};
  CheckpointWriter writer(path, secret);
  header.tensors = {{.name = "bytes", .dtype = "U8", .shape = {3}},
                    {.name = "a.weight", .dtype = "F64", .shape = {2, 2}},
                    {.name = "scalar", .dtype = "F32", .shape = {}},
                    {.name = "empty", .dtype = "I64", .shape = {0, 5}},
                    {.name = std::string(seal_name), .dtype = "U8", .shape = {writer.seal_bytes()}}};
  const auto start = encode_safetensors_header(header, seal_name);
  writer.write(start.data(), start.size());
  const std::string data(32 + 4 + 3, 'x');
  writer.write(data.data(), data.size());
  writer.commit();
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Safetensors, TensorsAreAlignedToTheirElementsAndTheSealIsLast) {
  const TemporaryFolder folder;
  const auto bytes = write_example(folder / "file");
  const auto header = read_header(folder / "file");
  std::vector<std::string> names;
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ(length % 8, 0U);
  for (const auto& tensor : header.tensors) {
    names.push_back(tensor.name);
    if (tensor.end > tensor.begin && !tensor.shape.empty()) {
      EXPECT_EQ(tensor.begin % (tensor.dtype == "F64" ? 8 : 1), 0U) << tensor.name;
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a.weight", "empty", "scalar", "bytes", "cohort.seal"}));
  const CheckpointContent content(bytes, "file", nullptr);
  EXPECT_TRUE(content.is_ours());
  EXPECT_EQ(content.header().tensors.size(), 4U);
  EXPECT_EQ(text_to_string(content.header().metadata.at("text")), "two\nlines");
}

TEST(Safetensors, EveryViolationOfTheFormatIsNamed) {
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  struct Case {
    std::string header;
    std::string data;
    std::string why;
  };
  const auto two = [&](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  const std::vector<Case> cases = {
      {"", "", "no JSON header"},
      {"{\"\\u001b[2J\\r\":1}", "", "at \"\\u001b[2J\\r\": a number"},
      {"[]", "", "no JSON header"},
      {"{", "", "not JSON"},
      {"{} {}", "", "not JSON"},
      {"{\"\xff\":1}", "", "not JSON"},
      {R"({"x":1})", "", "a number where none belongs"},
      {R"({"x":{}})", "", "no dtype, shape or data_offsets"},
      {R"({"x":{"dtype":"U8"}})", "", "no dtype, shape or data_offsets"},
      {R"({"x":{"dtype":"U8","dtype":"U8"}})", "", "dtype is there twice"},
      {R"({"x":{"code":"import os"}})", "", "none of dtype"},
      {R"({"__metadata__":{"a":1}})", "", "a number where none belongs"},
      {R"({"__metadata__":{"a":{}}})", "", "an object where none belongs"},
      {R"({"__metadata__":{"a":"b","a":"c"}})", "", "\"a\" is there twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "", "twice"},
      {tensor("U8", "[1]", "[0,1]") + "x", "x", "not JSON"},
      {tensor("PICKLE", "[1]", "[0,1]"), "x", "dtype \"PICKLE\", which is unknown"},
      {tensor("U8", "[NaN]", "[0,1]"), "x", "not JSON"},
      {tensor("U8", "[null]", "[0,1]"), "x", "null"},
      {tensor("U8", "[1.0]", "[0,1]"), "x", "not an integer"},
      {tensor("U8", "[-1]", "[0,1]"), "x", "negative"},
      {tensor("U8", "[18446744073709551616]", "[0,1]"), "x", "not an integer of 64 bits"},
      {tensor("U8", "[[1]]", "[0,1]"), "x", "a list where none belongs"},
      {tensor("U8", "[1]", "[0]"), "x", "not two numbers"},
      {tensor("U8", "[1]", "[0,1,1]"), "x", "not two numbers"},
      {tensor("U8", "[1]", "[1,0]"), "x", "has the bytes 1 to 0"},
      {tensor("F32", "[1]", "[0,1]"), "x", "has the bytes 0 to 1"},
      {tensor("F4", "[3]", "[0,1]"), "x", "does not end with a byte"},
      {tensor("U8", "[4294967296,4294967296]", "[0,0]"), "", "too many elements"},
      {tensor("U8", "[4294967296,4294967296,0]", "[0,0]"), "", "too many elements"},
      {tensor("F64", "[1152921504606846976]", "[0,0]"), "", "too many elements"},
      {tensor("U8", "[1" + repeated(",1", 64) + "]", "[0,1]"), "x", "has 65 dimensions, and 64 are the most"},
      {tensor("U8", "[1]", "[0,1]"), "", "is torn"},
      {tensor("U8", "[1]", "[0,1]"), "xx", "is torn"},
      {tensor("U8", "[9223372036854775807]", "[0,9223372036854775807]"), "x", ""},
      {two("[0,4]", "[2,6]"), "xxxxxx", "begins at byte 2, and what is before it ends at byte 4"},
      {two("[0,4]", "[0,4]"), "xxxx", "begins at byte 0"},
      {two("[0,4]", "[5,9]"), "xxxxxxxxx", "begins at byte 5"},
      {two("[4,8]", "[1,5]"), "xxxxxxxx", "begins at byte 1"},
      {"{\"x\":" + std::string(1'000'000, '['), "", "a list where none belongs"},
      {std::string(1, '{') + "\"x\":" + std::string(1'000'000, '{'), "", ""},
  };
  for (const auto& each : cases) {
    const auto bytes = file_with(each.header, each.data);
    largest_block = 0;
    EXPECT_ERROR(CheckpointError, CheckpointContent(bytes, "evil.ckpt", nullptr), "evil.ckpt: ");
    EXPECT_LT(largest_block, small + bytes.size()) << each.header.substr(0, 100);
    EXPECT_ERROR(CheckpointError, CheckpointContent(bytes, "evil.ckpt", nullptr), each.why);
  }
  for (const std::uint64_t length : {std::uint64_t{1} << 63U, ~std::uint64_t{0}, std::uint64_t{100'000'001}}) {
    EXPECT_ERROR(CheckpointError, CheckpointContent(le64(length) + "{}", "evil.ckpt", nullptr),
                 "its header would have");
  }
  EXPECT_ERROR(CheckpointError, CheckpointContent(le64(3) + "{}", "evil.ckpt", nullptr), "is torn");
}

TEST(Safetensors, OtherKindsOfFilesAreRefusedWithWhatToDo) {
  EXPECT_ERROR(CheckpointError, CheckpointContent("COHORTCK\1 old", "old.ckpt", nullptr),
               "old.ckpt: is a checkpoint in the format of an early version of Cohort");
  EXPECT_ERROR(CheckpointError, CheckpointContent("PK\3\4 a zip archive", "model.pt", nullptr),
               "model.pt: is an archive of libtorch");
}

TEST(CheckpointFile, ATornFileIsRefusedWhateverItsLength) {
  const TemporaryFolder folder;
  const auto secret = Secret::generate();
  for (const auto* const signs : {static_cast<const Secret*>(nullptr), &secret}) {
    const auto bytes = write_example(folder / "file", signs);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const auto torn = bytes.substr(0, length);
      EXPECT_ERROR(CheckpointError, CheckpointContent(torn, "torn", nullptr), "torn: is ");
      EXPECT_ERROR(CheckpointError, CheckpointContent(torn, "torn", &secret), "torn: is not signed");
      put(folder / "torn", torn);
      EXPECT_ERROR(CheckpointError, verify_file(folder / "torn", nullptr), "is ");
      EXPECT_ERROR(CheckpointError, CheckpointContent::read_file(folder / "torn", nullptr), "is ");
    }
    EXPECT_ERROR(CheckpointError, CheckpointContent(bytes + "x", "longer", nullptr), "is torn");
  }
}

TEST(CheckpointFile, EveryFlippedBitIsFound) {
  const TemporaryFolder folder;
  const auto bytes = write_example(folder / "file");
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto garbled = bytes;
    garbled[bit / 8] = static_cast<char>(garbled[bit / 8] ^ (1U << (bit % 8)));
    EXPECT_ERROR(CheckpointError, CheckpointContent(garbled, "garbled", nullptr), "garbled: is ");
  }
}

TEST(CheckpointFile, OnlyRegularFilesAreOpenedAndAPipeDoesNotBlock) {
  const TemporaryFolder folder;
  write_example(folder / "file");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink((folder / "file").c_str(), (folder / "link").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", (folder / "broken link").c_str()), 0);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {folder / "pipe", "is not a regular file"},     {folder / "", "is not a regular file"},
      {"/dev/zero", "is not a regular file"},         {folder / "link", "is a symbolic link"},
      {folder / "broken link", "is a symbolic link"}, {folder / "nothing", "cannot be opened: No such"}};
  for (const auto& [path, why] : cases) {
    EXPECT_ERROR(CheckpointError, CheckpointContent::read_file(path, nullptr), path + ": " + why);
    EXPECT_ERROR(CheckpointError, verify_file(path, nullptr), path + ": " + why);
    EXPECT_ERROR(CheckpointError, read_header(path), path + ": " + why);
  }
  EXPECT_EQ(find_checkpoints(folder / "").size(), 1U) << "a search passes over them";
}

TEST(CheckpointFile, AFileThatClaimsToBeHugeTakesNoMemory) {
  const TemporaryFolder folder;
  const auto good = write_example(folder / "good", nullptr, 1);
  const auto sparse = [&](const std::string& path, const std::string& start, off_t bytes) {
    put(path, start);
    ASSERT_EQ(::truncate(path.c_str(), bytes), 0);
  };
  constexpr off_t tera = off_t{1} << 40U;
  // Consistent, with a newer serial number, and larger than any memory.
  SafetensorsHeader header;
  header.metadata = {{std::string(format_key), "2"}, {std::string(serial_key), "7"}};
  header.tensors = {{.name = "huge", .dtype = "U8", .shape = {4 * tera}},
                    {.name = std::string(seal_name), .dtype = "U8", .shape = {crc_bytes}}};
  const auto start = encode_safetensors_header(header, seal_name);
  sparse(folder / "huge", start, static_cast<off_t>(start.size() + 4 * tera + crc_bytes));
  sparse(folder / "hole", le64(1000), 4 * tera);
  largest_block = 0;
  for (const auto* const name : {"huge", "hole"}) {
    EXPECT_ERROR(CheckpointError, CheckpointContent::read_file(folder / name, nullptr), name);
    EXPECT_ERROR(CheckpointError, verify_file(folder / name, nullptr), name);
  }
  EXPECT_ERROR(CheckpointError, verify_file(folder / "huge", nullptr), "more than the");
  EXPECT_EQ(find_checkpoints(folder / "").front().path, folder / "huge");
  EXPECT_LT(largest_block, small);
}

TEST(CheckpointFile, AnHmacTellsTheJobsFilesFromOthers) {
  const TemporaryFolder folder;
  const auto secret = Secret::generate();
  const auto other = Secret::generate();
  const auto bytes = write_example(folder / "signed", &secret);
  write_example(folder / "unsigned");
  EXPECT_EQ(CheckpointContent(bytes, "signed", &secret).header().tensors.size(), 4U);
  EXPECT_EQ(CheckpointContent(bytes, "signed", nullptr).header().tensors.size(), 4U) << "readable by others";
  verify_file(folder / "signed", &secret);
  EXPECT_ERROR(CheckpointError, CheckpointContent(bytes, "signed", &other), "is not signed with this secret");
  EXPECT_ERROR(CheckpointError, verify_file(folder / "signed", &other), "is not signed with this secret");
  EXPECT_ERROR(CheckpointError, verify_file(folder / "unsigned", &secret), "is not signed with this secret");
  // Somebody changes a byte and mends the checksum.
  auto forged = bytes;
  const auto data = bytes.find("xxxx");
  forged[data] = 'y';
  const auto covered = forged.size() - crc_bytes - hmac_bytes;
  Crc64 crc;
  crc.add(forged.data(), covered);
  forged.replace(covered, crc_bytes, crc_text(crc.value()));
  EXPECT_EQ(CheckpointContent(forged, "forged", nullptr).header().tensors.size(), 4U) << "the checksum alone is fooled";
  EXPECT_ERROR(CheckpointError, CheckpointContent(forged, "forged", &secret), "is not signed with this secret");
  // Nothing is interpreted before: a header that would be refused is not looked at.
  EXPECT_ERROR(CheckpointError, CheckpointContent(file_with("{"), "evil", &secret), "is not signed with this secret");
}

TEST(CheckpointFile, ThousandsOfMutatedFilesAreReadOrRefused) {
  const TemporaryFolder folder;
  const auto secret = Secret::generate();
  const std::vector<std::string> seeds = {
      write_example(folder / "a"), write_example(folder / "b", &secret),
      file_with(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234")};
  std::mt19937 random(1);
  int read = 0;
  constexpr int files = 20'000;
  for (int i = 0; i < files; ++i) {
    auto bytes = seeds[random() % seeds.size()];
    for (auto changes = random() % 4 + 1; changes > 0; --changes) {
      const auto at = bytes.empty() ? 0 : random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes.insert(at, 1, static_cast<char>(random()));
          break;
        case 1:
          bytes.erase(at, random() % 8 + 1);
          break;
        case 2:
          bytes.insert(at, bytes.substr(random() % (bytes.size() + 1), random() % 64));
          break;
        case 3:
          if (!bytes.empty()) bytes[at] = "0123456789{}[]\",:"[random() % 17];
          break;
        default:
          if (!bytes.empty()) bytes[at] = static_cast<char>(random());
          break;
      }
    }
    largest_block = 0;
    try {
      const CheckpointContent content(bytes, "mutated", nullptr);
      for (const auto& tensor : content.header().tensors) EXPECT_EQ(content.data(tensor).size(), tensor_bytes(tensor));
      ++read;
    } catch (const CheckpointError&) {  // NOLINT(bugprone-empty-catch): the other answer
    }
    ASSERT_LT(largest_block, small) << i;
  }
  EXPECT_GT(read, 0) << "a byte of data that changes in a file without a seal";
  EXPECT_LT(read, files / 2);
}

TEST(CheckpointFile, AFileSystemWithoutNamelessFilesLeavesNothingHalfDoneEither) {
  const TemporaryFolder folder;
  const std::string large(3'000'000, 'x');
  for (const bool with_name : {true, false}) {
    const auto path = folder / "file.ckpt";
    const auto write = [&](const std::string& text, bool commit) {
      CheckpointWriter writer(path, nullptr, with_name);
      writer.write(text.data(), text.size());
      writer.write(text.data(), text.size());
      EXPECT_EQ(fs::exists(path + ".partial"), with_name);
      if (commit) writer.commit();
    };
    const auto size = [&] { return fs::file_size(path) - crc_bytes; };
    fs::remove(path);
    write("a", false);
    EXPECT_FALSE(fs::exists(path));
    write("b", true);
    write(large, false);
    EXPECT_EQ(size(), 2U);
    write(large, true);
    EXPECT_EQ(size(), 2 * large.size());
    EXPECT_FALSE(fs::exists(path + ".partial"));
  }
  // A link under the temporary name is not followed.
  put(folder / "victim", "keep");
  ASSERT_EQ(::symlink((folder / "victim").c_str(), (folder / "file.ckpt.partial").c_str()), 0);
  CheckpointWriter(folder / "file.ckpt", nullptr, true).write("x", 1);
  EXPECT_EQ(fs::file_size(folder / "victim"), 4U);
}

TEST(CheckpointFolder, AnIndexNamesFilesOfItsOwnFolderAlone) {
  const TemporaryFolder folder;
  const auto model = folder / "model";
  fs::create_directory(model);
  const auto index = [&](const std::string& text) { put(model + "/model.safetensors.index.json", text); };
  EXPECT_ERROR(CheckpointError, files_of_folder(model), "is a folder without model.safetensors.index.json");
  const auto map = [](const std::string& file) { return R"({"weight_map":{"x":")" + file + R"("}})"; };
  for (const auto* const name :
       {"../secret", "/etc/passwd", "..", ".", "", "a/b", "a\\u0000b", "\\u001b[2J", "a\\u009b", "a\\n"}) {
    index(map(name));
    EXPECT_ERROR(CheckpointError, files_of_folder(model), "is not the name of a file in this folder");
    EXPECT_THAT(message_of<CheckpointError>([&] { files_of_folder(model); }),
                testing::AllOf(testing::Not(testing::HasSubstr("\x1b")), testing::Not(testing::HasSubstr("\x9b"))));
  }
  for (const auto& text : {std::string("{}"), std::string("[]"), std::string("{"), std::string(1'000'000, '['),
                           std::string(R"({"weight_map":{}})"), std::string(R"({"weight_map":3})")}) {
    index(text);
    largest_block = 0;
    EXPECT_ERROR(CheckpointError, files_of_folder(model), "is not an index");
    EXPECT_LT(largest_block, small);
  }
  index(R"({"metadata":{"total_size":3,"more":[1,2.5,null,true]},"weight_map":{"x":"b","y":"a","z":"b"}})");
  EXPECT_EQ(files_of_folder(model), (std::vector<std::string>{model + "/a", model + "/b"}));
  fs::remove(model + "/model.safetensors.index.json");
  write_example(model + "/model.safetensors");
  EXPECT_EQ(files_of_folder(model), (std::vector<std::string>{model + "/model.safetensors"}));
  EXPECT_EQ(find_checkpoints(folder / "").size(), 0U) << "a folder is found by its index";
}

// --- folders that are replaced, pruned and searched -----------------------------------------------------------------

/// A rank's file as save() writes it: about a serial number, and ten bytes.
void write_shard(const std::string& path, std::uint64_t serial, const std::string& save, int rank, int ranks,
                 const Secret* secret = nullptr) {
  CheckpointWriter writer(path, secret);
  SafetensorsHeader header;
  header.metadata = {{std::string(format_key), unsigned_text(checkpoint_format)},
                     {std::string(serial_key), unsigned_text(serial)},
                     {std::string(save_key), save},
                     {std::string(ranks_key), integer_text(ranks)},
                     {std::string(shard_key), integer_text(rank)}};
  if (secret != nullptr) header.metadata[std::string(serial_proof_key)] = string_text(serial_proof(serial, *secret));
  header.tensors = {{.name = "bytes" + std::to_string(rank), .dtype = "U8", .shape = {10}},
                    {.name = std::string(seal_name), .dtype = "U8", .shape = {writer.seal_bytes()}}};
  const auto start = encode_safetensors_header(header, seal_name) + std::string(10, 'x');
  writer.write(start.data(), start.size());
  writer.commit();
}

/// As save() does with `sharded`.
void save_shards(const std::string& path, std::uint64_t serial, int ranks = 2, const Secret* secret = nullptr) {
  const auto save = string_text(new_save_id());
  begin_folder(path);
  for (int rank = 0; rank < ranks; ++rank) {
    write_shard(rank_file(partial_folder(path), rank, ranks), serial, save, rank, ranks, secret);
  }
  commit_folder(path, ranks, save);
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

const std::string index_file = "/model.safetensors.index.json";

TEST(CheckpointFolder, TornRemainsOfASaveAreReplaced) {
  const TemporaryFolder folder;
  const auto path = folder / "step-1";
  const auto first = rank_file(path, 0, 2);
  const auto second = rank_file(path, 1, 2);
  const std::vector<std::pair<std::string, std::function<void()>>> cases{
      {"empty",
       [&] {
         for (const auto& name : names_in(path)) fs::remove(path + "/" + name);
       }},
      {"without an index", [&] { fs::remove(path + index_file); }},
      {"without a shard", [&] { fs::remove(first); }},
      {"one shard", [&] { fs::remove(first), fs::remove(path + index_file); }},
      {"a torn first shard", [&] { fs::resize_file(first, fs::file_size(first) - 1); }},
      {"shards torn in their headers", [&] { fs::resize_file(first, 20), fs::resize_file(second, 0); }},
      {"a garbled shard", [&] { put(first, std::string(300, '\xff')); }},
      {"a torn index and shard", [&] { fs::resize_file(path + index_file, 3), fs::resize_file(first, 9); }},
      {"half a file of a save", [&] { fs::rename(second, second + ".partial"); }},
  };
  std::uint64_t serial = 0;
  for (const auto& [what, tear] : cases) {
    save_shards(path, ++serial);
    tear();
    EXPECT_NO_THROW(save_shards(path, ++serial)) << what;
    EXPECT_NO_THROW(verify_checkpoint(path, nullptr)) << what;
    EXPECT_EQ(find_checkpoints(folder / "").front().serial, serial) << what;
    EXPECT_EQ(names_in(folder / ""), std::set<std::string>{"step-1"}) << what;
  }
}

TEST(CheckpointFolder, WhatOthersKeepThereIsNotReplaced) {
  const TemporaryFolder folder;
  const auto path = folder / "mine";
  const auto foreign = file_with(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
  const std::vector<std::pair<std::string, std::function<void()>>> cases{
      {"notes.txt", [&] { put(path + "/notes.txt", "keep"); }},
      {"no save wrote", [&] { save_shards(path, 1), put(path + "/notes.txt", "keep"); }},
      {"no save wrote", [&] { save_shards(path, 1), fs::create_directory(path + "/model-1-of-2.safetensors"); }},
      {"no save wrote",
       [&] { save_shards(path, 1), fs::create_symlink("/etc/passwd", path + "/model-3-of-3.safetensors"); }},
      {"no save wrote",
       [&] { put(rank_file(path, 0, 1), foreign), put(path + index_file, R"({"weight_map":{"x":"y"}})"); }},
      {"no save wrote", [&] { save_shards(path, 1), put(rank_file(path, 0, 1), foreign); }},
      {"nothing in it says", [&] { put(rank_file(path, 0, 1), foreign.substr(0, 30)); }},
      {"it is not a folder", [&] { fs::remove(path), put(path, "keep"); }},
      {"it is not a folder", [&] { fs::remove(path), fs::create_directory_symlink(folder / "", path); }},
  };
  for (const auto& [why, make] : cases) {
    fs::create_directory(path);
    make();
    const auto before = fs::is_directory(path) && !fs::is_symlink(path) ? names_in(path) : std::set<std::string>{};
    EXPECT_ERROR(CheckpointError, save_shards(path, 2), "mine: exists and is not a checkpoint alone");
    EXPECT_ERROR(CheckpointError, save_shards(path, 2), why);
    EXPECT_ERROR(CheckpointError, replace_folder(folder / "mine.partial", path), "mine");
    if (!before.empty()) {
      EXPECT_EQ(names_in(path), before);
    }
    for (const auto& name : before) fs::remove(path + "/" + name);
    fs::remove(path);
    EXPECT_EQ(names_in(folder / ""), std::set<std::string>{});
  }
  // Neither is what is under the names that a save uses in between.
  fs::create_directory(path + ".partial");
  put(path + ".partial/notes.txt", "keep");
  EXPECT_ERROR(CheckpointError, save_shards(path, 2), "mine.partial: no folder can be made: File exists");
  EXPECT_TRUE(fs::exists(path + ".partial/notes.txt"));
  // A checkpoint with a file of others in it can be removed; the file stays.
  save_shards(folder / "old", 1);
  put(folder / "old/notes.txt", "keep");
  EXPECT_FALSE(remove_checkpoint(folder / "old"));
  EXPECT_EQ(names_in(folder / "old"), std::set<std::string>{"notes.txt"});
}

TEST(CheckpointFolder, WhatKilledSavesLeaveIsSweptByTheNext) {
  const TemporaryFolder folder;
  const auto path = folder / "step-1";
  save_shards(path, 1);
  // Before the index, before the exchange, and after it: the old one under the new one's name. And half of a deletion.
  begin_folder(path);
  write_shard(rank_file(partial_folder(path), 0, 2), 2, "\"a\"", 0, 2);
  fs::copy(path, path + "." + new_save_id() + ".partial");
  const auto deleted = folder / ("step-0." + new_save_id() + ".removed");
  fs::copy(path, deleted);
  fs::remove(deleted + index_file);
  fs::copy(path, folder / ("step-10." + new_save_id() + ".partial"));
  EXPECT_EQ(find_checkpoints(folder / "").size(), 1U) << "none of them is found";
  save_shards(path, 3);
  EXPECT_EQ(names_in(folder / "").size(), 2U) << "another save, of step-10, goes on";
  EXPECT_EQ(names_in(path).size(), 3U);
}

TEST(CheckpointFolder, AKillWhileFoldersAreReplacedAndDeletedLeavesNothingInTheWay) {
  const TemporaryFolder folder;
  const auto step = [&](std::uint64_t number) { return folder / ("step-" + std::to_string(number % 3)); };
  std::mt19937 random(5);
  for (std::uint64_t serial = 1; serial < 200; serial += 10) {
    std::array<int, 2> started{};
    ASSERT_EQ(::pipe(started.data()), 0);
    Process writer([&] {
      for (auto next = serial;; ++next) {
        save_shards(step(next), next);
        remove_checkpoint(step(next + 1));
        if (::write(started[1], "x", 1) != 1) return 1;
      }
    });
    ::close(started[1]);
    char first = 0;
    ASSERT_EQ(::read(started[0], &first, 1), 1);
    // At any moment of what takes some milliseconds: a random time, which nothing depends on.
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 5000);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    writer.signal(SIGKILL);
    EXPECT_EQ(writer.wait(), 128 + SIGKILL);
    ::close(started[0]);
    const auto found = find_checkpoints(folder / "");
    ASSERT_FALSE(found.empty());
    for (const auto& each : found) EXPECT_NO_THROW(verify_checkpoint(each.path, nullptr)) << each.path;
    for (std::uint64_t number = 0; number < 3; ++number) EXPECT_NO_THROW(save_shards(step(number), 1000 + number));
    EXPECT_EQ(names_in(folder / ""), (std::set<std::string>{"step-0", "step-1", "step-2"})) << "and leaves nothing";
  }
}

TEST(CheckpointFolder, IsReplacedWhereNamesCannotBeExchangedToo) {
  const TemporaryFolder folder;
  const auto path = folder / "step-1";
  save_shards(path, 1);
  save_shards(folder / "new", 2);
  EXPECT_EQ(replace_folder(folder / "new", path, /*can_exchange=*/false), path + ".old");
  EXPECT_EQ(find_checkpoints(folder / "").size(), 2U);
  EXPECT_EQ(find_checkpoints(folder / "").front().path, path);
  // Once there is nothing to rename any more, what is there stays.
  for (const bool can_exchange : {true, false}) {
    EXPECT_ERROR(CheckpointError, replace_folder(folder / "new", path, can_exchange), "No such file");
    EXPECT_EQ(find_checkpoints(folder / "").front().path, path);
    EXPECT_NO_THROW(verify_checkpoint(path, nullptr));
  }
}

TEST(CheckpointFolder, TwoWritersOfOnePathNeverLeaveItWithoutACheckpoint) {
  const TemporaryFolder folder;
  const auto path = folder / "step-1";
  save_shards(path, 1);
  std::atomic<int> saved = 0;
  std::atomic<int> writing = 2;
  const auto write = [&] {
    for (int i = 0; i < 100; ++i) {
      try {
        save_shards(path, 1);
        ++saved;
      } catch (const CheckpointError&) {  // NOLINT(bugprone-empty-catch): the two get into each other's way
      }
    }
    --writing;
  };
  std::thread first(write);
  std::thread second(write);
  int missing = 0;
  while (writing > 0) missing += fs::exists(path + index_file) ? 0 : 1;
  first.join();
  second.join();
  EXPECT_EQ(missing, 0);
  EXPECT_GT(saved, 0);
  EXPECT_NO_THROW(verify_checkpoint(path, nullptr));
  save_shards(path, 2);
  EXPECT_EQ(names_in(folder / ""), std::set<std::string>{"step-1"}) << "nothing left behind";
}

TEST(CheckpointFolder, SerialNumbersOfOthersDoNotCountForWhoeverSigns) {
  const TemporaryFolder folder;
  const auto secret = Secret::generate();
  const auto other = Secret::generate();
  const auto here = folder / "";
  constexpr std::uint64_t highest = (std::uint64_t{1} << 53U) - 1;
  save_shards(folder / "signed", 3, 2, &secret);
  write_example(folder / "unsigned", nullptr, highest);
  write_shard(folder / "of another", highest - 1, "\"a\"", 0, 1, &other);
  ASSERT_EQ(find_checkpoints(here, &secret).size(), 1U);
  EXPECT_EQ(find_checkpoints(here, &secret).front().path, folder / "signed");
  EXPECT_TRUE(find_checkpoints(here, &secret).front().is_signed);
  EXPECT_EQ(next_serial(here, &secret), 4U);
  // Who has no secret cannot tell, and does not write what nobody would find.
  EXPECT_EQ(find_checkpoints(here).size(), 3U);
  EXPECT_ERROR(CheckpointError, next_serial(here, nullptr), "unsigned: has the serial number 9007199254740991, and no");
  // A proof is of its number alone.
  EXPECT_TRUE(is_serial_proof(serial_proof(3, secret), 3, secret));
  EXPECT_FALSE(is_serial_proof(serial_proof(3, secret), 4, secret));
  EXPECT_FALSE(is_serial_proof("", 3, secret));
}

TEST(CheckpointFolder, ANameThatGivesATerminalOrdersIsPassedOver) {
  const TemporaryFolder folder;
  write_example(folder / "good", nullptr, 1);
  for (const auto* const name : {"\x1b[2J", "a\nb", "a\x7f", "a\xc2\x9b", "\x9b"}) {
    EXPECT_TRUE(has_control_characters(name)) << name;
    write_example(folder / name, nullptr, 2);
  }
  for (const auto* const name : {"step-1", "\xc3\xa4\xc3\x9f", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    EXPECT_FALSE(has_control_characters(name)) << name;
  }
  ASSERT_EQ(find_checkpoints(folder / "").size(), 1U);
  EXPECT_EQ(find_checkpoints(folder / "").front().path, folder / "good");
}

/// Whether each element of the shape is in exactly one of the boxes, counted one by one.
bool covers_once(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes) {
  std::vector<std::int64_t> index(shape.size());
  for (;;) {
    const auto count = std::count_if(boxes.begin(), boxes.end(), [&](const Box& box) {
      for (std::size_t d = 0; d < index.size(); ++d) {
        if (index[d] < box.offsets[d] || index[d] >= box.offsets[d] + box.sizes[d]) return false;
      }
      return true;
    });
    if (count != 1) return false;
    std::size_t d = 0;
    while (d < index.size() && ++index[d] == shape[d]) index[d++] = 0;
    if (d == index.size()) return true;
  }
}

TEST(CheckpointParts, TilingIsJudgedAsByCountingEveryElement) {
  std::mt19937 random(3);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  int tilings = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::size_t dims = 1 + random() % 3;
    std::vector<std::int64_t> shape;
    for (std::size_t d = 0; d < dims; ++d) shape.push_back(1 + below(5));
    // Cuts boxes at random, and then perhaps moves, grows, doubles or drops one.
    std::vector<Box> boxes{whole_box(shape)};
    for (int cut = 0; cut < 4; ++cut) {
      const auto which = random() % boxes.size();
      const auto d = random() % dims;
      if (boxes[which].sizes[d] < 2) continue;
      auto rest = boxes[which];
      const auto at = 1 + below(boxes[which].sizes[d] - 1);
      boxes[which].sizes[d] = at;
      rest.offsets[d] += at;
      rest.sizes[d] -= at;
      boxes.push_back(rest);
    }
    const auto which = random() % boxes.size();
    const auto d = random() % dims;
    switch (random() % 6) {
      case 0:
        boxes[which].offsets[d] = below(shape[d] - boxes[which].sizes[d] + 1);
        break;
      case 1:
        boxes[which].sizes[d] = below(shape[d] - boxes[which].offsets[d] + 1);
        break;
      case 2:
        boxes.push_back(boxes[which]);
        break;
      case 3:
        boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(which));
        break;
      default:
        break;
    }
    bool accepted = true;
    try {
      check_tiling(shape, boxes);
    } catch (const CheckpointError&) {
      accepted = false;
    }
    ASSERT_EQ(accepted, covers_once(shape, boxes)) << round;
    tilings += accepted ? 1 : 0;
  }
  EXPECT_GT(tilings, 1000);
  EXPECT_LT(tilings, 3500);
}

TEST(CheckpointParts, ManyBoxesOfManyDimensionsTakeMemoryForWhatTheFileHas) {
  // 3 x 3 x ... boxes of one element each.
  constexpr std::size_t dims = 10;
  constexpr std::size_t boxes = 59'049;
  SafetensorsHeader header;
  header.metadata = {{std::string(shape_key) + "w", list_text(std::vector<std::int64_t>(dims, 3))}};
  for (std::size_t i = 0; i < boxes; ++i) {
    Box box{.offsets = {}, .sizes = std::vector<std::int64_t>(dims, 1)};
    for (auto rest = i; box.offsets.size() < dims; rest /= 3)
      box.offsets.push_back(static_cast<std::int64_t>(rest % 3));
    header.tensors.push_back({.name = part_name("w", box),
                              .dtype = "U8",
                              .shape = std::vector<std::uint64_t>(dims, 1),
                              .begin = i,
                              .end = i + 1});
  }
  const auto judge = [&] {
    bytes_asked_for = 0;
    PartCatalog catalog;
    catalog.take_parts(0, header);
    catalog.check();
  };
  const auto begin = std::clock();  // of this process alone
  EXPECT_NO_THROW(judge());
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 10) << "comparing all pairs took a minute";
  EXPECT_LT(bytes_asked_for, 8192 * boxes);
  header.tensors[1] = header.tensors[0];
  EXPECT_ERROR(CheckpointError, judge(), "its parts overlap: some elements are there twice");
  EXPECT_LT(bytes_asked_for, 8192 * boxes);
}

TEST(CheckpointParts, NamesSayWhichBoxTheyAre) {
  const Box box{.offsets = {0, 8}, .sizes = {4, 8}};
  EXPECT_EQ(part_name("model.weight", box), "model.weight[0:4,8:16]");
  EXPECT_EQ(part_name("scale", {}), "scale[]");
  const auto parsed = parse_part_name("a[0].weight[0:4,8:16]");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->tensor, "a[0].weight");
  EXPECT_EQ(parsed->box, box);
  EXPECT_EQ(parse_part_name("scale[]")->box, Box());
  for (const char* wrong : {"weight", "weight]", "w[0:4", "w[4]", "w[0:4,]", "w[,0:4]", "w[4:0]", "w[-1:4]", "w[0:4 ]",
                            "w[0:]", "w[:4]", "w[0:99999999999999999999]", "w[0:4:2]"}) {
    EXPECT_FALSE(parse_part_name(wrong).has_value()) << wrong;
  }
}

struct File {
  std::map<std::string, std::string> metadata{};
  std::vector<TensorInfo> tensors{};
};
TensorInfo part_info(const std::string& name, std::vector<std::uint64_t> shape, const std::string& dtype = "F32") {
  return {.name = name, .dtype = dtype, .shape = std::move(shape)};
}

TEST(CheckpointParts, EveryWayInWhichPartsMakeNoTensorIsNamed) {
  const auto read = [](const std::vector<File>& files) {
    PartCatalog catalog;
    for (std::size_t i = 0; i < files.size(); ++i) {
      catalog.take_parts(i, {.tensors = files[i].tensors, .metadata = files[i].metadata});
    }
    catalog.check();
    return catalog;
  };
  const std::map<std::string, std::string> w{{"cohort.shape.w", "[4,6]"}};
  const File left{w, {part_info("w[0:4,0:2]", {4, 2})}};
  const File right{w, {part_info("w[0:4,2:6]", {4, 4}), part_info("v[0:4]", {4})}};
  const auto good = read({left, right});
  ASSERT_EQ(good.tensors().size(), 1U) << "v has no shape, so it is a tensor like any other";
  EXPECT_EQ(good.tensors().at("w").parts.size(), 2U);
  EXPECT_EQ(good.tensors().at("w").parts[1].file, 1U);

  const auto refused = [&](const std::vector<File>& files, const std::string& why) {
    EXPECT_ERROR(CheckpointError, read(files), why);
    EXPECT_ERROR(CheckpointError, read(files), "the distributed tensor \"w\": ");
  };
  refused({left}, "parts of it are missing: 8 of 24 elements are there");
  refused({left, left, right}, "its parts overlap");
  refused({left, {w, {part_info("w[0:4,1:5]", {4, 4})}}}, "its parts overlap");
  refused({left, {w, {part_info("w[0:4,3:7]", {4, 4})}}}, "[0:4,3:7] lies outside its shape [4, 6]");
  refused({left, {w, {part_info("w[0:4,2:6]", {4, 4}, "F64")}}}, "its parts are of F32 and shape [4, 6], and of F64");
  refused({left, {{{"cohort.shape.w", "[4,7]"}}, right.tensors}}, "and of F32 and shape [4, 7]");
  refused({{w, {part_info("w[0:4,0:2]", {2, 4})}}}, "\"w[0:4,0:2]\" has shape [2, 4]");
  refused({{w, {part_info("w[0:4]", {4})}}}, "and the whole has [4, 6]");
  for (const char* shape : {"[-4,6]", "[4,6", "\"4\"", "[9223372036854775807,9223372036854775807]", "[4.0,6]"}) {
    refused({{{{"cohort.shape.w", shape}}, left.tensors}}, "its shape is");
  }
  // A claim of 2^62 elements, of which one is there, takes no memory.
  largest_block = 0;
  refused({{{{"cohort.shape.w", "[2147483648,2147483648]"}}, {part_info("w[0:1,0:1]", {1, 1})}}}, "are missing");
  EXPECT_LT(largest_block, small);
}

TEST(CheckpointParts, EachBoxIsWrittenByOneOfItsHolders) {
  const auto tensor = [](std::vector<Box> boxes) {
    return HeldTensor{.dtype = "Float", .element_bytes = 4, .shape = {4}, .boxes = std::move(boxes)};
  };
  const Box low{.offsets = {0}, .sizes = {2}};
  const Box high{.offsets = {2}, .sizes = {2}};
  const std::vector<HeldTensors> all{
      {{"a", tensor({low})}, {"b", tensor({low})}, {"c", tensor({low, high})}},
      {{"a", tensor({high})}, {"b", tensor({high})}, {"c", tensor({low, high})}},
      {{"a", tensor({low})}, {"b", tensor({low})}, {"c", tensor({low, high})}},
      {{"a", tensor({high})}, {"b", tensor({high})}, {"c", tensor({})}},
  };
  check_held(all);
  std::map<std::string, std::vector<Box>> written;
  for (int rank = 0; rank < 4; ++rank) {
    std::size_t count = 0;
    for (const auto& [name, boxes] : boxes_to_write(all, rank)) {
      for (const auto& box : boxes) {
        const auto& held = all[static_cast<std::size_t>(rank)].at(name).boxes;
        EXPECT_NE(std::find(held.begin(), held.end(), box), held.end());
        written[name].push_back(box);
        ++count;
      }
    }
    EXPECT_GE(count, 1U) << rank;
    EXPECT_LE(count, 2U) << rank;
  }
  for (const auto& [name, boxes] : written) EXPECT_NO_THROW(check_tiling({4}, boxes)) << name;
  EXPECT_EQ(written.size(), 3U);
  const auto again = held_from_text(held_to_text(all[0]));
  EXPECT_EQ(held_to_text(again), held_to_text(all[0]));
  EXPECT_EQ(again.at("c").boxes, all[0].at("c").boxes);
  for (const char* wrong : {"", "[]1", "{\"a\":1}", "{\"a\":{\"dtype\":1}}"}) {
    EXPECT_ERROR(CheckpointError, held_from_text(wrong), "is malformed");
  }
}

TEST(CheckpointValues, KeepTheirBitsAndTheirTypes) {
  for (const double value : {0.0, -0.0, 1.0, 0.1, 1e300, -1e-300, 5e-324, 12345678901234567.0}) {
    const auto back = text_to_double(double_text(value));
    ASSERT_TRUE(back.has_value()) << double_text(value);
    EXPECT_EQ(std::memcmp(&*back, &value, sizeof value), 0) << double_text(value);
    EXPECT_FALSE(text_to_integer(double_text(value)).has_value()) << double_text(value);
  }
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(text_to_double(double_text(infinity)), infinity);
  EXPECT_EQ(text_to_double(double_text(-infinity)), -infinity);
  EXPECT_TRUE(std::isnan(text_to_double(double_text(std::nan(""))).value()));
  EXPECT_EQ(text_to_integer(integer_text(std::numeric_limits<std::int64_t>::min())),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(text_to_unsigned(unsigned_text(~std::uint64_t{0})), ~std::uint64_t{0});
  EXPECT_FALSE(text_to_double("1").has_value());
  EXPECT_FALSE(text_to_unsigned("-1").has_value());
  EXPECT_FALSE(text_to_integer("1 ").has_value());
  EXPECT_FALSE(text_to_integer("").has_value());
  EXPECT_EQ(text_to_bool("true"), true);
  EXPECT_FALSE(text_to_bool("1").has_value());
  for (const std::string text : {"", "a\"b\\c\n\t", "\xc3\xa9", "null"}) {
    EXPECT_EQ(text_to_string(string_text(text)), text);
  }
  EXPECT_FALSE(text_to_string("text").has_value());
  EXPECT_FALSE(text_to_string("\"text").has_value());
  EXPECT_FALSE(text_to_string("\"a\" \"b\"").has_value());
  EXPECT_ERROR(CheckpointError, string_text("\xff"), "not UTF-8");
  for (const std::vector<std::int64_t>& list : {std::vector<std::int64_t>{}, {1}, {-1, 0, 1LL << 60}}) {
    EXPECT_EQ(text_to_list(list_text(list)), list);
  }
  for (const auto* const text : {"", "[", "[1,]", "[,]", "[1,,2]", "1", "[1.0]"}) {
    EXPECT_FALSE(text_to_list(text).has_value()) << text;
  }
}

TEST(CheckpointValues, ChecksumIsCrc64) {
  Crc64 crc;
  crc.add("123456789", 9);
  EXPECT_EQ(crc.value(), 0x995DC9BBDF1939FAU);  // the check value of CRC-64/XZ
  Crc64 parts;
  parts.add("1", 1);
  parts.add("23456789", 8);
  EXPECT_EQ(parts.value(), crc.value());
}

}  // namespace
}  // namespace cohort::test
