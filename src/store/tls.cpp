// SPDX-License-Identifier: BSD-3-Clause
#include "store/tls.h"

#include <arpa/inet.h>
#include <cohort/error.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <array>

namespace cohort {

std::string tls_reason(const SSL* session) {
  if (session != nullptr) {
    const auto result = ::SSL_get_verify_result(session);
    if (result != X509_V_OK) return ::X509_verify_cert_error_string(result);
  }
  const auto code = ::ERR_peek_last_error();
  ::ERR_clear_error();
  if (code == 0) return "the connection was closed";
  if (const char* const text = ::ERR_reason_error_string(code)) return text;
  return fmt::format("OpenSSL error {:x}", code);
}

std::optional<TlsOptions> tls_options(const Env& env) {
  if (env.tls_ca.empty() && env.tls_cert.empty() && env.tls_key.empty()) return std::nullopt;
  if (env.tls_ca.empty() || env.tls_cert.empty() || env.tls_key.empty()) {
    throw ValueError("TLS needs all of COHORT_TLS_CA, COHORT_TLS_CERT and COHORT_TLS_KEY");
  }
  return TlsOptions{env.tls_ca, env.tls_cert, env.tls_key, env.tls_name};
}

TlsContext make_tls_context(const TlsOptions& options, TlsRole role) {
  TlsContext context(::SSL_CTX_new(role == TlsRole::client ? ::TLS_client_method() : ::TLS_server_method()));
  if (!context) throw Error("TLS: " + tls_reason(nullptr));
  auto* const ctx = context.get();
  ::SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
  // Sessions are not resumed, because a resumed one does not present its certificate again.
  ::SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_num_tickets(ctx, 0);
  ::SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  ::SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (::SSL_CTX_load_verify_locations(ctx, options.ca_file.c_str(), nullptr) != 1) {
    throw ValueError(fmt::format("TLS authority {}: {}", options.ca_file, tls_reason(nullptr)));
  }
  if (::SSL_CTX_use_certificate_chain_file(ctx, options.cert_file.c_str()) != 1) {
    throw ValueError(fmt::format("TLS certificate {}: {}", options.cert_file, tls_reason(nullptr)));
  }
  if (::SSL_CTX_use_PrivateKey_file(ctx, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    throw ValueError(fmt::format("TLS key {}: {}", options.key_file, tls_reason(nullptr)));
  }
  if (::SSL_CTX_check_private_key(ctx) != 1) {
    throw ValueError(fmt::format("TLS key {} does not belong to certificate {}", options.key_file, options.cert_file));
  }
  return context;
}

TlsSession make_tls_client(SSL_CTX* context, const std::string& name) {
  TlsSession session(::SSL_new(context));
  if (!session) throw Error("TLS: " + tls_reason(nullptr));
  std::array<unsigned char, 16> scratch{};
  const bool is_address = ::inet_pton(AF_INET, name.c_str(), scratch.data()) == 1 ||
                          ::inet_pton(AF_INET6, name.c_str(), scratch.data()) == 1;
  const int set = is_address ? ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(session.get()), name.c_str())
                             : ::SSL_set1_host(session.get(), name.c_str());
  if (set != 1) throw ValueError(fmt::format("TLS: \"{}\" is not a name a certificate can carry", name));
  if (!is_address) ::SSL_set_tlsext_host_name(session.get(), name.c_str());
  return session;
}

}  // namespace cohort
