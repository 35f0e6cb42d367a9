#include "trainer/control/status_page.h"

#include <absl/synchronization/notification.h>
#include <httplib.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

namespace taopd {
namespace {

constexpr size_t kNumThreads = 16;  // slow clients hold one each, for a few seconds

class HttpStatusPages final : public StatusPages {
 public:
  HttpStatusPages(const RunState* state, std::function<std::string()> prometheus_text)
      : state_(state), prometheus_text_(std::move(prometheus_text)) {
    // The library's default sets SO_REUSEPORT, with which a second trainer on the port would start
    // and take a share of the requests.
    server_.set_socket_options([](int socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server_.new_task_queue = [] { return new httplib::ThreadPool(kNumThreads); };
    server_.set_payload_max_length(1024);
    server_.set_read_timeout(std::chrono::seconds(2));
    server_.set_write_timeout(std::chrono::seconds(5));
    server_.set_keep_alive_timeout(2);
    server_.set_keep_alive_max_count(100);
    server_.set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          response.status = 500;
          response.set_content("internal error\n", "text/plain");
        });
    server_.Get("/status", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(StatusJson(state_->status()) + "\n", "application/json");
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(prometheus_text_ ? prometheus_text_() : std::string(),
                           "text/plain; version=0.0.4; charset=utf-8");
    });
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", "text/plain");
    });
  }

  ~HttpStatusPages() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen(const std::string& host, int port) {
    errno = 0;
    if (port == 0) {
      port_ = server_.bind_to_any_port(host);
    } else {
      port_ = server_.bind_to_port(host, port) ? port : -1;
    }
    if (port_ <= 0) {
      return Unavailable("cannot listen on ", host, ":", port, " for HTTP: ",
                         errno != 0 ? std::strerror(errno) : "the host has no such address");
    }
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      has_ended_.Notify();
    });
    // stop() does nothing before the loop runs, and the library has no call that waits for it.
    while (!server_.is_running() && !has_ended_.HasBeenNotified()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  const RunState* const state_;
  const std::function<std::string()> prometheus_text_;
  httplib::Server server_;
  int port_ = -1;
  absl::Notification has_ended_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StatusPages>> StatusPages::Start(
    const std::string& host, int port, const RunState* state,
    std::function<std::string()> prometheus_text) {
  auto pages = std::make_unique<HttpStatusPages>(state, std::move(prometheus_text));
  TAOPD_RETURN_IF_ERROR(pages->Listen(host, port));
  return pages;
}

std::string StatusJson(const RunStatus& status) {
  using Json = nlohmann::ordered_json;  // it writes numbers that are not finite as null
  Json metrics = Json::object();
  for (const auto& [name, value] : status.metrics) metrics[name] = value;
  const Json json = {{"run_name", status.run_name},
                     {"phase", TrainerPhaseName(status.phase)},
                     {"step", status.step},
                     {"total_steps", status.total_steps},
                     {"metrics", std::move(metrics)},
                     {"last_checkpoint", status.last_checkpoint},
                     {"eta_seconds", status.eta_seconds}};
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace taopd
