// Serves an httplib::Server to a test.
#pragma once

#include <httplib.h>

#include <string>
#include <thread>

#include "common/base/status.h"

namespace taopd::testing {

// Listens on a port of 127.0.0.1 that the kernel picks, until it is destroyed. Make it when the
// server has its routes, and destroy it before what they use.
class HttpListener {
 public:
  // A connection keeps one of the threads while it is open.
  explicit HttpListener(httplib::Server* server, size_t num_threads = 32) : server_(server) {
    server->set_tcp_nodelay(true);  // an answer is two writes: the second would wait for an ACK
    server->new_task_queue = [num_threads] { return new httplib::ThreadPool(num_threads); };
    port_ = server->bind_to_any_port("127.0.0.1");
    thread_ = std::thread([server] { server->listen_after_bind(); });
    while (!server->is_running()) std::this_thread::yield();
  }
  ~HttpListener() {
    server_->stop();
    thread_.join();
  }
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  int port() const { return port_; }
  std::string address() const { return Concat("127.0.0.1:", port_); }

 private:
  httplib::Server* const server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace taopd::testing
