#include "trainer/grpc/tls_pem.h"

#include <tuple>

#include "common/io/file.h"

namespace taopd {

absl::StatusOr<TlsPem> ReadTlsPem(const std::string& ca_path, const std::string& cert_path,
                                  const std::string& key_path) {
  TlsPem tls;
  for (const auto& [name, path, text] : {std::tuple("tls_ca_file", &ca_path, &tls.ca),
                                         std::tuple("tls_cert_file", &cert_path, &tls.cert),
                                         std::tuple("tls_key_file", &key_path, &tls.key)}) {
    if (path->empty()) continue;
    auto content = ReadFileToString(*path, int64_t{16} << 20);
    if (!content.ok()) return InvalidArgument(name, ": ", content.status().message());
    *text = *std::move(content);
  }
  return tls;
}

}  // namespace taopd
