// SPDX-License-Identifier: BSD-3-Clause
#include "torch/checkpoint/seal.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <array>
#include <cstring>

namespace cohort {

namespace {

constexpr std::string_view key_label = "cohort checkpoint";

void require_openssl(bool ok) {
  if (!ok) throw Error("HMAC-SHA256 failed");
}

}  // namespace

struct CheckpointHmac::Context {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { ::EVP_MD_CTX_free(context); }
    void operator()(EVP_PKEY* key) const { ::EVP_PKEY_free(key); }
  };

  Context(const std::uint8_t* key_bytes, std::size_t size)
      : key(::EVP_PKEY_new_raw_private_key(EVP_PKEY_HMAC, nullptr, key_bytes, size)), digest(::EVP_MD_CTX_new()) {
    require_openssl(key != nullptr && digest != nullptr);
    require_openssl(::EVP_DigestSignInit(digest.get(), nullptr, EVP_sha256(), nullptr, key.get()) == 1);
  }
  void add(const void* data, std::size_t bytes) {
    require_openssl(::EVP_DigestSignUpdate(digest.get(), data, bytes) == 1);
  }
  std::array<std::uint8_t, hmac_bytes> finish() {
    std::array<std::uint8_t, hmac_bytes> result{};
    std::size_t size = result.size();
    require_openssl(::EVP_DigestSignFinal(digest.get(), result.data(), &size) == 1 && size == result.size());
    return result;
  }

  std::unique_ptr<EVP_PKEY, Free> key;
  std::unique_ptr<EVP_MD_CTX, Free> digest;
};

CheckpointHmac::CheckpointHmac(const Secret& secret) {
  Context derivation(secret.bytes().data(), secret.bytes().size());
  derivation.add(key_label.data(), key_label.size());
  auto key = derivation.finish();
  context_ = std::make_unique<Context>(key.data(), key.size());
  ::OPENSSL_cleanse(key.data(), key.size());
}

CheckpointHmac::~CheckpointHmac() = default;

void CheckpointHmac::add(const void* data, std::size_t bytes) {
  context_->add(data, bytes);
}

std::string CheckpointHmac::finish() {
  const auto result = context_->finish();
  return {reinterpret_cast<const char*>(result.data()), result.size()};
}

bool CheckpointHmac::finish_as(std::string_view expected) {
  const auto result = finish();
  return expected.size() == result.size() && ::CRYPTO_memcmp(expected.data(), result.data(), result.size()) == 0;
}

std::string serial_proof(std::uint64_t serial, const Secret& secret) {
  CheckpointHmac hmac(secret);
  const auto text = fmt::format("cohort.serial {}", serial);
  hmac.add(text.data(), text.size());
  std::string proof;
  for (const char byte : hmac.finish()) proof += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return proof;
}

bool is_serial_proof(std::string_view proof, std::uint64_t serial, const Secret& secret) {
  const auto expected = serial_proof(serial, secret);
  return proof.size() == expected.size() && ::CRYPTO_memcmp(proof.data(), expected.data(), proof.size()) == 0;
}

std::string crc_text(std::uint64_t crc) {
  std::string bytes(sizeof crc, '\0');
  std::memcpy(bytes.data(), &crc, sizeof crc);
  return bytes;
}

std::uint64_t crc_number(std::string_view text) {
  std::uint64_t crc = 0;
  text.copy(reinterpret_cast<char*>(&crc), sizeof crc);
  return crc;
}

std::string Seal::finish() {
  auto bytes = crc_text(crc_.value());
  if (hmac_ == nullptr) return bytes;
  hmac_->add(bytes.data(), bytes.size());
  return bytes + hmac_->finish();
}

}  // namespace cohort
