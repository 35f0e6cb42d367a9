// One client's connection: relays bytes between its socket, plain or through TLS, and the socket
// that the gRPC library reads, through a FrameGuard. One thread drives it by events; it never
// waits. It holds about one RelayBuffer in each direction: a side that sends more is not read.
#pragma once

#include <absl/time/time.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"
#include "server/grpc/guard/frame_guard.h"
#include "server/security/transport.h"

namespace taopd {

// Holds the bytes of one read. All connections of a thread share one.
using RelayBuffer = std::array<char, 64 << 10>;

class GuardedConnection {
 public:
  // Gives the connection to gRPC and returns the guard's nonblocking end of a pair of sockets, or
  // -1 if that fails. Called once the client has sent HTTP/2's preface.
  using Connect = std::function<int()>;
  // Called with the reason if the guard ends the connection.
  using OnRefusal = FrameGuard::OnRefusal;

  // Takes ownership of the socket. If `tls` is null, the connection is plain. Everything else must
  // outlive the object.
  GuardedConnection(int fd, SSL_CTX* tls, FrameGuard guard, Connect connect, OnRefusal on_refusal,
                    RelayBuffer* buffer)
      : transport_(fd, tls),
        guard_(std::move(guard)),
        connect_(std::move(connect)),
        on_refusal_(std::move(on_refusal)),
        buffer_(buffer),
        state_(tls == nullptr ? State::kOpen : State::kHandshake) {}

  // Does all work that is possible without waiting.
  void Run(absl::Time now);
  // Enforces the time limits. Call it several times per second.
  void CheckDeadlines(absl::Time now);
  // Ends the connection immediately unless gRPC has it.
  void CloseUnlessConnected() {
    if (server_fd() < 0) Close();
  }

  int client_fd() const { return transport_.fd(); }
  int server_fd() const { return server_fd_.get(); }  // -1: none yet, or no longer
  // Return the events, EPOLLIN and EPOLLOUT, for which Run waits.
  uint32_t client_waits_for() const;
  uint32_t server_waits_for() const;
  // Returns whether Run has work that no event announces.
  bool wants_run() const { return wants_run_; }
  bool is_closed() const { return state_ == State::kClosed; }

 private:
  enum class State {
    kHandshake,  // TLS handshake
    kOpen,
    kEnding,     // gRPC's end is closed; its remaining bytes are sent
    kLingering,  // all is sent; incoming bytes are discarded for a while, since an immediate close
                 // would reset the connection, and the client could lose the last frames
    kClosed,
  };

  void Handshake();
  // Return false if nothing more can be done for now.
  bool PassToServer(absl::Time now);
  bool PassToClient(absl::Time now);
  bool FlushToServer();
  bool FlushToClient();
  void End(const absl::Status& why, absl::Time now);
  void BeginEnding(absl::Time now);
  void CloseServer();
  void Close();

  Transport transport_;
  FileDescriptor server_fd_;
  std::optional<FrameGuard> guard_;  // none once gRPC's end is closed
  const Connect connect_;
  const OnRefusal on_refusal_;
  RelayBuffer* const buffer_;

  State state_;
  bool handshake_writes_ = false;
  bool wants_run_ = false;
  std::string to_server_, to_client_;
  absl::Time ends_at_ = absl::InfiniteFuture();  // end of kEnding and kLingering
};

}  // namespace taopd
