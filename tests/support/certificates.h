// SPDX-License-Identifier: BSD-3-Clause
//
// Generates valid and invalid certificates.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

namespace cohort::test {

using Key = std::shared_ptr<EVP_PKEY>;
using Certificate = std::shared_ptr<X509>;

struct Identity {
  Certificate certificate;
  Key key;
};

inline void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()), &X509_EXTENSION_free);
  if (!extension || X509_add_ext(certificate, extension.get(), -1) != 1)
    throw std::runtime_error("certificate extension");
}

/// If `issuer` is null, the certificate is self-signed. `names` is a list like "DNS:localhost,IP:127.0.0.1"; empty for
/// an authority.
inline Identity make_identity(const std::string& common_name, const std::string& names, const Identity* issuer,
                              long valid_from = -3600, long valid_for = 3600) {
  const Key key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  const Certificate certificate(X509_new(), &X509_free);
  static long serial = 1;
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), valid_from);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), valid_for);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0);
  auto* const issuing = issuer == nullptr ? certificate.get() : issuer->certificate.get();
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuing));
  add_extension(certificate.get(), issuing, NID_basic_constraints, names.empty() ? "critical,CA:TRUE" : "CA:FALSE");
  if (!names.empty()) add_extension(certificate.get(), issuing, NID_subject_alt_name, names);
  if (X509_sign(certificate.get(), issuer == nullptr ? key.get() : issuer->key.get(), EVP_sha256()) == 0) {
    throw std::runtime_error("certificate signature");
  }
  return {certificate, key};
}

inline void write_pem(const Identity& identity, const std::string& certificate_path, const std::string& key_path) {
  const auto open = [](const std::string& path) {
    return std::shared_ptr<FILE>(std::fopen(path.c_str(), "w"), [](FILE* file) { std::fclose(file); });
  };
  const auto certificate = open(certificate_path);
  PEM_write_X509(certificate.get(), identity.certificate.get());
  const auto key = open(key_path);
  PEM_write_PrivateKey(key.get(), identity.key.get(), nullptr, nullptr, 0, nullptr, nullptr);
}

}  // namespace cohort::test
