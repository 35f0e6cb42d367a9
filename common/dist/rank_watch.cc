#include "common/dist/rank_watch.h"

#include <absl/time/clock.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <tuple>

#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/dist/rendezvous_addresses.h"

namespace taopd {
namespace {

constexpr size_t kMaxLine = 4096;
// Limits the connections that have not said hello, so that strangers cannot use all descriptors.
constexpr size_t kMaxStrangers = 64;

// Sends the whole line, or else shuts the connection down, so that Read reports the peer as lost:
// half a line may have been sent, and the next line would continue it.
void Send(int fd, const std::string& line) {
  const ssize_t sent = send(fd, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(line.size())) shutdown(fd, SHUT_RDWR);
}

// The text is a single line, and not longer than a reader accepts.
std::string FailLine(int64_t rank, const absl::Status& status) {
  std::string text(status.message().substr(0, kMaxLine / 2));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return Concat("fail ", rank, " ", static_cast<int>(status.code()), " ", text, "\n");
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankWatch>> RankWatch::Listen(const RankWatchOptions& options,
                                                             const std::string& host) {
  TAOPD_ASSIGN_OR_RETURN(const int fd, ListenAt(host, 0));
  std::unique_ptr<RankWatch> watch(new RankWatch(options));
  watch->listener_ = std::make_unique<FileDescriptor>(fd);
  fcntl(fd, F_SETFL, O_NONBLOCK);
  std::tie(watch->local_address_, watch->port_) = LocalName(fd);
  watch->Start();
  return watch;
}

absl::StatusOr<std::unique_ptr<RankWatch>> RankWatch::Connect(const RankWatchOptions& options,
                                                              const std::string& host, int port,
                                                              absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::Duration pause = absl::Milliseconds(10);
  auto fd = ConnectTo(host, port, timeout);
  while (!fd.ok() && absl::Now() + pause <= deadline) {
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Seconds(1));
    fd = ConnectTo(host, port, deadline - absl::Now());
  }
  if (!fd.ok()) {
    return Unavailable("rank ", options.rank, " cannot connect to rank 0 at ", host, ":", port,
                       " within ", absl::FormatDuration(timeout), ": ", fd.status().message());
  }
  std::unique_ptr<RankWatch> watch(new RankWatch(options));
  watch->port_ = port;
  watch->local_address_ = LocalName(*fd).first;
  Send(*fd, Concat("hello ", options.rank, " ", options.token, "\n"));
  {
    absl::MutexLock lock(&watch->mutex_);
    watch->peers_.push_back({.fd = *fd, .rank = 0, .last_heard = absl::Now()});
  }
  watch->Start();
  TAOPD_RETURN_IF_ERROR(watch->AwaitFirstLine(deadline - absl::Now()));
  return watch;
}

RankWatch::~RankWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stops_ = true;
  }
  eventfd_write(wake_->get(), 1);
  thread_.join();
  absl::MutexLock lock(&mutex_);
  for (const Peer& peer : peers_) close(peer.fd);
}

void RankWatch::Start() {
  // If there is no descriptor left, poll ignores it, and the destructor waits for the next beat.
  wake_ = std::make_unique<FileDescriptor>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this] { Loop(); });
}

void RankWatch::SetToken(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  token_ = token;
}

absl::Status RankWatch::AwaitFirstLine(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto answered = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return was_answered_ || !failure_.ok();
  };
  if (mutex_.AwaitWithTimeout(absl::Condition(&answered), timeout)) return failure_;
  return Unavailable("rank ", options_.rank, ": rank 0 has not answered within ",
                     absl::FormatDuration(timeout));
}

absl::Status RankWatch::AwaitAll(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok() || num_joined_ == options_.world_size;
  };
  if (mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout)) return failure_;
  std::string missing;
  for (int64_t rank = 1; rank < options_.world_size; ++rank) {
    const bool is_here = std::ranges::find(peers_, rank, &Peer::rank) != peers_.end();
    if (!is_here) missing += Concat(missing.empty() ? "" : ", ", rank);
  }
  return Unavailable("only ", num_joined_, " of ", options_.world_size,
                     " ranks have connected within ", absl::FormatDuration(timeout),
                     "; missing: ", missing);
}

absl::Status RankWatch::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

void RankWatch::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok() || has_left_) return;
  failed_here_ = true;
  FailLocked(options_.rank, Annotate(status, Concat("rank ", options_.rank)));
  if (!is_root()) SendAll(FailLine(options_.rank, failure_));
}

void RankWatch::Leave() {
  absl::MutexLock lock(&mutex_);
  if (has_left_) return;
  has_left_ = true;
  SendAll("bye\n");
}

void RankWatch::RequestStop(int code) {
  absl::MutexLock lock(&mutex_);
  StopLocked(code);
}

// Rank 0 passes on the requests that it learns of.
void RankWatch::StopLocked(int code) {
  if (code <= stop_code_) return;
  stop_code_ = code;
  SendAll(Concat("stop ", code, "\n"));
}

void RankWatch::OnStop(std::function<void(int)> on_stop) {
  {
    absl::MutexLock lock(&on_stop_mutex_);
    on_stop_ = std::move(on_stop);
  }
  ReportStop();
}

void RankWatch::ReportStop() {
  absl::MutexLock on_stop_lock(&on_stop_mutex_);
  int code = 0;
  {
    absl::MutexLock lock(&mutex_);
    code = stop_code_;
  }
  if (on_stop_ == nullptr || code <= reported_stop_code_) return;
  reported_stop_code_ = code;
  on_stop_(code);
}

void RankWatch::SetProgress(int64_t num_collectives) {
  absl::MutexLock lock(&mutex_);
  progress_ = num_collectives;
}

std::pair<int64_t, int64_t> RankWatch::Slowest() const {
  absl::MutexLock lock(&mutex_);
  return slowest_;
}

void RankWatch::SendAll(const std::string& line) {
  for (const Peer& peer : peers_) {
    if (peer.rank >= 0) Send(peer.fd, line);
  }
}

// Rank 0 passes on the failures that it learns of; `status` has the rank's number in its message.
void RankWatch::FailLocked(int64_t rank, const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  failed_at_ = absl::Now();
  if (is_root()) SendAll(FailLine(rank, status));
}

void RankWatch::Remove(int fd) {
  close(fd);
  std::erase_if(peers_, [fd](const Peer& peer) { return peer.fd == fd; });
}

void RankWatch::OnDisconnect(Peer& peer) {
  if (peer.rank >= 0 && !peer.has_left && !has_left_) {
    FailLocked(peer.rank,
               Unavailable("rank ", peer.rank, " has died: its connection closed without notice"));
  }
}

bool RankWatch::Admit(Peer& peer, const std::string& line) {
  std::istringstream in(line);
  std::string word, token;
  int64_t rank = -1;
  in >> word >> rank >> token;
  if (word != "hello" || !in) return false;
  const bool is_taken = std::ranges::find(peers_, rank, &Peer::rank) != peers_.end();
  absl::Status refusal;
  if (token != token_) {
    refusal = absl::PermissionDeniedError("their TAOPD_RANK_SECRET differs");
  } else if (rank < 1 || rank >= options_.world_size) {
    refusal = InvalidArgument("the other ranks of this run are 1 to ", options_.world_size - 1);
  } else if (is_taken) {
    // Perhaps the rank's earlier process has died, and rank 0 has not noticed that yet.
    refusal = Unavailable("another process has connected with this rank");
  }
  if (!refusal.ok()) {
    // Strangers may try often, so only the first of them is logged.
    if (token == token_ || !std::exchange(has_turned_away_, true)) {
      LogWarning("refused a connection", {{"rank", rank}, {"error", refusal}});
    }
    Send(peer.fd, FailLine(0, Annotate(refusal, Concat("rank 0 has refused rank ", rank))));
    return false;
  }
  peer.rank = rank;
  peer.last_heard = absl::Now();
  ++num_joined_;
  Send(peer.fd, failure_.ok() ? "beat 0\n" : FailLine(0, failure_));
  if (stop_code_ > 0) Send(peer.fd, Concat("stop ", stop_code_, "\n"));
  return true;
}

void RankWatch::HandleLine(Peer& peer, const std::string& line) {
  was_answered_ = true;
  std::istringstream in(line);
  std::string word;
  in >> word;
  if (word == "beat") {
    in >> peer.progress;
  } else if (word == "slowest") {
    in >> slowest_.first >> slowest_.second;
  } else if (word == "stop") {
    int code = 0;
    in >> code;
    if (code <= 255) StopLocked(code);
  } else if (word == "bye") {
    peer.has_left = true;
  } else if (word == "fail") {
    int64_t rank = -1;
    int code = 0;
    std::string text;
    in >> rank >> code;
    std::getline(in >> std::ws, text);
    if (code <= 0 || code > 16) code = static_cast<int>(absl::StatusCode::kUnknown);
    FailLocked(rank, absl::Status(static_cast<absl::StatusCode>(code), text));
  }
}

void RankWatch::Accept() {
  const int fd = accept4(listener_->get(), nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  absl::MutexLock lock(&mutex_);
  const auto num_strangers = static_cast<size_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.rank < 0; }));
  if (num_strangers >= kMaxStrangers) {
    close(fd);
    return;
  }
  peers_.push_back({.fd = fd, .last_heard = absl::Now()});
}

void RankWatch::Read(int fd) {
  char bytes[1024];
  const ssize_t size = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  absl::MutexLock lock(&mutex_);
  const auto peer = std::ranges::find(peers_, fd, &Peer::fd);
  if (peer == peers_.end()) return;
  bool stays = size > 0;
  if (stays) {
    // A stranger cannot extend its time limit by sending bytes.
    if (peer->rank >= 0) peer->last_heard = absl::Now();
    peer->received.append(bytes, static_cast<size_t>(size));
  }
  for (size_t end; stays && (end = peer->received.find('\n')) != std::string::npos;) {
    const std::string line = peer->received.substr(0, end);
    peer->received.erase(0, end + 1);
    if (peer->rank < 0) {
      stays = Admit(*peer, line);
    } else {
      HandleLine(*peer, line);
    }
  }
  stays = stays && peer->received.size() <= kMaxLine;
  if (stays) return;
  OnDisconnect(*peer);
  Remove(fd);
}

void RankWatch::Tick(absl::Time now, absl::Duration since_last) {
  absl::MutexLock lock(&mutex_);
  if (is_root()) {
    slowest_ = {0, progress_};
    for (const Peer& peer : peers_) {
      if (peer.rank >= 0 && !peer.has_left && peer.progress < slowest_.second) {
        slowest_ = {peer.rank, peer.progress};
      }
    }
    SendAll(Concat("slowest ", slowest_.first, " ", slowest_.second, "\n"));
  }
  SendAll(Concat("beat ", progress_, "\n"));
  // A process that was itself stopped has not heard from any rank.
  const bool was_away = since_last > options_.silence / 2;
  std::vector<int> strangers;
  for (Peer& peer : peers_) {
    if (was_away) peer.last_heard = now;
    if (peer.has_left || now - peer.last_heard <= options_.silence) continue;
    if (peer.rank < 0) {
      strangers.push_back(peer.fd);
    } else if (!has_left_) {
      FailLocked(peer.rank,
                 Unavailable("rank ", peer.rank, " has sent no heartbeat for ",
                             absl::FormatDuration(options_.silence), ": it hangs or is stopped"));
    }
  }
  for (const int fd : strangers) Remove(fd);
}

void RankWatch::EndIfOverdue(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok() || failed_here_ || has_left_ || now - failed_at_ < options_.grace) return;
  LogError("ending now: another rank has failed", {{"rank", options_.rank}, {"error", failure_}});
  _exit(kExitUnavailable);
}

std::vector<int> RankWatch::Sockets() {
  std::vector<int> sockets = {wake_->get(), listener_ ? listener_->get() : -1};
  absl::MutexLock lock(&mutex_);
  for (const Peer& peer : peers_) sockets.push_back(peer.fd);
  return sockets;
}

void RankWatch::Loop() {
  absl::Time last_tick = absl::Now(), next_tick = last_tick;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (stops_) return;
    }
    std::vector<pollfd> waits;
    for (const int fd : Sockets()) waits.push_back({fd, POLLIN, 0});
    const auto wait_ms = absl::ToInt64Milliseconds(
        std::max(next_tick - absl::Now(), absl::ZeroDuration()) + absl::Milliseconds(1));
    poll(waits.data(), waits.size(), static_cast<int>(wait_ms));
    if (waits[1].revents != 0) Accept();
    for (size_t i = 2; i < waits.size(); ++i) {
      if (waits[i].revents != 0) Read(waits[i].fd);
    }
    ReportStop();
    const absl::Time now = absl::Now();
    if (now < next_tick) continue;
    Tick(now, now - last_tick);
    EndIfOverdue(now);
    last_tick = now;
    next_tick = now + options_.beat;
  }
}

}  // namespace taopd
