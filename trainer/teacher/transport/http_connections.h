// Blocking HTTP exchanges with the endpoints of a teacher, each with a time limit of its own.
//
// cpp-httplib limits the time of a single read, so a server that sends a byte now and then would
// hold a thread for ever. One thread of this object therefore closes the connection of every
// exchange whose time is up.
//
// Threads: any thread may call. Connections are kept open and used again by later exchanges.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "trainer/teacher/client_options.h"
#include "trainer/teacher/transport/endpoint.h"

namespace httplib {
class Client;
}

namespace taopd {

struct HttpReply {
  int status = 0;
  std::string body;
  std::optional<absl::Duration> retry_after;  // as the server asks
};

class HttpConnections {
 public:
  // Makes the process ignore SIGPIPE, which a write to a closed connection would send.
  HttpConnections(const std::vector<TeacherEndpoint>& endpoints,
                  const TeacherClientOptions& options);
  // REQUIRES: no exchange is in progress.
  ~HttpConnections();

  // Sends one request and receives the reply. `path` comes after the endpoint's prefix; an empty
  // body makes it a GET. Errors:
  //   UNAVAILABLE        no connection, or it broke
  //   DEADLINE_EXCEEDED  the time limit
  //   CANCELLED          CancelAll has been called
  //   DATA_LOSS          the reply has more than max_reply_bytes, or is no HTTP
  absl::StatusOr<HttpReply> Exchange(size_t endpoint, const std::string& path,
                                     const std::string& body, int64_t max_reply_bytes,
                                     absl::Duration timeout);
  // Ends all exchanges soon: those in progress and later ones.
  void CancelAll();

 private:
  struct Active {
    httplib::Client* connection;
    absl::Time deadline;
  };

  std::unique_ptr<httplib::Client> Connect(size_t endpoint) const;
  void CloseLateOnes();

  const std::vector<TeacherEndpoint> endpoints_;
  const TeacherClientOptions options_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  // The connections that nobody uses, of each endpoint.
  std::vector<std::vector<std::unique_ptr<httplib::Client>>> idle_ ABSL_GUARDED_BY(mutex_);
  std::list<Active> active_ ABSL_GUARDED_BY(mutex_);
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread closer_;  // last: it uses all of the above
};

}  // namespace taopd
