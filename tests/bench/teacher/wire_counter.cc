#include "tests/bench/teacher/wire_counter.h"

#include <poll.h>

#include <array>
#include <vector>

namespace taopd::bench {
namespace {

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

WireCounter::WireCounter(int port) : thread_([this, port] { Relay(port); }) {}

WireCounter::~WireCounter() { thread_.join(); }

void WireCounter::Relay(int server_port) {
  const FileDescriptor client = listener_.Accept();
  const testing::RawClient server(server_port);
  std::vector<char> buffer(1 << 20);
  for (bool open = true; open;) {
    std::array<pollfd, 2> ends = {pollfd{client.get(), POLLIN, 0}, pollfd{server.fd(), POLLIN, 0}};
    ::poll(ends.data(), ends.size(), -1);
    if (ends[0].revents != 0) open = Pass(client.get(), server.fd(), &buffer, &bytes_to_server_);
    if (open && ends[1].revents != 0)
      open = Pass(server.fd(), client.get(), &buffer, &bytes_to_client_);
  }
}

}  // namespace taopd::bench
