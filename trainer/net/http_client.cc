#include "trainer/net/http_client.h"

#include <absl/strings/numbers.h>
#include <absl/time/clock.h>
#include <httplib.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace taopd {
namespace {

constexpr absl::Duration kMaxConnectTime = absl::Seconds(10);
// A cancelled connection is closed again after each period until its exchange ends, because it may
// have been opened since.
constexpr absl::Duration kCloserPeriod = absl::Milliseconds(50);

std::optional<absl::Duration> RetryAfterOf(const httplib::Response& response) {
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(response.get_header_value("Retry-After"), &seconds) || seconds < 0) {
    return std::nullopt;
  }
  return absl::Seconds(seconds);
}

httplib::Request MakeRequest(const std::string& path, const std::string& body,
                             const ClientCredentials& credentials) {
  httplib::Request request;
  request.method = body.empty() ? "GET" : "POST";
  request.path = path;
  request.set_header("Accept", "application/json");
  if (!credentials.api_key.empty())
    request.set_header("Authorization", "Bearer " + credentials.api_key);
  if (!body.empty()) request.set_header("Content-Type", "application/json");
  request.body = body;
  return request;
}

void SetTimeouts(absl::Time deadline, httplib::Client* connection) {
  const absl::Duration left = std::max(deadline - absl::Now(), absl::Milliseconds(1));
  // Rounded up, because a read that gives up before the deadline would not count as late.
  const auto left_ms = absl::ToChronoMilliseconds(left) + std::chrono::milliseconds(1);
  connection->set_connection_timeout(absl::ToChronoMilliseconds(std::min(left, kMaxConnectTime)));
  connection->set_read_timeout(left_ms);
  connection->set_write_timeout(left_ms);
}

// Describes the failure and its likely cause.
std::string DescribeFailure(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "no connection: nothing listens there, or a firewall is between";
    case httplib::Error::ConnectionTimeout:
      return "no connection within the time limit";
    case httplib::Error::Read:
      return "the connection was closed, or the reply is not HTTP: is this the server's HTTP "
             "port, not the one of gRPC, and is TLS asked for on one side only?";
    case httplib::Error::Write:
      return "the connection was closed while the request was sent";
    case httplib::Error::SSLConnection:
      return "the TLS handshake failed: does the server speak TLS on this port?";
    case httplib::Error::SSLLoadingCerts:
      return "the certificates of tls_ca_file cannot be used";
    case httplib::Error::SSLServerVerification:
      return "the server's certificate is not trusted: see tls_ca_file";
    default:
      return "HTTP failed: " + httplib::to_string(error);
  }
}

}  // namespace

HttpClient::HttpClient(std::vector<ServerAddress> servers, const ClientCredentials& credentials)
    : servers_(std::move(servers)), credentials_(credentials), idle_(servers_.size()) {
  ::signal(SIGPIPE, SIG_IGN);
  closer_ = std::thread([this] { CloseOverdue(); });
}

HttpClient::~HttpClient() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    changed_.Signal();
  }
  closer_.join();
}

void HttpClient::CancelAll() {
  absl::MutexLock lock(&mutex_);
  is_cancelled_ = true;
  changed_.Signal();
}

void HttpClient::CloseOverdue() {
  absl::MutexLock lock(&mutex_);
  while (!is_stopping_) {
    const absl::Time now = absl::Now();
    absl::Time next = absl::InfiniteFuture();
    for (const Active& active : active_) {
      if (!is_cancelled_ && !active.stop->stop_requested() && active.deadline > now) {
        next = std::min(next, active.deadline);
        continue;
      }
      active.connection->stop();
      next = std::min(next, now + kCloserPeriod);
    }
    changed_.WaitWithDeadline(&mutex_, next);
  }
}

std::unique_ptr<httplib::Client> HttpClient::Connect(const ServerAddress& server) const {
  auto connection = std::make_unique<httplib::Client>(server.Url(), credentials_.tls_cert_file,
                                                      credentials_.tls_key_file);
  if (server.tls && !credentials_.tls_ca_file.empty()) {
    connection->set_ca_cert_path(credentials_.tls_ca_file.c_str());
  }
  connection->set_keep_alive(true);
  connection->set_tcp_nodelay(true);
  return connection;
}

absl::StatusOr<HttpReply> HttpClient::Exchange(size_t server, const std::string& path,
                                               const std::string& body, int64_t max_reply_bytes,
                                               absl::Duration timeout,
                                               const std::function<void(std::string_view)>& on_data,
                                               const std::stop_token& stop) {
  const absl::Time deadline = absl::Now() + timeout;
  httplib::Request request = MakeRequest(servers_[server].prefix + path, body, credentials_);
  HttpReply reply;
  bool too_long = false;
  int status = 0;
  request.response_handler = [&](const httplib::Response& response) {
    status = response.status;
    return true;
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    too_long = static_cast<int64_t>(reply.body.size() + size) > max_reply_bytes;
    if (too_long) return false;
    reply.body.append(data, size);
    if (on_data && status == 200) on_data({data, size});
    return true;
  };

  const std::stop_callback wake_closer(stop, [this] {
    absl::MutexLock lock(&mutex_);
    changed_.Signal();
  });
  for (bool is_fresh = false;;) {
    TAOPD_ASSIGN_OR_RETURN(const ActiveList::iterator active,
                           Begin(server, deadline, stop, &is_fresh));
    SetTimeouts(deadline, active->connection.get());
    const httplib::Result result = active->connection->send(request);
    const absl::Status cut_off = End(server, active, /*has_reply=*/static_cast<bool>(result));
    if (too_long) return DataLoss("the reply is longer than ", max_reply_bytes, " bytes");
    if (result) {
      reply.status = result->status;
      reply.retry_after = RetryAfterOf(*result);
      return reply;
    }
    TAOPD_RETURN_IF_ERROR(cut_off);
    // A connection that was kept open may have been closed by the server meanwhile.
    if (is_fresh || !reply.body.empty()) return Unavailable(DescribeFailure(result.error()));
    is_fresh = true;
  }
}

absl::Status HttpClient::CheckNotStopped(const std::stop_token& stop) const {
  if (is_cancelled_) return absl::CancelledError("the HTTP client is closing");
  if (stop.stop_requested()) return absl::CancelledError("the request was cancelled");
  return absl::OkStatus();
}

absl::StatusOr<HttpClient::ActiveList::iterator> HttpClient::Begin(size_t server,
                                                                   absl::Time deadline,
                                                                   const std::stop_token& stop,
                                                                   bool* is_fresh) {
  absl::MutexLock lock(&mutex_);
  TAOPD_RETURN_IF_ERROR(CheckNotStopped(stop));
  std::vector<std::unique_ptr<httplib::Client>>& idle = idle_[server];
  *is_fresh = *is_fresh || idle.empty();
  std::unique_ptr<httplib::Client> connection;
  if (*is_fresh) {
    connection = Connect(servers_[server]);
  } else {
    connection = std::move(idle.back());
    idle.pop_back();
  }
  active_.push_back({std::move(connection), deadline, &stop});
  changed_.Signal();
  return std::prev(active_.end());
}

absl::Status HttpClient::End(size_t server, ActiveList::iterator active, bool has_reply) {
  Active ended;  // outside of the lock, because a connection may take time to close
  absl::MutexLock lock(&mutex_);
  ended = std::move(*active);
  active_.erase(active);
  TAOPD_RETURN_IF_ERROR(CheckNotStopped(*ended.stop));
  if (absl::Now() >= ended.deadline)
    return absl::DeadlineExceededError("no complete reply within the time limit");
  if (has_reply) idle_[server].push_back(std::move(ended.connection));
  return absl::OkStatus();
}

}  // namespace taopd
