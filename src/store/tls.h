// SPDX-License-Identifier: BSD-3-Clause
//
// TLS 1.3 with certificates on both sides. Older versions and one-sided authentication are not supported.
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

/// Throws a ValueError that names the file if one cannot be read or does not fit the others.
TlsContext make_tls_context(const TlsOptions& options, TlsRole role);

/// A client's session, which accepts the server's certificate only under `name` (a host name or an address).
TlsSession make_tls_client(SSL_CTX* context, const std::string& name);

/// A text for the verification result of `session`, if it failed, or for the newest error in OpenSSL's queue.
std::string tls_reason(const SSL* session);

}  // namespace cohort
