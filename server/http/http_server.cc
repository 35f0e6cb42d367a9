#include "server/http/http_server.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/wire/teacher_protocol.h"
#include "server/http/front/front.h"
#include "server/http/routes/routes.h"
#include "server/net/client_name.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

constexpr double kMaxTimeoutSeconds = 86400.0;

bool IsJsonContentType(std::string_view type) {
  constexpr std::string_view kSuffix = "+json";
  type = TrimSpaces(type.substr(0, type.find(';')));
  return EqualsIgnoringCase(type, "application/json") ||
         (type.size() > kSuffix.size() &&
          EqualsIgnoringCase(type.substr(type.size() - kSuffix.size()), kSuffix));
}

std::string_view MethodOfRoute(std::string_view method) {
  return method == "HEAD" ? "GET" : method;
}

// Returns the deadline of X-Request-Timeout, the seconds for which the client waits, counted from
// the request's first byte.
absl::StatusOr<absl::Time> DeadlineOf(const RequestHead& head, absl::Time begun_at) {
  const std::string* text = head.Find("x-request-timeout");
  if (text == nullptr) return absl::InfiniteFuture();
  double seconds = 0.0;
  if (!absl::SimpleAtod(*text, &seconds) || !(seconds > 0.0 && seconds <= kMaxTimeoutSeconds)) {
    return InvalidArgument("X-Request-Timeout must be a number of seconds above 0 and at most ",
                           kMaxTimeoutSeconds, ", got ", Excerpt(*text));
  }
  return begun_at + absl::Seconds(seconds);
}

// Answers repeat X-Request-Id, and each choice of a request keeps it.
absl::Status CheckRequestIdHeader(const RequestHead& head) {
  const std::string* id = head.Find("x-request-id");
  if (id == nullptr || id->size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return InvalidArgument("X-Request-Id has ", id->size(), " bytes, the limit is ",
                         kMaxRequestIdBytes);
}

class HttpServerImpl final : public HttpServer, public FrontHandler {
 public:
  HttpServerImpl(ServingState* state, ServerMetrics* metrics, std::function<void()> on_failure,
                 const HttpServerOptions& options)
      : state_(state),
        metrics_(metrics),
        keys_(options.keys),
        routes_(MakeRoutes(state, metrics)),
        front_(options.limits, this, &state->message_budget(), std::move(on_failure)) {}

  ~HttpServerImpl() override { front_.Shutdown(absl::Now()); }

  absl::Status Start(const std::string& host, int port, const HttpServerOptions& options) {
    TAOPD_ASSIGN_OR_RETURN(Listener listener, Listener::Open(host, port));
    port_ = listener.port();
    Front::TlsSource tls;
    if (options.tls != nullptr && options.tls->paths().enabled()) {
      tls = [files = options.tls] { return files->context(); };
    }
    front_.AddListener(std::move(listener), /*probes_only=*/false, std::move(tls));
    if (options.health_port != 0) {
      TAOPD_ASSIGN_OR_RETURN(Listener health,
                             Listener::Open(host, std::max(options.health_port, 0)));
      health_port_ = health.port();
      front_.AddListener(std::move(health), /*probes_only=*/true, nullptr);
    }
    return front_.Start();
  }

  int port() const override { return port_; }
  int health_port() const override { return health_port_; }
  void Shutdown(absl::Time deadline) override { front_.Shutdown(deadline); }

  std::optional<WireAnswer> Admit(const RequestHead& head, Access access,
                                  const std::string& peer) override {
    std::optional<HttpResponse> refusal = RefusalOf(head, access);
    if (!refusal) return std::nullopt;
    RecordRefusal(refusal->status, head, Identify(head, peer).address);
    const bool close = !head.keep_alive || head.has_body();
    return WholeAnswer(*std::move(refusal), {head.method == "HEAD", head.is_http_1_1, close});
  }

  bool IsProbe(const RequestHead& head) const override {
    const Route* route = Find(head.method, head.path());
    return route != nullptr && route->kind == RouteKind::kProbe;
  }

  bool IsTrustedProxy(const std::string& peer) const override {
    return state_->trusted_proxies().Trusts(peer);
  }

  ClientIdentity Identify(const RequestHead& head, const std::string& peer) const override {
    const std::string address =
        state_->trusted_proxies().ClientAddress(peer, [&head](const char* name) {
          std::vector<std::string_view> values;
          for (const Header& header : head.headers) {
            if (EqualsIgnoringCase(header.name, name)) values.push_back(header.value);
          }
          return values;
        });
    return {address, SubscriberOf(address), NameOf(head, address)};
  }

  WireAnswer Refuse(const Refusal& refusal, const RequestHead& head,
                    const std::string& client) override {
    RecordRefusal(refusal.status, head, client);
    return WholeAnswer(ErrorResponse(ErrorOf(refusal.status, refusal.message)), {.close = true});
  }

  void Handle(Exchange& exchange) override {
    const RequestHead& head = exchange.request().head;
    const Route* route = Find(head.method, head.path());  // Admit has found it
    const std::string label = Concat(route->method, " ", route->path);
    const absl::Time begun_at = exchange.begun_at();
    const AnswerStyle style = {head.method == "HEAD", head.is_http_1_1, !head.keep_alive};
    const std::string body = std::move(exchange.request().body);
    // The status that is sent. It stays 200 for a stream that fails later, as in the access logs of
    // nginx and in OpenTelemetry's http.response.status_code.
    int status = 0;
    WireAnswer rest;
    try {
      HttpResponse response = Run(*route, body, exchange);
      status = response.status;
      rest = SendAnswer(std::move(response), style, exchange);
    } catch (const std::exception& error) {
      rest = AnswerToException(label, error.what(), style);
      status = 500;
    } catch (...) {
      rest = AnswerToException(label, "unknown", style);
      status = 500;
    }
    metrics_->RecordRequest(label, std::to_string(status), absl::Now() - begun_at,
                            exchange.client(), LoggedIdOf(head));
    exchange.Finish(std::move(rest));
  }

 private:
  HttpResponse Run(const Route& route, const std::string& body, Exchange& exchange) const {
    const RequestHead& head = exchange.request().head;
    absl::Status valid = CheckRequestIdHeader(head);
    const absl::StatusOr<absl::Time> deadline = DeadlineOf(head, exchange.begun_at());
    valid.Update(deadline.status());
    if (!valid.ok()) return ErrorResponse(ToHttpError(valid));
    const std::string* request_id = head.Find("x-request-id");
    return route.handle(body, {.request_id = request_id == nullptr ? std::string() : *request_id,
                               .client = NameOf(head, exchange.client()),
                               .deadline = *deadline,
                               .is_gone = [&exchange] { return exchange.IsGone(); },
                               .hold_memory =
                                   [&exchange](ByteBudget::Reservation memory) {
                                     exchange.HoldMemory(std::move(memory));
                                   }});
  }

  // Returns the answer after an exception, before which nothing has been sent. The connection ends.
  WireAnswer AnswerToException(const std::string& label, const std::string& what,
                               AnswerStyle style) {
    LogError("request failed", {{"route", label}, {"what", what}});
    style.close = true;
    return WholeAnswer(ErrorResponse(ErrorOf(500, "internal error")), style);
  }

  // A path may lack the route's '/' at its end or have one too much. FastAPI, and so vLLM and TRL,
  // redirect such requests, and clients rely on it.
  static bool HasPath(const Route& route, std::string_view path) {
    const auto without_slash = [](std::string_view text) {
      return text.substr(0, text.size() - text.ends_with('/'));
    };
    return without_slash(route.path) == without_slash(path);
  }

  const Route* Find(std::string_view method, std::string_view path) const {
    for (const Route& route : routes_) {
      if (route.method == MethodOfRoute(method) && HasPath(route, path)) return &route;
    }
    return nullptr;
  }

  // Returns the answer to a head alone, if its request is refused. A body that follows is not read.
  std::optional<HttpResponse> RefusalOf(const RequestHead& head, Access access) const {
    const Route* route = Find(head.method, head.path());
    const bool is_probe = route != nullptr && route->kind == RouteKind::kProbe;
    if (access != Access::kProbePort && !is_probe && !ShowsKey(head)) return Unauthorized();
    if (route == nullptr || (access == Access::kProbePort && !is_probe)) {
      return NoRoute(head);
    }
    if (access == Access::kOverflow && !is_probe) {
      return ErrorResponse(ErrorOf(503, "the server has too many connections; try again later"));
    }
    if (!head.has_body()) return std::nullopt;
    // Nobody needs a key for a probe, so it must not take the memory of a body.
    if (is_probe) return ErrorResponse(ErrorOf(413, "a probe takes no body"));
    const std::string* type = head.Find("content-type");
    if (type == nullptr || !IsJsonContentType(*type)) {
      // vLLM's answer, where 415 would be HTTP's own.
      return ErrorResponse({400, "Bad Request", std::nullopt,
                            "Unsupported Media Type: Only 'application/json' is allowed"});
    }
    return std::nullopt;
  }

  // A client must not be able to make new series of metrics.
  void RecordRefusal(int status, const RequestHead& head, const std::string& client) {
    metrics_->RecordRequest("other", std::to_string(status), absl::ZeroDuration(), client,
                            LoggedIdOf(head));
  }

  // Returns the client's id of a request for the access log.
  static std::string LoggedIdOf(const RequestHead& head) {
    const std::string* id = head.Find("x-request-id");
    return id == nullptr ? std::string() : Excerpt(*id);
  }

  static std::string_view AuthorizationOf(const RequestHead& head) {
    const std::string* shown = head.Find("authorization");
    return shown == nullptr ? std::string_view() : *shown;
  }
  bool ShowsKey(const RequestHead& head) const {
    return keys_ == nullptr || keys_->Accepts(AuthorizationOf(head));
  }
  // Probes are admitted with any key, so one that is not accepted must not become a name.
  std::string NameOf(const RequestHead& head, const std::string& address) const {
    const bool has_name = keys_ != nullptr && ShowsKey(head);
    return ClientName(address, has_name ? keys_->NameOf(AuthorizationOf(head)) : std::string());
  }

  // Returns vLLM's answer to a request without a key.
  static HttpResponse Unauthorized() {
    HttpResponse response = JsonResponse("{\"error\":\"Unauthorized\"}", 401);
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }

  HttpResponse NoRoute(const RequestHead& head) const {
    std::string allowed;
    for (const Route& route : routes_) {
      if (!HasPath(route, head.path())) continue;
      allowed += (allowed.empty() ? "" : ", ") + route.method;
    }
    // vLLM's answers. A client that posts work expects an error in the shape of all others, too.
    if (!allowed.empty()) {
      HttpResponse response = JsonResponse("{\"detail\":\"Method Not Allowed\"}", 405);
      response.headers.emplace_back("Allow", allowed);
      return response;
    }
    if (head.method != "POST") return JsonResponse("{\"detail\":\"Not Found\"}", 404);
    const HttpError error = ErrorOf(404, Concat("there is no route POST ", Excerpt(head.path()),
                                                "; GET /openapi.json lists the routes"));
    return JsonResponse("{\"detail\":\"Not Found\"," + error.Json().substr(1), 404);
  }

  ServingState* const state_;
  ServerMetrics* const metrics_;
  const ApiKeys* const keys_;
  const Routes routes_;
  int port_ = 0;
  int health_port_ = 0;
  Front front_;  // last: its threads use the rest
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& host, int port,
                                                               ServingState* state,
                                                               ServerMetrics* metrics,
                                                               std::function<void()> on_failure,
                                                               const HttpServerOptions& options) {
  auto server = std::make_unique<HttpServerImpl>(state, metrics, std::move(on_failure), options);
  TAOPD_RETURN_IF_ERROR(server->Start(host, port, options));
  return server;
}

}  // namespace taopd
