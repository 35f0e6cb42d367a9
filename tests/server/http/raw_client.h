// A client that sends exactly what it is told, and reads whatever comes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>

namespace taopd::testing {

class RawClient {
 public:
  // `from`: the client's own address, one of 127.0.0.0/8.
  explicit RawClient(int port, const char* from = "127.0.0.1")
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    constexpr int timeout_s = 20;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &address.sin_addr);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval timeout = {timeout_s, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  }
  RawClient(RawClient&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~RawClient() { Close(); }
  int fd() const { return socket_; }
  // False when the server has closed.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Until the server closes. Sets *reset if it did not do so in good order, or not in time.
  std::string ReadAll(bool* reset = nullptr) {
    std::string all;
    char buffer[4096];
    ssize_t got;
    while ((got = ::recv(socket_, buffer, sizeof(buffer), 0)) > 0)
      all.append(buffer, static_cast<size_t>(got));
    if (reset != nullptr) *reset = got < 0;
    return all;
  }
  // Until the text has come, or the server closes.
  std::string ReadUntil(std::string_view end) {
    std::string all;
    char c;
    while (!all.ends_with(end) && ::recv(socket_, &c, 1, 0) == 1) all += c;
    return all;
  }
  void EndSending() { ::shutdown(socket_, SHUT_WR); }
  void Close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  int socket_;
};

}  // namespace taopd::testing
