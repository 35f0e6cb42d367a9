#include "tests/bench/teacher/wire_counter.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "common/base/check.h"

namespace taopd::bench {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Returns false once `from` has ended.
bool Pass(int from, int to, std::vector<char>* buffer, std::atomic<int64_t>* count) {
  const ssize_t got = ::recv(from, buffer->data(), buffer->size(), 0);
  if (got <= 0) return false;
  *count += got;
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t now =
        ::send(to, buffer->data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
    if (now <= 0) return false;
    sent += now;
  }
  return true;
}

}  // namespace

WireCounter::WireCounter(int port) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  TAOPD_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  TAOPD_CHECK(::listen(listener_, 1) == 0);
  TAOPD_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this, port] { Relay(port); });
}

WireCounter::~WireCounter() {
  thread_.join();
  ::close(listener_);
}

void WireCounter::Relay(int server_port) {
  const int client = ::accept(listener_, nullptr, nullptr);
  const int server = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(server_port);
  TAOPD_CHECK(::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  std::vector<char> buffer(1 << 20);
  for (bool open = true; open;) {
    std::array<pollfd, 2> ends = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
    ::poll(ends.data(), ends.size(), -1);
    if (ends[0].revents != 0) open = Pass(client, server, &buffer, &bytes_to_server_);
    if (open && ends[1].revents != 0) open = Pass(server, client, &buffer, &bytes_to_client_);
  }
  ::close(client);
  ::close(server);
}

}  // namespace taopd::bench
