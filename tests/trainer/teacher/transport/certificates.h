// Certificates for tests of TLS, made anew by each test and good for an hour.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace taopd::testing {

struct CertificateAndKey {
  std::string certificate;  // PEM
  std::string key;          // PEM
};

// A certificate for 127.0.0.1. It is signed by its own key, so it is its own authority.
inline CertificateAndKey MakeCertificate() {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> x509(X509_new(), X509_free);
  X509_set_version(x509.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x509.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(x509.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x509.get()), 3600);
  X509_set_pubkey(x509.get(), key.get());
  X509_NAME* name = X509_get_subject_name(x509.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("teacher"), -1, -1, 0);
  X509_set_issuer_name(x509.get(), name);
  for (const auto& [id, value] : {std::pair(NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost"),
                                  std::pair(NID_basic_constraints, "critical,CA:TRUE")}) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
    X509_add_ext(x509.get(), extension, -1);
    X509_EXTENSION_free(extension);
  }
  EXPECT_GT(X509_sign(x509.get(), key.get(), EVP_sha256()), 0);

  const auto text_of = [](auto write) {
    const std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new(BIO_s_mem()), BIO_free);
    write(bio.get());
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio.get(), &data);
    return std::string(data, static_cast<size_t>(size));
  };
  CertificateAndKey made;
  made.certificate = text_of([&](BIO* bio) { PEM_write_bio_X509(bio, x509.get()); });
  made.key = text_of([&](BIO* bio) {
    PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return made;
}

}  // namespace taopd::testing
