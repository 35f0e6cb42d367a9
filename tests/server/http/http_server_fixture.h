// A server on 127.0.0.1, its client, and an engine that can hold work back.
#pragma once

#include <gtest/gtest.h>
#include <httplib.h>

#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "tests/server/fake_engine.h"
#include "tests/support/raw_sockets.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

class HttpServerFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(server_, HttpServer::Listen("127.0.0.1", 0, &state_, &metrics_,
                                                     [] { FAIL() << "listener lost"; }));
    client_ = std::make_unique<httplib::Client>("127.0.0.1", server_->port());
    client_->set_read_timeout(20);
    client_->set_tcp_nodelay(true);
  }
  void TearDown() override {
    fake_.engine->Drain(absl::Now());
    client_.reset();
    if (server_ != nullptr) server_->Shutdown(absl::Now() + absl::Seconds(10));
  }
  void Ready() { state_.SetReady(fake_.model); }
  httplib::Result Complete(const std::string& body) {
    return client_->Post("/v1/completions", body, "application/json");
  }
  std::string Raw(const std::string& request) { return AskRaw(server_->port(), request); }

  FakeModel fake_ = MakeFakeModel();
  ServingState state_{Clock::Real(), absl::Seconds(60)};
  ServerMetrics metrics_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<httplib::Client> client_;
};

}  // namespace taopd::testing
