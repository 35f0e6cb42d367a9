#include "server/http/http_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "server/http/connection.h"
#include "server/http/http_error.h"
#include "server/http/route.h"
#include "server/http/routes/completion_routes.h"
#include "server/http/routes/model_routes.h"
#include "server/http/routes/probe_routes.h"

namespace taopd {
namespace {

using httplib::Request;
using httplib::Response;

constexpr int kNumThreads = 128;
// Answers before the body is read; what is left of it must not be taken for a next request.
httplib::Server::HandlerResponse RefuseUnread(const HttpError& error, Response& response) {
  SendError(error, response);
  response.set_header("Connection", "close");
  CurrentConnection()->CloseAfterResponse();
  return httplib::Server::HandlerResponse::Handled;
}

bool IsJsonContentType(std::string type) {
  for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  type = type.substr(0, type.find(';'));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  return type == "application/json" || type.ends_with("+json");
}

// Framing that two readers could understand differently, and bodies that must not be read.
// cpp-httplib 0.11 itself looks at the first header of a name only.
std::optional<HttpError> CheckFraming(const Request& request, size_t max_body_bytes) {
  const size_t num_lengths = request.get_header_value_count("Content-Length");
  const size_t num_encodings = request.get_header_value_count("Transfer-Encoding");
  if (num_lengths + num_encodings > 1) {
    return BadRequest("more than one Content-Length or Transfer-Encoding header");
  }
  if (num_encodings == 1 && request.get_header_value("Transfer-Encoding") != "chunked") {
    return BadRequest("Transfer-Encoding must be chunked");
  }
  uint64_t length = 0;
  if (num_lengths == 1) {
    const std::string text = request.get_header_value("Content-Length");
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    if (error != std::errc() || end != text.data() + text.size()) {
      return BadRequest("Content-Length is not a number");
    }
  }
  if (length > max_body_bytes) {
    return HttpError{413, "PayloadTooLargeError", std::nullopt,
                     Concat("the body has ", length, " bytes, the limit is ", max_body_bytes)};
  }
  const bool has_body = length > 0 || num_encodings == 1;
  if (request.method != "POST") {
    if (request.method != "GET" && request.method != "HEAD") {
      return HttpError{405, "MethodNotAllowedError", std::nullopt, "Method Not Allowed"};
    }
    if (has_body) return BadRequest(Concat("a ", request.method, " request must have no body"));
    return std::nullopt;
  }
  // cpp-httplib would read until the peer closes.
  if (num_lengths + num_encodings == 0) {
    return HttpError{411, "LengthRequiredError", std::nullopt, "Content-Length is missing"};
  }
  if (!has_body) return std::nullopt;
  const std::string encoding = request.get_header_value("Content-Encoding");
  if (!encoding.empty() && encoding != "identity") {
    return HttpError{415, "UnsupportedMediaTypeError", std::nullopt,
                     "Content-Encoding is not supported"};
  }
  if (!IsJsonContentType(request.get_header_value("Content-Type"))) {
    return HttpError{415, "UnsupportedMediaTypeError", std::nullopt,
                     "Unsupported Media Type: Only 'application/json' is allowed"};
  }
  return std::nullopt;
}

Routes MakeRoutes(ServingState* state, ServerMetrics* metrics) {
  Routes routes;
  for (Routes& group :
       std::array{ProbeRoutes(state, metrics), ModelRoutes(state), CompletionRoutes(state)}) {
    std::move(group.begin(), group.end(), std::back_inserter(routes));
  }
  return routes;
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(ServingState* state, ServerMetrics* metrics, std::function<void()> on_failure)
      : state_(state),
        metrics_(metrics),
        on_failure_(std::move(on_failure)),
        routes_(MakeRoutes(state, metrics)),
        server_(limits_, kNumThreads) {
    AddRoutes();
    AddPolicies();
  }

  ~HttpServerImpl() override { Shutdown(absl::Now()); }

  absl::Status Start(const std::string& host, int port) {
    errno = 0;
    port_ = server_.Bind(host, port);
    if (port_ <= 0) {
      const std::string reason = errno != 0 ? std::strerror(errno) : "is the address right?";
      return Unavailable("port ", port, " on ", host, " cannot be listened on: ", reason);
    }
    thread_ = std::thread([this] {
      if (!server_.Serve()) on_failure_();
    });
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void Shutdown(absl::Time deadline) override {
    if (!thread_.joinable()) return;
    server_.Stop(deadline);
    thread_.join();
  }

 private:
  void AddRoutes() {
    for (const Route& route : routes_) {
      const auto handle = [&route](const Request& request, Response& response) {
        Connection* connection = CurrentConnection();
        HttpCall call = {.request = request,
                         .response = response,
                         .client = request.remote_addr,
                         .is_gone = [connection] { return connection->PeerClosed(); },
                         .hold_memory =
                             [connection](ByteBudget::Reservation memory) {
                               connection->HoldMemory(std::move(memory));
                             }};
        response.status = 200;
        route.handle(call);
      };
      if (route.method == "GET") server_.Get(route.path, handle);
      if (route.method == "POST") server_.Post(route.path, handle);
    }
  }

  bool IsKnownPath(const std::string& path) const {
    return std::any_of(routes_.begin(), routes_.end(),
                       [&](const Route& route) { return route.path == path; });
  }

  // "POST /v1/completions" for known routes: a client must not be able to make new metric series.
  std::string MethodLabel(const Request& request) const {
    for (const Route& route : routes_) {
      if (route.method == request.method && route.path == request.path) {
        return Concat(route.method, " ", route.path);
      }
    }
    return "other";
  }

  void AddPolicies() {
    server_.set_pre_routing_handler([this](const Request& request, Response& response) {
      if (const auto error = CheckFraming(request, limits_.max_body_bytes))
        return RefuseUnread(*error, response);
      if (request.method == "POST") {
        const bool is_chunked = request.has_header("Transfer-Encoding");
        ByteBudget::Reservation memory = state_->message_budget().TryReserve(
            is_chunked
                ? static_cast<int64_t>(limits_.max_body_bytes)
                : static_cast<int64_t>(request.get_header_value<uint64_t>("Content-Length")));
        if (!memory) {
          return RefuseUnread(
              FromStatus(ResourceExhausted("too many large requests at once; try again later")),
              response);
        }
        CurrentConnection()->HoldMemory(std::move(memory));
      }
      return httplib::Server::HandlerResponse::Unhandled;
    });
    // Called for every status of 400 and more; answers that have a body keep it.
    server_.set_error_handler(httplib::Server::Handler([this](const Request& request,
                                                              Response& response) {
      if (!response.body.empty()) return;
      if (response.status == 404 && IsKnownPath(request.path)) {
        response.status = 405;
        SendJson("{\"detail\":\"Method Not Allowed\"}", response);
      } else if (response.status == 404) {
        SendJson("{\"detail\":\"Not Found\"}", response);
      } else {
        SendError({response.status, "Bad Request", std::nullopt, "the request could not be read"},
                  response);
      }
    }));
    server_.set_exception_handler(
        [](const Request& request, Response& response, std::exception_ptr exception) {
          std::string what = "unknown";
          try {
            std::rethrow_exception(exception);
          } catch (const std::exception& error) {
            what = error.what();
          } catch (...) {
          }
          LogError("request failed",
                   {{"method", request.method}, {"path", request.path}, {"what", what}});
          SendError({500, "InternalServerError", std::nullopt, "internal error"}, response);
        });
    // Just before the answer is sent.
    server_.set_post_routing_handler([this](const Request& request, Response& response) {
      Connection* connection = CurrentConnection();
      const bool says_close = response.get_header_value("Connection") == "close";
      if (says_close || server_.has_waiting_connections()) {
        if (!says_close) response.set_header("Connection", "close");
        connection->EndAfterResponse();
      }
      metrics_->RecordRequest(MethodLabel(request), std::to_string(response.status),
                              absl::Now() - connection->begun_at());
    });
  }

  ServingState* const state_;
  ServerMetrics* const metrics_;
  const std::function<void()> on_failure_;
  const ConnectionLimits limits_;
  const Routes routes_;
  BoundedServer server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& host, int port,
                                                               ServingState* state,
                                                               ServerMetrics* metrics,
                                                               std::function<void()> on_failure) {
  auto server = std::make_unique<HttpServerImpl>(state, metrics, std::move(on_failure));
  TAOPD_RETURN_IF_ERROR(server->Start(host, port));
  return server;
}

}  // namespace taopd
