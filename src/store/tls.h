// SPDX-License-Identifier: BSD-3-Clause
//
// TLS 1.3 with certificates on both sides; nothing older, nothing one-sided.
#pragma once

#include <cohort/store_server.h>

#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace cohort {

struct TlsDeleter {
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  void operator()(SSL* session) const { ::SSL_free(session); }
};
using TlsContext = std::unique_ptr<SSL_CTX, TlsDeleter>;
using TlsSession = std::unique_ptr<SSL, TlsDeleter>;

enum class TlsRole : std::uint8_t { client, server };

/// ValueError naming the file that cannot be read or does not fit.
TlsContext make_tls_context(const TlsOptions& options, TlsRole role);

/// A client's session that will accept the server's certificate only under `name` (a host name or an address).
TlsSession make_tls_client(SSL_CTX* context, const std::string& name);

/// The newest entry of OpenSSL's error queue, or the verification result of `session`, in words.
std::string tls_reason(const SSL* session);

}  // namespace cohort
