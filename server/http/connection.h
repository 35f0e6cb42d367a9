// One client connection of the HTTP server, with the bounds that cpp-httplib 0.11 lacks:
// - the bytes of a request's head, and of the whole request however it is framed;
// - the time for the head, and for the whole request;
// - the time that a write may take without progress.
// Only the connection's own thread uses a Connection.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>
#include <httplib.h>

#include <array>
#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/serving/byte_budget.h"
#include "server/serving/call_tracker.h"

namespace taopd {

struct ConnectionLimits {
  size_t max_head_bytes = 64 << 10;
  size_t max_body_bytes = 32 << 20;
  absl::Duration idle_timeout = absl::Seconds(5);      // between requests
  absl::Duration head_timeout = absl::Seconds(10);     // from a request's first byte
  absl::Duration request_timeout = absl::Seconds(60);  // head and body
  absl::Duration write_timeout = absl::Seconds(30);    // without progress
};

class Connection final : public httplib::Stream {
 public:
  // While no request has begun, `end_idle` is asked often, with the time waited so far; the wait
  // ends when it returns true. Does not own the socket.
  Connection(socket_t socket, const ConnectionLimits& limits,
             std::function<bool(absl::Duration)> end_idle)
      : socket_(socket), limits_(limits), end_idle_(std::move(end_idle)) {}

  // Waits for a request's first byte. False if none came or the peer has closed.
  bool WaitForRequest();
  // Resets the counts of the last request and starts the clocks.
  void BeginRequest();
  // Marks the present answer as the last one. Its headers must tell the client so.
  void EndAfterResponse() { end_after_response_ = true; }
  bool end_after_response() const { return end_after_response_; }
  // The same for a request whose body was not read or must not be trusted.
  void CloseAfterResponse() { close_after_response_ = true; }
  bool close_after_response() const { return close_after_response_; }
  // Keeps the reservation until the present request is answered.
  void HoldMemory(ByteBudget::Reservation memory) { memory_.push_back(std::move(memory)); }
  void ReleaseMemory() { memory_.clear(); }
  absl::Time begun_at() const { return begun_at_; }  // of the present request
  // Whether the peer has closed its side or is gone. Never waits.
  bool PeerClosed() const;
  // Ends the sending side and discards, for a short while, what still arrives. Closing at once
  // would make the kernel reset the connection because of the unread bytes, and the peer could lose
  // the answer.
  void LingeringClose();

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* ptr, size_t size) override;
  ssize_t write(const char* ptr, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  bool Fill(absl::Time deadline);  // one recv into the empty buffer
  void CountHead(char c);

  const socket_t socket_;
  const ConnectionLimits limits_;
  const std::function<bool(absl::Duration)> end_idle_;

  std::array<char, 16 << 10> buffer_;
  size_t buffer_begin_ = 0;
  size_t buffer_end_ = 0;
  size_t request_bytes_ = 0;  // handed out since BeginRequest
  int line_feeds_ = 0;        // in a row, not counting carriage returns between them
  bool head_ended_ = false;
  bool end_after_response_ = false;
  bool close_after_response_ = false;
  absl::Time begun_at_ = absl::InfinitePast();
  std::vector<ByteBudget::Reservation> memory_;
};

// The connection that the calling thread serves; null on other threads. Handlers need it because
// cpp-httplib gives them only the parsed request.
Connection* CurrentConnection();

// A cpp-httplib server that serves `Connection`s. Its backlog is long enough for a burst of
// clients.
class BoundedServer final : public httplib::Server {
 public:
  BoundedServer(const ConnectionLimits& limits, int num_threads);

  // Binds and starts to queue connections; port 0 lets the system pick one. Returns the port, or
  // -1.
  int Bind(const std::string& host, int port);
  // Serves until Stop. False if it has ended by itself because accepting failed. REQUIRES: Bind.
  bool Serve();
  // Waits until the requests that have begun are answered or `deadline` has passed, then cuts all
  // connections and makes Serve return. REQUIRES: another thread is in Serve or has left it.
  void Stop(absl::Time deadline);
  // Whether connections wait for a thread.
  bool has_waiting_connections() const { return num_waiting_connections_ > 0; }

 private:
  bool process_and_close_socket(socket_t sock) override;

  void ServeConnection(Connection* connection);

  const ConnectionLimits limits_;
  CallTracker tracker_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> serve_ended_{false};
  std::atomic<int> num_waiting_connections_{0};
  absl::Mutex mutex_;
  std::set<socket_t> sockets_ ABSL_GUARDED_BY(mutex_);  // open, so that Stop can cut them
};

}  // namespace taopd
