#include "server/http/http_server.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/metrics/prometheus.h"
#include "server/http/completion.h"
#include "server/http/connection.h"
#include "server/http/http_error.h"
#include "server/options/version.h"

namespace taopd {
namespace {

using httplib::Request;
using httplib::Response;

constexpr int kNumThreads = 128;
constexpr char kJson[] = "application/json";
const std::set<std::string> kGetPaths = {"/health", "/ping", "/version", "/v1/models", "/metrics"};
const std::set<std::string> kPostPaths = {"/v1/completions", "/ping"};

void SendError(const HttpError& error, Response& response) {
  response.status = error.status;
  if (error.status == 429) response.set_header("Retry-After", "1");
  if (error.status == 503) response.set_header("Connection", "close");
  response.set_content(error.Json(), kJson);
}

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
  return type == kJson || type.ends_with("+json");
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

// "POST /v1/completions" for known routes: a client must not be able to make new metric series.
std::string MethodLabel(const Request& request) {
  const bool known = (request.method == "GET" && kGetPaths.contains(request.path)) ||
                     (request.method == "POST" && kPostPaths.contains(request.path));
  return known ? request.method + " " + request.path : "other";
}

std::string ModelsJson(const ServedModel& model) {
  nlohmann::ordered_json permission;
  permission["id"] = "modelperm-" + model.revision.substr(0, 32);
  permission["object"] = "model_permission";
  permission["created"] = model.created_unix_s;
  permission["allow_create_engine"] = false;
  permission["allow_sampling"] = true;
  permission["allow_logprobs"] = true;
  permission["allow_search_indices"] = false;
  permission["allow_view"] = true;
  permission["allow_fine_tuning"] = false;
  permission["organization"] = "*";
  permission["group"] = nullptr;
  permission["is_blocking"] = false;
  nlohmann::ordered_json entry;
  entry["id"] = model.name;
  entry["object"] = "model";
  entry["created"] = model.created_unix_s;
  entry["owned_by"] = "taopd";
  entry["root"] = model.root;
  entry["parent"] = nullptr;
  entry["max_model_len"] = model.limits.max_model_len;
  entry["permission"] = nlohmann::ordered_json::array({permission});
  nlohmann::ordered_json body;
  body["object"] = "list";
  body["data"] = nlohmann::ordered_json::array({entry});
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(ServingState* state, ServerMetrics* metrics, std::function<void()> on_failure)
      : state_(state),
        metrics_(metrics),
        on_failure_(std::move(on_failure)),
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
    const auto health = [this](const Request&, Response& response) {
      const absl::Status status = state_->Health();
      if (!status.ok()) return SendError(FromStatus(status), response);
      response.status = 200;
    };
    server_.Get("/health", health);
    server_.Get("/ping", health);
    server_.Post("/ping", health);
    server_.Get("/version", [](const Request&, Response& response) {
      nlohmann::json body;
      body["version"] = kTeacherVersion;
      response.set_content(body.dump(), kJson);
    });
    server_.Get("/metrics", [this](const Request&, Response& response) {
      response.set_content(metrics_->Text(*state_), kPrometheusContentType);
    });
    server_.Get("/v1/models", [this](const Request&, Response& response) {
      const auto model = state_->Admit();
      if (!model.ok()) return SendError(FromStatus(model.status()), response);
      response.set_content(ModelsJson(**model), kJson);
    });
    server_.Post("/v1/completions", [this](const Request& request, Response& response) {
      Connection* connection = CurrentConnection();
      const CompletionCaller caller = {.request_id = request.get_header_value("X-Request-Id"),
                                       .address = request.remote_addr,
                                       .is_gone = [connection] { return connection->PeerClosed(); },
                                       .hold_memory =
                                           [connection](ByteBudget::Reservation memory) {
                                             connection->HoldMemory(std::move(memory));
                                           }};
      auto answer = RunCompletion(request.body, caller, *state_);
      if (const HttpError* error = std::get_if<HttpError>(&answer))
        return SendError(*error, response);
      // By a provider: cpp-httplib compresses plain bodies for clients that accept it, at a cost
      // far above that of sending them.
      auto text = std::make_shared<const std::string>(std::move(std::get<std::string>(answer)));
      response.set_content_provider(text->size(), kJson,
                                    [text](size_t offset, size_t length, httplib::DataSink& sink) {
                                      return sink.write(text->data() + offset, length);
                                    });
    });
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
    server_.set_error_handler(httplib::Server::Handler([](const Request& request,
                                                          Response& response) {
      if (!response.body.empty()) return;
      const bool known_path = kGetPaths.contains(request.path) || kPostPaths.contains(request.path);
      if (response.status == 404 && known_path) {
        response.status = 405;
        response.set_content("{\"detail\":\"Method Not Allowed\"}", kJson);
      } else if (response.status == 404) {
        response.set_content("{\"detail\":\"Not Found\"}", kJson);
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
