// Blocking HTTP exchanges with a group of servers, each with a time limit of its own.
//
// cpp-httplib limits the time of a single read, so a server that sends a byte now and then would
// hold a thread forever. One thread of this object therefore closes the connection of every
// exchange whose time is up.
//
// Connections are kept open and used again by later exchanges. A request that fails on such a
// connection without any reply is sent once more on a new one, because the server may have closed
// it meanwhile; the server may therefore get a request twice.
//
// Threads: any thread may call.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/wire/client_credentials.h"
#include "trainer/net/server_address.h"

namespace httplib {
class Client;
}

namespace taopd {

struct HttpReply {
  int status = 0;
  std::string body;
  std::optional<absl::Duration> retry_after;  // as the server asks
};

class HttpClient {
 public:
  // Makes the process ignore SIGPIPE, which a write to a closed connection would send.
  HttpClient(std::vector<ServerAddress> servers, const ClientCredentials& credentials);
  // REQUIRES: no exchange is in progress.
  ~HttpClient();

  // Sends one request and receives the reply, whatever its status. `server` is an index. `path`
  // comes after the server's prefix; an empty body makes it a GET. `on_data`, if it is not null,
  // gets the body of a 200 reply piece by piece as it arrives. `stop` ends this exchange alone.
  // Errors:
  //   UNAVAILABLE        no connection, or it broke, or the reply is not HTTP
  //   DEADLINE_EXCEEDED  the time limit
  //   CANCELLED          CancelAll has been called, or `stop` was requested
  //   DATA_LOSS          the reply has more than max_reply_bytes
  absl::StatusOr<HttpReply> Exchange(size_t server, const std::string& path,
                                     const std::string& body, int64_t max_reply_bytes,
                                     absl::Duration timeout,
                                     const std::function<void(std::string_view)>& on_data = nullptr,
                                     const std::stop_token& stop = {});
  // Ends all exchanges soon: those in progress and later ones.
  void CancelAll();

 private:
  struct Active {
    std::unique_ptr<httplib::Client> connection;
    absl::Time deadline;
    const std::stop_token* stop;
  };
  using ActiveList = std::list<Active>;

  std::unique_ptr<httplib::Client> Connect(const ServerAddress& server) const;
  // Returns CANCELLED if exchanges with this token must end.
  absl::Status CheckNotStopped(const std::stop_token& stop) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins an exchange on an idle connection or, if there is none or if *is_fresh, on a new one.
  // Sets *is_fresh if the connection is new.
  absl::StatusOr<ActiveList::iterator> Begin(size_t server, absl::Time deadline,
                                             const std::stop_token& stop, bool* is_fresh);
  // Ends an exchange. Returns CANCELLED or DEADLINE_EXCEEDED if it was cut off; otherwise, a
  // connection that has got its reply becomes idle.
  absl::Status End(size_t server, ActiveList::iterator active, bool has_reply);
  void CloseOverdue();

  const std::vector<ServerAddress> servers_;
  const ClientCredentials credentials_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  // The idle connections to each server.
  std::vector<std::vector<std::unique_ptr<httplib::Client>>> idle_ ABSL_GUARDED_BY(mutex_);
  ActiveList active_ ABSL_GUARDED_BY(mutex_);
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread closer_;  // last, because it uses all of the above
};

}  // namespace taopd
