#include "server/security/tls_files.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <array>
#include <string_view>
#include <utility>

namespace taopd {
namespace {

// Returns the error of a file, with the reason that OpenSSL has noted last.
absl::Status UnreadableSetting(const char* setting, const std::string& path) {
  std::array<char, 256> reason{};
  ERR_error_string_n(ERR_peek_last_error(), reason.data(), reason.size());
  ERR_clear_error();
  return InvalidArgument(setting, " ", path, ": ", reason.data());
}

// The protocols' names for SSL_select_next_proto, each preceded by its length. They must outlive
// every context.
constexpr char kHttp11[] = "\x08http/1.1";
constexpr char kHttp2[] = "\x02h2";

int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                   const unsigned char* offered, unsigned int offered_size, void* name) {
  const std::string_view ours(static_cast<const char*>(name));
  unsigned char* out = nullptr;
  if (SSL_select_next_proto(&out, chosen_size, reinterpret_cast<const unsigned char*>(ours.data()),
                            static_cast<unsigned int>(ours.size()), offered,
                            offered_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = out;
  return SSL_TLSEXT_ERR_OK;
}

absl::Status UseFiles(const TlsPaths& paths, SSL_CTX* context) {
  if (SSL_CTX_use_certificate_chain_file(context, paths.certificate.c_str()) != 1) {
    return UnreadableSetting("ssl_certfile", paths.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context, paths.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return UnreadableSetting("ssl_keyfile", paths.key);
  }
  if (paths.client_authorities.empty()) return absl::OkStatus();
  const char* path = paths.client_authorities.c_str();
  if (SSL_CTX_load_verify_locations(context, path, nullptr) != 1) {
    return UnreadableSetting("ssl_ca_certs", paths.client_authorities);
  }
  SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(path));
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // A resumed session must have been verified by this server.
  static constexpr unsigned char kSessions[] = "taopd-teacher";
  SSL_CTX_set_session_id_context(context, kSessions, sizeof(kSessions) - 1);
  return absl::OkStatus();
}

}  // namespace

absl::Status TlsFiles::Reload() {
  if (!paths_.enabled()) return absl::OkStatus();
  {
    // Taken before the files are read, because they may change meanwhile.
    const std::string stamp = Stamp();
    absl::MutexLock lock(&mutex_);
    stamp_ = stamp;
  }
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  if (context == nullptr) return Internal("OpenSSL cannot make a TLS context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                         SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context.get(), &ChooseProtocol,
                             const_cast<char*>(protocol_ == Protocol::kHttp2 ? kHttp2 : kHttp11));
  // A key with a passphrase must fail instead of asking on the terminal.
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return 0; });
  TAOPD_RETURN_IF_ERROR(UseFiles(paths_, context.get()));
  absl::MutexLock lock(&mutex_);
  context_ = std::move(context);
  return absl::OkStatus();
}

absl::Status TlsFiles::ReloadIfChanged() {
  const std::string stamp = Stamp();
  {
    absl::MutexLock lock(&mutex_);
    if (stamp == stamp_) return absl::OkStatus();
  }
  return Reload();
}

std::string TlsFiles::Stamp() const {
  std::string stamp;
  for (const std::string& path : {paths_.certificate, paths_.key, paths_.client_authorities}) {
    struct stat file {};
    if (::stat(path.c_str(), &file) != 0) file = {};
    stamp += Concat(file.st_ino, ":", file.st_size, ":", file.st_mtim.tv_sec, ".",
                    file.st_mtim.tv_nsec, " ");
  }
  return stamp;
}

}  // namespace taopd
