#include "common/dist/c10d_group.h"

#include <absl/time/clock.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <exception>
#include <sstream>

#include "common/base/check.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/dist/collective_watch.h"
#include "common/dist/rendezvous_addresses.h"
#include "common/dist/watch_token.h"

namespace taopd {
namespace {

// Gloo's own time-out cannot name the late rank, so it is a week, and this class limits the waits.
constexpr std::chrono::hours kGlooTimeout{24 * 7};
constexpr std::chrono::milliseconds kSlice{100};
// The time that a broken connection of Gloo waits for the watch to name the rank.
constexpr absl::Duration kFailureReportWait = absl::Seconds(3);

std::chrono::milliseconds ToChrono(absl::Duration duration) {
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(duration));
}

std::string FirstLine(const std::exception& error) {
  const std::string what = error.what();
  return what.substr(0, what.find('\n'));
}

std::vector<uint8_t> BytesOfText(const std::string& text) { return {text.begin(), text.end()}; }

absl::Status AsLostRank(absl::Status failure) {
  if (!failure.ok()) failure.SetPayload(kLostRankUrl, absl::Cord());
  return failure;
}

// Opens the store where the ranks meet. Throws what c10d throws.
absl::StatusOr<c10::intrusive_ptr<c10d::Store>> OpenStore(const Rendezvous& rendezvous,
                                                          const RendezvousAddresses& addresses,
                                                          absl::Duration timeout) {
  c10::intrusive_ptr<c10d::Store> store;
  if (!rendezvous.store_file.empty()) {
    store = c10::make_intrusive<c10d::FileStore>(rendezvous.store_file,
                                                 static_cast<int>(rendezvous.world_size));
  } else {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(rendezvous.master_port);
    options.isServer = rendezvous.rank == 0 && !rendezvous.launcher_serves_store;
    options.numWorkers = static_cast<size_t>(rendezvous.world_size);
    options.waitWorkers = false;
    options.timeout = ToChrono(timeout);
    if (rendezvous.listen_fd >= 0) {
      options.masterListenFd = rendezvous.listen_fd;
    } else if (options.isServer) {
      // c10d itself would listen on every address.
      TAOPD_ASSIGN_OR_RETURN(options.masterListenFd,
                             ListenAt(addresses.own_address, rendezvous.master_port));
    }
    const bool is_own = options.isServer && rendezvous.listen_fd < 0;
    store = c10::make_intrusive<c10d::TCPStore>(is_own ? addresses.own_address : addresses.master,
                                                options);
  }
  store->setTimeout(ToChrono(timeout));
  return c10::intrusive_ptr<c10d::Store>(
      c10::make_intrusive<c10d::PrefixStore>(rendezvous.prefix, store));
}

std::string GetText(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// Every rank publishes its host's name, for ranks whose launcher does not say how many share a
// machine.
void FindLocalRanks(c10d::Store& store, Rendezvous* rendezvous) {
  const std::string mine = OwnHostName();
  store.set(Concat("host/", rendezvous->rank), BytesOfText(mine));
  if (rendezvous->local_world_size > 0) return;
  rendezvous->local_rank = 0;
  for (int64_t rank = 0; rank < rendezvous->world_size; ++rank) {
    if (GetText(store, Concat("host/", rank)) != mine) continue;
    ++rendezvous->local_world_size;
    rendezvous->local_rank += rank < rendezvous->rank ? 1 : 0;
  }
}

// Rank 0 writes its address to the store; the others connect. The store contains no token: a rank
// that has the secret computes the token from the contents of the store.
absl::StatusOr<std::unique_ptr<RankWatch>> OpenWatch(const Rendezvous& rendezvous,
                                                     const RendezvousAddresses& addresses,
                                                     const ProcessGroupOptions& options,
                                                     c10d::Store& store) {
  RankWatchOptions watch_options;
  watch_options.rank = rendezvous.rank;
  watch_options.world_size = rendezvous.world_size;
  watch_options.silence = options.silence;
  watch_options.beat = std::min(absl::Seconds(1), options.silence / 4);
  watch_options.grace = options.grace;
  if (rendezvous.rank == 0) {
    TAOPD_ASSIGN_OR_RETURN(auto watch, RankWatch::Listen(watch_options, addresses.own_address));
    const std::string published =
        Concat(watch->local_address(), " ", watch->port(), " ", NewWatchNonce());
    watch->SetToken(WatchToken(rendezvous.secret, published));
    if (rendezvous.secret.empty() && !IsLoopback(addresses.own_address)) {
      LogWarning(
          "any process that reaches rank 0 can join the ranks' watch and end the run; set "
          "TAOPD_RANK_SECRET",
          {{"address", addresses.own_address}});
    }
    store.set("watch", BytesOfText(published));
    TAOPD_RETURN_IF_ERROR(watch->AwaitAll(options.connect_timeout));
    return watch;
  }
  const std::string published = GetText(store, "watch");
  std::istringstream in(published);
  std::string host;
  int port = 0;
  in >> host >> port;
  watch_options.token = WatchToken(rendezvous.secret, published);
  return RankWatch::Connect(watch_options, host, port, options.connect_timeout);
}

class C10dGroup final : public ProcessGroup {
 public:
  C10dGroup(const Rendezvous& rendezvous, const ProcessGroupOptions& options)
      : ProcessGroup(rendezvous), options_(options) {}

  ~C10dGroup() override {
    if (is_broken_ || !health().ok()) {
      // The destructors would wait for work that never completes. The process is about to end.
      gloo_.release();
      nccl_.release();
      store_.release();
    }
  }

  // Throws what c10d throws.
  absl::Status Open() {
    TAOPD_ASSIGN_OR_RETURN(const RendezvousAddresses addresses,
                           FindRendezvousAddresses(options_.interface, rendezvous_.master_addr));
    TAOPD_ASSIGN_OR_RETURN(store_, OpenStore(rendezvous_, addresses, options_.connect_timeout));
    TAOPD_ASSIGN_OR_RETURN(watch_, OpenWatch(rendezvous_, addresses, options_, *store_));
    FindLocalRanks(*store_, &rendezvous_);
    address_ = options_.interface.empty() ? watch_->local_address() : addresses.own_address;
    gloo_ = MakeGloo();
    if (options_.device.is_cpu()) return absl::OkStatus();
#ifdef USE_C10D_NCCL
    nccl_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>("nccl", store_), static_cast<int>(rank()),
        static_cast<int>(world_size()), c10d::ProcessGroupNCCL::Options::create());
    on_stream_ = std::make_unique<CollectiveWatch>(CollectiveWatch::Options{
        .grace = options_.grace,
        .on_failure = [this](const auto& collective,
                             const std::string& error) { FailFromStream(collective, error); },
        .on_stuck = [this] { EndStuck(); }});
    return absl::OkStatus();
#else
    return Unimplemented("several ranks on ", options_.device.str(),
                         ": this build has no NCCL; build with TAOPD_CUDA and nccl.h");
#endif
  }

  WorkPtr StartAllReduce(at::Tensor tensor, Reduction reduction) override {
    return Start("all_reduce", {tensor}, [&](c10d::Backend& backend) {
      c10d::AllreduceOptions options;
      if (reduction == Reduction::kMax) options.reduceOp = c10d::ReduceOp::MAX;
      std::vector<at::Tensor> tensors = {tensor};
      return backend.allreduce(tensors, options);
    });
  }
  WorkPtr StartAllGather(at::Tensor output, at::Tensor input) override {
    TAOPD_CHECK_EQ(input.numel() * world_size(), output.numel());
    return Start("all_gather", {output, input},
                 [&](c10d::Backend& backend) { return backend._allgather_base(output, input); });
  }
  WorkPtr StartAllToAll(at::Tensor output, at::Tensor input) override {
    TAOPD_CHECK_EQ(input.numel(), output.numel());
    return Start("all_to_all", {input, output}, [&](c10d::Backend& backend) {
      std::vector<int64_t> equal;
      return backend.alltoall_base(output, input, equal, equal);
    });
  }
  WorkPtr StartBroadcast(at::Tensor tensor, int64_t root) override {
    return Start("broadcast", {tensor}, [&](c10d::Backend& backend) {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      std::vector<at::Tensor> tensors = {tensor};
      return backend.broadcast(tensors, options);
    });
  }

  absl::Status health() const override {
    return watch_ == nullptr ? absl::OkStatus() : AsLostRank(watch_->failure());
  }
  void Fail(const absl::Status& status) override { watch_->Fail(status); }
  void Leave() override { watch_->Leave(); }
  void RequestStop(int code) override { watch_->RequestStop(code); }
  void OnStop(std::function<void(int)> on_stop) override { watch_->OnStop(std::move(on_stop)); }

 protected:
  absl::Status ReduceWithoutTimeout(const at::Tensor& tensor) override {
    ++num_started_;
    watch_->SetProgress(num_started_);
    try {
      std::vector<at::Tensor> tensors = {tensor};
      return Finish("agreement", num_started_, absl::InfiniteDuration(), gloo_->allreduce(tensors));
    } catch (const std::exception& error) {
      return FailWith("agreement", error);
    }
  }

 private:
  class C10dWork final : public ProcessGroup::Work {
   public:
    C10dWork(C10dGroup* group, std::string name, int64_t number,
             c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors)
        : group_(group),
          name_(std::move(name)),
          number_(number),
          work_(std::move(work)),
          tensors_(std::move(tensors)) {
      if (tensors_[0].device().is_cpu()) NoteEnd();
    }
    absl::Status Wait() override {
      if (!tensors_[0].device().is_cpu()) {
        return group_->FollowOnStream(name_, number_, work_, tensors_);
      }
      const absl::Time start = absl::Now();
      absl::Status status =
          group_->Finish(name_, number_, group_->options_.collective_timeout, work_);
      CollectiveStats& stats = group_->StatsOf(name_);
      stats.seconds += absl::ToDoubleSeconds(absl::Now() - start);
      const int64_t end_ns = end_ns_->load();
      stats.busy_seconds +=
          absl::ToDoubleSeconds((end_ns > 0 ? absl::FromUnixNanos(end_ns) : absl::Now()) - start_);
      return status;
    }

   private:
    // The operation ends on a thread of c10d.
    void NoteEnd() {
      try {
        work_->getFuture()->addCallback([end_ns = end_ns_](c10::ivalue::Future&) {
          end_ns->store(absl::ToUnixNanos(absl::Now()));
        });
      } catch (const std::exception&) {
        // Work without a future counts as ended when Wait returns.
      }
    }

    C10dGroup* const group_;
    const std::string name_;
    const int64_t number_;
    const c10::intrusive_ptr<c10d::Work> work_;
    const std::vector<at::Tensor> tensors_;  // kept until the collective is over
    const absl::Time start_ = absl::Now();
    const std::shared_ptr<std::atomic<int64_t>> end_ns_ = std::make_shared<std::atomic<int64_t>>(0);
  };

  c10::intrusive_ptr<c10d::Backend> MakeGloo() {
    auto options = c10d::ProcessGroupGloo::Options::create(ToChrono(options_.connect_timeout));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address_));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("gloo", store_), static_cast<int>(rank()),
        static_cast<int>(world_size()), options);
    gloo->setTimeout(kGlooTimeout);
    return gloo;
  }

  // The largest tensor must come first.
  WorkPtr Start(const std::string& name, std::vector<at::Tensor> tensors,
                const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& begin) {
    for (const at::Tensor& tensor : tensors) TAOPD_CHECK(tensor.is_contiguous());
    ++num_started_;
    watch_->SetProgress(num_started_);
    CollectiveStats& stats = StatsOf(name);
    ++stats.num_calls;
    stats.num_bytes += static_cast<int64_t>(tensors[0].nbytes());
    if (absl::Status failure = health(); !failure.ok()) return Finished(failure);
    const bool on_cpu = tensors[0].device().is_cpu();
    try {
      return std::make_unique<C10dWork>(this, name, num_started_, begin(on_cpu ? *gloo_ : *nccl_),
                                        std::move(tensors));
    } catch (const std::exception& error) {
      return Finished(FailWith(name, error));
    }
  }

  // Lets the current stream wait for a collective of NCCL: work that is queued from now on sees its
  // result. If the collective fails or hangs later, so does the group, and a process that then
  // hangs on the device ends after options.grace with exit code 69.
  absl::Status FollowOnStream(const std::string& name, int64_t number,
                              const c10::intrusive_ptr<c10d::Work>& work,
                              const std::vector<at::Tensor>& tensors) {
    try {
      // wait() only queues a wait. With a time-out, it would end NCCL's communicator.
      work->wait();
    } catch (const std::exception& error) {
      return FailWith(name, error);
    }
    if (absl::Status failure = health(); !failure.ok()) {
      is_broken_ = true;
      return failure;
    }
    // The watch keeps the tensors until the collective has ended.
    on_stream_->Add({name, number, absl::Now() + options_.collective_timeout, [work, tensors] {
                       if (!work->isCompleted()) return false;
                       if (work->exception()) std::rethrow_exception(work->exception());
                       return true;
                     }});
    return absl::OkStatus();
  }

  // Fails the group while other threads of this process may wait for the device.
  void FailFromStream(const CollectiveWatch::Collective& collective, const std::string& error) {
    is_broken_ = true;
    watch_->Fail(error.empty() ? Late(collective.name, collective.number)
                               : Unavailable(collective.name, ": ", error));
  }
  // Ends a process whose threads wait for the device, since none of them reports the failure.
  void EndStuck() {
    LogError("ending now: a collective on the device has failed, and this process still waits",
             {{"rank", rank()}, {"error", health()}});
    _exit(kExitUnavailable);
  }

  absl::Status Late(const std::string& name, int64_t number) const {
    const auto [slowest, progress] = watch_->Slowest();
    return Unavailable(name, " (collective ", number, ") has waited ",
                       absl::FormatDuration(options_.collective_timeout), " for rank ", slowest,
                       ", which has begun ", progress);
  }

  // Returns whether the collective has ended. Throws its error.
  static bool WaitForOneSlice(c10d::Work& work) {
    try {
      return work.wait(kSlice);
    } catch (const std::exception&) {
      if (!work.isCompleted()) return false;
      return work.wait();  // it has ended just after the time-out, or has failed and throws again
    }
  }

  absl::Status Finish(const std::string& name, int64_t number, absl::Duration timeout,
                      const c10::intrusive_ptr<c10d::Work>& work) {
    const absl::Time deadline = absl::Now() + timeout;
    while (true) {
      try {
        if (WaitForOneSlice(*work)) return absl::OkStatus();
      } catch (const std::exception& error) {
        return FailWith(name, error);
      }
      if (absl::Status failure = health(); !failure.ok()) {
        is_broken_ = true;
        return failure;
      }
      if (absl::Now() < deadline) continue;
      is_broken_ = true;
      const absl::Status late = Late(name, number);
      watch_->Fail(late);
      return AsLostRank(late);
    }
  }

  // Returns c10d's error, or the watch's, which has the rank's number.
  absl::Status FailWith(const std::string& name, const std::exception& error) {
    is_broken_ = true;
    const absl::Time deadline = absl::Now() + kFailureReportWait;
    while (health().ok() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    if (absl::Status failure = health(); !failure.ok()) return failure;
    const absl::Status failed = Unavailable(name, ": ", FirstLine(error));
    watch_->Fail(failed);
    return AsLostRank(failed);
  }

  const ProcessGroupOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<RankWatch> watch_;
  std::string address_;  // address of this machine for the other ranks
  c10::intrusive_ptr<c10d::Backend> gloo_, nccl_;
  int64_t num_started_ = 0;
  std::atomic<bool> is_broken_ = false;
  std::unique_ptr<CollectiveWatch> on_stream_;  // with NCCL; the last: its thread uses the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectC10dGroup(const Rendezvous& rendezvous,
                                                               const ProcessGroupOptions& options) {
  // c10d writes to connections whose other end may have died, and handles the error, not the
  // signal.
  std::signal(SIGPIPE, SIG_IGN);
  auto group = std::make_unique<C10dGroup>(rendezvous, options);
  try {
    TAOPD_RETURN_IF_ERROR(group->Open());
  } catch (const std::exception& error) {
    absl::Status failure = group->health();
    if (!failure.ok()) return failure;
    const std::string where = rendezvous.store_file.empty()
                                  ? Concat(rendezvous.master_addr, ":", rendezvous.master_port)
                                  : rendezvous.store_file;
    return Unavailable("rank ", rendezvous.rank, " of ", rendezvous.world_size,
                       " cannot join the others at ", where, ": ", FirstLine(error));
  }
  return group;
}

}  // namespace taopd
