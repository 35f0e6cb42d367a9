// Certificates for tests, made when they are asked for: an authority, a server for localhost and
// 127.0.0.1, and a client.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

namespace taopd::testing {

class Certificate {
 public:
  // Makes a certificate that is valid for an hour and signed by `issuer`, or by itself if null.
  Certificate(const std::string& name, const Certificate* issuer, bool is_authority)
      : key_(EVP_EC_gen("P-256"), &EVP_PKEY_free), x509_(X509_new(), &X509_free) {
    static long serial = 1;
    ASN1_INTEGER_set(X509_get_serialNumber(x509_.get()), serial++);
    X509_set_version(x509_.get(), 2);
    X509_gmtime_adj(X509_getm_notBefore(x509_.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509_.get()), 3600);
    X509_NAME* subject = X509_get_subject_name(x509_.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    const Certificate& signer = issuer == nullptr ? *this : *issuer;
    X509_set_issuer_name(x509_.get(), X509_get_subject_name(signer.x509_.get()));
    X509_set_pubkey(x509_.get(), key_.get());
    Extend(NID_basic_constraints, is_authority ? "critical,CA:TRUE" : "CA:FALSE");
    Extend(NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    EXPECT_GT(X509_sign(x509_.get(), signer.key_.get(), EVP_sha256()), 0);
  }

  // Writes PATH.crt and PATH.key.
  void Write(const std::string& path) const {
    std::FILE* file = std::fopen((path + ".crt").c_str(), "w");
    PEM_write_X509(file, x509_.get());
    std::fclose(file);
    file = std::fopen((path + ".key").c_str(), "w");
    PEM_write_PrivateKey(file, key_.get(), nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
  }

 private:
  void Extend(int nid, const char* value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
    X509_add_ext(x509_.get(), extension, -1);
    X509_EXTENSION_free(extension);
  }

  std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key_;
  std::unique_ptr<X509, void (*)(X509*)> x509_;
};

}  // namespace taopd::testing
