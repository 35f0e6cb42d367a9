#include "server/grpc/grpc_acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/net/descriptors.h"

namespace taopd {
namespace {

constexpr int kPauseMs = 50;

}  // namespace

GrpcAcceptor::GrpcAcceptor(Listener listener, std::unique_ptr<Connections> connections)
    : listener_(std::move(listener)),
      connections_(std::move(connections)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TAOPD_CHECK(wake_ >= 0);
  thread_ = std::thread([this] { Loop(); });
}

GrpcAcceptor::~GrpcAcceptor() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));
  thread_.join();
  ::close(wake_);
}

void GrpcAcceptor::Loop() {
  bool paused = false;
  for (;;) {
    std::array<pollfd, 2> entries = {pollfd{wake_, POLLIN, 0},
                                     pollfd{paused ? -1 : listener_.fd(), POLLIN, 0}};
    ::poll(entries.data(), entries.size(), paused ? kPauseMs : -1);
    if (entries[0].revents != 0) return;
    if (!paused && entries[1].revents == 0) continue;
    // The listener stays ready while nothing can be accepted: without a pause, this thread would do
    // nothing else.
    paused = !AcceptAll();
  }
}

bool GrpcAcceptor::AcceptAll() {
  for (;;) {
    AcceptedSocket socket;
    switch (listener_.Accept(&socket)) {
      case Listener::Result::kAccepted:
        break;
      case Listener::Result::kNone:
        return true;
      case Listener::Result::kNoDescriptors:
        return false;
      case Listener::Result::kDead:
        LogError("the gRPC listener is lost", {{"port", listener_.port()}});
        listener_.Close();
        return true;
    }
    if (IsScarce(socket.fd, DescriptorsLeftToHttp())) {
      ::close(socket.fd);
      continue;
    }
    Connections::NewConnectionParameters connection;
    connection.fd = socket.fd;  // gRPC closes it
    connections_->HandleNewConnection(&connection);
  }
}

}  // namespace taopd
