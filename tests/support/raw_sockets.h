// Both ends of a connection on this machine, for tests that say each byte.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/base/file_descriptor.h"

namespace taopd::testing {

// A client that sends exactly what it is told, and reads whatever comes.
class RawClient {
 public:
  // Connects to the port from the address `from`, one of 127.0.0.0/8.
  explicit RawClient(int port, const char* from = "127.0.0.1")
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    constexpr int timeout_s = 20;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &address.sin_addr);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval timeout = {timeout_s, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  }
  int fd() const { return socket_.get(); }
  // Returns false if the server has closed the connection.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Reads until the server closes. Sets *reset if that does not happen in good order and in time.
  std::string ReadAll(bool* reset = nullptr) {
    std::string all;
    char buffer[4096];
    ssize_t got;
    while ((got = ::recv(socket_.get(), buffer, sizeof(buffer), 0)) > 0)
      all.append(buffer, static_cast<size_t>(got));
    if (reset != nullptr) *reset = got < 0;
    return all;
  }
  // Reads until what has come ends with `end`, or the server closes.
  std::string ReadUntil(std::string_view end) {
    std::string all;
    char c;
    while (!all.ends_with(end) && ::recv(socket_.get(), &c, 1, 0) == 1) all += c;
    return all;
  }
  void Close() { socket_.Close(); }

 private:
  FileDescriptor socket_;
};

// Sends the request on a connection of its own, and reads until the server closes.
inline std::string AskRaw(int port, std::string_view request, const char* from = "127.0.0.1") {
  RawClient client(port, from);
  client.Send(request);
  return client.ReadAll();
}

// Returns connections over which `bytes` were sent, unless the server has closed them.
inline std::vector<RawClient> ConnectMany(int port, int count, std::string_view bytes) {
  std::vector<RawClient> clients;
  for (int i = 0; i < count; ++i) {
    clients.emplace_back(port);
    clients.back().Send(bytes);
  }
  return clients;
}

// A socket that listens on a port that the kernel picks. The system completes connections although
// nobody accepts them.
class RawListener {
 public:
  RawListener() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_.get(), generic, size), 0);
    EXPECT_EQ(::listen(socket_.get(), 64), 0);
    EXPECT_EQ(::getsockname(socket_.get(), generic, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }
  // Waits for a connection. Returns none once EndAccepting was called.
  FileDescriptor Accept() { return FileDescriptor(::accept(socket_.get(), nullptr, nullptr)); }
  void EndAccepting() { ::shutdown(socket_.get(), SHUT_RDWR); }
  void Close() { socket_.Close(); }

 private:
  FileDescriptor socket_;
  int port_ = 0;
};

}  // namespace taopd::testing
