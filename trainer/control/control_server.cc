#include "trainer/control/control_server.h"

#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <httplib.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/io/jsonl.h"
#include "common/wire/bearer.h"
#include "trainer/control/host_names.h"
#include "trainer/control/live_page.h"

namespace taopd {
namespace {

// Returns whether `shown` is the token. Takes the same time for every text of the token's length,
// so that the token cannot be guessed byte by byte.
bool IsToken(std::string_view shown, std::string_view token) {
  if (shown.size() != token.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < token.size(); ++i)
    difference |= static_cast<unsigned char>(shown[i] ^ token[i]);
  return difference == 0;
}

constexpr size_t kNumThreads = 16;                         // slow clients hold one each
constexpr absl::Duration kRequestTime = absl::Seconds(5);  // from a request's first byte to its end

// A connection during one request. It fails when the time is over, because the library bounds only
// the time between two bytes.
class TimedStream final : public httplib::Stream {
 public:
  explicit TimedStream(httplib::Stream* stream) : stream_(*stream) {}
  bool is_readable() const override { return IsInTime() && stream_.is_readable(); }
  bool is_writable() const override { return IsInTime() && stream_.is_writable(); }
  ssize_t read(char* to, size_t size) override { return IsInTime() ? stream_.read(to, size) : -1; }
  ssize_t write(const char* from, size_t size) override {
    return IsInTime() ? stream_.write(from, size) : -1;
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    stream_.get_remote_ip_and_port(ip, port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    stream_.get_local_ip_and_port(ip, port);
  }
  socket_t socket() const override { return stream_.socket(); }

 private:
  bool IsInTime() const { return absl::Now() < end_; }

  httplib::Stream& stream_;
  const absl::Time end_ = absl::Now() + kRequestTime;
};

class TimedServer final : public httplib::Server {
 private:
  bool process_and_close_socket(socket_t socket) override {
    const auto serve = [this](httplib::Stream& connection) {
      bool is_closed = false;
      for (size_t left = keep_alive_max_count_; left > 0 && !is_closed; --left) {
        if (svr_sock_ == INVALID_SOCKET || !connection.is_readable()) break;
        TimedStream stream(&connection);
        if (!process_request(stream, /*close_connection=*/left == 1, is_closed, nullptr)) break;
      }
      return true;
    };
    httplib::detail::process_client_socket(socket, read_timeout_sec_, read_timeout_usec_,
                                           write_timeout_sec_, write_timeout_usec_, serve);
    shutdown(socket, SHUT_RDWR);
    return httplib::detail::close_socket(socket) == 0;
  }
};

class HttpControlServer final : public ControlServer {
 public:
  HttpControlServer(const ControlServerOptions& options, RunControl* control, ControlPages pages)
      : control_(control),
        token_(options.token),
        host_names_(options.host, options.allowed_hosts),
        pages_(std::move(pages)) {
    SetLimits();
    SetRefusals();
    AddPages();
    AddActions();
  }

  ~HttpControlServer() override {
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

  int http_port() const override { return port_; }

 private:
  using Action = std::function<absl::Status()>;

  void SetLimits() {
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
  }

  void SetRefusals() {
    server_.set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          Refuse(500, "internal error", &response);
        });
    // The library refuses unknown paths, malformed requests and long bodies by itself.
    server_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      const std::string reason = response.status == 404   ? "there is no such page or action: "
                                 : response.status == 413 ? "the body is too long: "
                                                          : "the request cannot be read: ";
      Refuse(response.status, Concat(reason, request.method, " ", request.path), &response);
    });
    server_.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          return HandleBeforeBody(request, &response) ? httplib::Server::HandlerResponse::Handled
                                                      : httplib::Server::HandlerResponse::Unhandled;
        });
  }

  void AddPages() {
    server_.Get("/status", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(StatusJson(control_->status()) + "\n", "application/json");
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(pages_.prometheus_text ? pages_.prometheus_text() : std::string(),
                           "text/plain; version=0.0.4; charset=utf-8");
    });
    server_.Get("/healthz", [this](const httplib::Request&, httplib::Response& response) {
      const absl::Status health = pages_.health ? pages_.health() : absl::OkStatus();
      if (!health.ok()) return Refuse(503, std::string(health.message()), &response);
      response.set_content("ok\n", "text/plain");
    });
    server_.Get("/", [this](const httplib::Request&, httplib::Response& response) {
      response.set_header("Content-Security-Policy", LivePageSecurityPolicy());
      response.set_content(LivePage(/*asks_for_token=*/!token_.empty()),
                           "text/html; charset=utf-8");
    });
    server_.Get("/report",
                [this](const httplib::Request&, httplib::Response& r) { SendReport(&r); });
  }

  void AddActions() {
    AddAction("/pause", [this] {
      control_->RequestPause(true);
      return absl::OkStatus();
    });
    AddAction("/resume", [this] {
      control_->RequestPause(false);
      return absl::OkStatus();
    });
    AddAction("/stop", [this] {
      control_->RequestStop(kExitStoppedByUser);
      return absl::OkStatus();
    });
    AddAction("/save", [this] { return control_->RequestSave(); });
  }

  static void Refuse(int status, const std::string& error, httplib::Response* response) {
    response->status = status;
    response->set_content(JsonText({{"error", error}}) + "\n", "application/json");
  }

  // Runs before a body is read. Refuses other hosts, and does what a POST without a body asks for,
  // because the library would wait for the end of a body without a length.
  bool HandleBeforeBody(const httplib::Request& request, httplib::Response* response) {
    const std::string host = request.get_header_value("Host");
    if (request.has_header("Host") && !host_names_.Allows(host, request.local_addr)) {
      response->set_header("Connection", "close");  // a body is not read
      Refuse(421, Concat("this server has no name ", host, "; trainer.allowed_hosts adds names"),
             response);
      return true;
    }
    const auto action = actions_.find(request.path);
    const bool has_body =
        request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
    if (request.method != "POST" || action == actions_.end() || has_body) return false;
    Act(action->second, request, response);
    return true;
  }

  void AddAction(const std::string& path, const Action& action) {
    actions_[path] = action;
    server_.Post(path, [this, action](const httplib::Request& request, httplib::Response& r) {
      Act(action, request, &r);
    });
  }

  void Act(const Action& action, const httplib::Request& request, httplib::Response* response) {
    if (!request.has_header("X-Taopd-Control")) {
      return Refuse(403, "the header X-Taopd-Control is missing, such as X-Taopd-Control: 1",
                    response);
    }
    const std::string authorization = request.get_header_value("Authorization");
    if (!token_.empty() && !IsToken(BearerKeyOf(authorization), token_)) {
      response->set_header("WWW-Authenticate", "Bearer");
      const bool has_other = request.has_header("Authorization");
      return Refuse(401,
                    Concat(has_other ? "Authorization has another token than the run's"
                                     : "the run's token is missing",
                           "; send Authorization: Bearer TOKEN"),
                    response);
    }
    const absl::Status status = action();
    if (!status.ok()) return Refuse(503, std::string(status.message()), response);
    response->status = 202;
    response->set_content("accepted; /status shows when it is done\n", "text/plain; charset=utf-8");
  }

  // Reading and drawing a long run takes a second of a core, so visitors share one report.
  void SendReport(httplib::Response* response) {
    constexpr absl::Duration kMaxAge = absl::Seconds(5);
    absl::MutexLock lock(&report_mutex_);
    if (absl::Now() - report_time_ > kMaxAge) {
      report_ = pages_.report_html ? pages_.report_html()
                                   : absl::StatusOr<std::string>(NotFound("there is no report"));
      report_time_ = absl::Now();
    }
    if (report_.ok()) return response->set_content(*report_, "text/html; charset=utf-8");
    Refuse(503, std::string(report_.status().message()), response);
  }

  RunControl* const control_;
  const std::string token_;
  const HostNames host_names_;
  const ControlPages pages_;
  std::map<std::string, Action> actions_;  // by path
  absl::Mutex report_mutex_;
  absl::Time report_time_ ABSL_GUARDED_BY(report_mutex_) = absl::InfinitePast();
  absl::StatusOr<std::string> report_ ABSL_GUARDED_BY(report_mutex_) = std::string();
  TimedServer server_;
  int port_ = -1;
  absl::Notification has_ended_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const ControlServerOptions& options, RunControl* control, ControlPages pages) {
  if (options.http_port < 0 || options.http_port > 65535)
    return InvalidArgument("http_port ", options.http_port, " is outside [0, 65535]");
  if (options.host.empty()) return InvalidArgument("host is empty");
  auto server = std::make_unique<HttpControlServer>(options, control, std::move(pages));
  TAOPD_RETURN_IF_ERROR(server->Listen(options.host, static_cast<int>(options.http_port)));
  return server;
}

std::string StatusJson(const RunStatus& status) {
  using Json = nlohmann::ordered_json;  // it writes numbers that are not finite as null
  Json metrics = Json::object();
  for (const auto& [name, value] : status.metrics) metrics[name] = value;
  const Json json = {{"run_name", status.run_name},
                     {"phase", NameOf(status.phase)},
                     {"step", status.step},
                     {"total_steps", status.total_steps},
                     {"metrics", std::move(metrics)},
                     {"last_checkpoint", status.last_checkpoint},
                     {"storage_problem", status.storage_problem},
                     {"eta_seconds", status.eta_seconds},
                     {"memory_plan_gb", status.plan_gb},
                     {"teacher",
                      {{"name", status.teacher.name},
                       {"waiting", status.teacher.waiting},
                       {"requests", status.teacher.requests},
                       {"retries", status.teacher.retries},
                       {"failures", status.teacher.failures},
                       {"in_flight", status.teacher.in_flight},
                       {"queued", status.teacher.queued}}}};
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace taopd
