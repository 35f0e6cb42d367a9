// One client's connection: carries bytes between its socket, plain or through TLS, and the socket
// that the gRPC library reads, past a FrameGuard. Driven by one thread through events; never waits.
// It holds at most kChunkBytes in each direction: the side that sends more is not read.
#pragma once

#include <absl/time/time.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "server/grpc/guard/frame_guard.h"
#include "server/security/transport.h"

namespace taopd {

// Memory of the thread that drives the connections.
struct RelayBuffer {
  std::array<char, 64 << 10> read;
};

class GuardedConnection {
 public:
  // Makes the connection known to gRPC and returns the guard's end of a pair of sockets, which does
  // not block; -1 if there is no room. Called once the client has sent HTTP/2's preface.
  using Connect = std::function<int()>;
  // Hears why the guard ends the connection.
  using OnRefusal = FrameGuard::OnRefusal;

  // Takes the socket. `tls` may be null: plain. Everything else must outlive the object.
  GuardedConnection(int fd, SSL_CTX* tls, FrameGuard guard, Connect connect, OnRefusal on_refusal,
                    RelayBuffer* buffer);
  ~GuardedConnection();

  // Does what can be done without waiting.
  void Run(absl::Time now);
  // Ends what takes too long. Call it every fraction of a second.
  void CheckDeadlines(absl::Time now);
  // Ends it at once unless gRPC has it.
  void CloseUnlessConnected();

  int client_fd() const { return transport_.fd(); }
  int server_fd() const { return server_fd_; }  // -1: none yet, or no longer
  // EPOLLIN and EPOLLOUT, as Run needs them.
  uint32_t client_waits_for() const;
  uint32_t server_waits_for() const;
  // Whether Run has something to do without an event.
  bool wants_run() const { return wants_run_; }
  bool is_closed() const { return state_ == State::kClosed; }

 private:
  enum class State {
    kHandshake,  // of TLS
    kOpen,
    kEnding,     // gRPC's end is closed; what it has said is sent
    kLingering,  // all is sent; what still comes is discarded for a while, since closing at once
                 // would reset the connection, and the client could lose the last frames
    kClosed,
  };

  void Handshake();
  // False if nothing more can be done for now.
  bool PassToServer(absl::Time now);
  bool PassToClient(absl::Time now);
  bool FlushToServer();
  bool FlushToClient();
  void End(const absl::Status& why, absl::Time now);
  void BeginEnding(absl::Time now);
  void CloseServer();
  void Close();

  Transport transport_;
  int server_fd_ = -1;
  std::optional<FrameGuard> guard_;  // none once gRPC's end is closed
  const Connect connect_;
  const OnRefusal on_refusal_;
  RelayBuffer* const buffer_;

  State state_;
  bool handshake_writes_ = false;
  bool wants_run_ = false;
  std::string to_server_, to_client_;
  absl::Time ends_at_ = absl::InfiniteFuture();  // of kEnding and kLingering
};

}  // namespace taopd
