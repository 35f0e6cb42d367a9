// The watch by which the ranks of a run know that all of them are alive. Each rank other than 0
// holds one TCP connection to rank 0; both sides send a heartbeat every second. A connection that
// closes without notice means that its rank has died; silence means that it hangs or its machine is
// gone. The first failure of any rank reaches all of them, with the rank's number. This header does
// not use LibTorch.
//
// Messages are lines of text, each ended by a line feed:
//   hello RANK TOKEN       the first line, to rank 0
//   beat NUMBER            the sender is alive and has begun this many collectives
//   slowest RANK NUMBER    from rank 0: the rank that has begun the fewest
//   fail RANK CODE TEXT    that rank has failed: a code of absl::Status and its message
//   stop CODE              some rank was asked to stop with this exit code; rank 0 tells all ranks
//   bye                    the sender leaves in order; what follows is not a failure
//
// Threads: each object has its own thread. All functions are thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace taopd {

struct RankWatchOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  absl::Duration beat = absl::Seconds(1);
  // A rank that says nothing for this long has failed.
  absl::Duration silence = absl::Seconds(20);
  // A secret that strangers do not know (watch_token.h). Rank 0 may set it after Listen, before the
  // port is published: SetToken.
  std::string token;
  // If another rank has failed and this object still exists after this time, the process ends with
  // exit code 69, whatever its threads wait for. If infinite, it never does.
  absl::Duration grace = absl::InfiniteDuration();
};

class RankWatch {
 public:
  // For rank 0: listens on a port of `host` that the system picks.
  static absl::StatusOr<std::unique_ptr<RankWatch>> Listen(const RankWatchOptions& options,
                                                           const std::string& host);
  // For other ranks: connects to rank 0. Returns UNAVAILABLE if that fails within `timeout` or the
  // rank is taken, PERMISSION_DENIED for another token, INVALID_ARGUMENT for a rank not in the run.
  static absl::StatusOr<std::unique_ptr<RankWatch>> Connect(const RankWatchOptions& options,
                                                            const std::string& host, int port,
                                                            absl::Duration timeout);
  // Ends the thread. Without an earlier Leave or Fail, the other ranks report this rank as dead.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  int port() const { return port_; }
  // The address of this machine from which it reaches rank 0; for rank 0, the address it listens
  // on.
  const std::string& local_address() const { return local_address_; }

  // For rank 0: sets the token that is derived from the port.
  void SetToken(const std::string& token);

  // For rank 0: waits until all ranks have connected. Returns UNAVAILABLE with the missing ranks
  // after `timeout`, and otherwise the failure of a rank.
  absl::Status AwaitAll(absl::Duration timeout);

  // Returns OK, or the first failure of the world: "rank 2: ..." with the code that the rank gave,
  // or UNAVAILABLE if it died or hangs.
  absl::Status failure() const;
  // Tells all other ranks that this one fails. Only the first failure of the world counts.
  void Fail(const absl::Status& status);
  // Tells the other ranks that this one is about to end in order.
  void Leave();

  // Tells all ranks that one was asked to stop, with the exit code to end with. Does nothing else:
  // the ranks' OnStop decides what follows. The largest code of all requests counts.
  void RequestStop(int code);
  // From now on, `on_stop` gets the codes of all ranks' requests, this one's included, on this
  // object's thread; it gets the codes of earlier requests immediately. It may call RequestStop. If
  // `on_stop` is null, the previous function is no longer called once this returns.
  void OnStop(std::function<void(int)> on_stop);

  // Announces how many collectives this rank has begun.
  void SetProgress(int64_t num_collectives);
  // Returns the rank that has begun the fewest collectives, as far as rank 0 knows, and their
  // number.
  std::pair<int64_t, int64_t> Slowest() const;

 private:
  struct Peer {
    int fd = -1;
    int64_t rank = -1;  // -1 until it has said hello
    int64_t progress = 0;
    absl::Time last_heard;      // until it has said hello, the time of its arrival
    std::string received = "";  // the beginning of a line
    bool has_left = false;
  };

  explicit RankWatch(const RankWatchOptions& options) : options_(options), token_(options.token) {}
  bool is_root() const { return options_.rank == 0; }
  void Start();
  // For ranks other than 0: waits for rank 0's first line.
  absl::Status AwaitFirstLine(absl::Duration timeout);
  void Loop();
  // Returns the sockets to wait for: the wake-up first, the listener second.
  std::vector<int> Sockets();
  void Accept();
  void Read(int fd);
  // Handles the first line of a peer. Returns whether the peer may stay.
  bool Admit(Peer& peer, const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Handles any other line; unknown ones are ignored.
  void HandleLine(Peer& peer, const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnDisconnect(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tick(absl::Time now, absl::Duration since_last);
  void EndIfOverdue(absl::Time now);
  void FailLocked(int64_t rank, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendAll(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopLocked(int code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls on_stop_ if it has not been told of the largest requested code.
  void ReportStop();

  const RankWatchOptions options_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::string local_address_;
  std::unique_ptr<FileDescriptor> listener_;  // rank 0 only
  std::unique_ptr<FileDescriptor> wake_;
  std::thread thread_;

  mutable absl::Mutex mutex_;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  absl::Time failed_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool failed_here_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t progress_ ABSL_GUARDED_BY(mutex_) = 0;
  std::pair<int64_t, int64_t> slowest_ ABSL_GUARDED_BY(mutex_) = {-1, 0};
  int64_t num_joined_ ABSL_GUARDED_BY(mutex_) = 1;
  bool has_left_ ABSL_GUARDED_BY(mutex_) = false;
  bool was_answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_turned_away_ ABSL_GUARDED_BY(mutex_) = false;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  int stop_code_ ABSL_GUARDED_BY(mutex_) = 0;
  // Taken before mutex_, and held while on_stop_ runs.
  absl::Mutex on_stop_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::function<void(int)> on_stop_ ABSL_GUARDED_BY(on_stop_mutex_);
  int reported_stop_code_ ABSL_GUARDED_BY(on_stop_mutex_) = 0;
};

}  // namespace taopd
