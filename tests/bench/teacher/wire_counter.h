// A relay on 127.0.0.1 that counts the bytes of one TCP connection in both directions. They include
// the frames and headers of the protocol, but not those of TCP and IP.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "tests/support/raw_sockets.h"

namespace taopd::bench {

class WireCounter {
 public:
  // Relays one connection to this port.
  explicit WireCounter(int port);
  // The client must have closed the connection.
  ~WireCounter();

  int port() const { return listener_.port(); }
  int64_t bytes_to_client() const { return bytes_to_client_; }
  int64_t bytes_to_server() const { return bytes_to_server_; }

 private:
  void Relay(int server_port);

  testing::RawListener listener_;
  std::atomic<int64_t> bytes_to_client_{0};
  std::atomic<int64_t> bytes_to_server_{0};
  std::thread thread_;
};

}  // namespace taopd::bench
