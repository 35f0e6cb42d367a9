// The ranks of a run as a group that computes together: collectives of c10d (Gloo on the CPU, NCCL
// on CUDA), agreement on errors, and the ranks' watch over each other (rank_watch.h).
//
//   TAOPD_ASSIGN_OR_RETURN(const Rendezvous rendezvous, ReadRendezvous(ProcessEnvironment()));
//   TAOPD_ASSIGN_OR_RETURN(auto group, ProcessGroup::Connect(rendezvous, options));
//   TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(LoadModel()));
//   TAOPD_RETURN_IF_ERROR(group->AllReduce(gradient, Reduction::kSum));
//   group->Leave();
//
// All ranks call the same collectives in the same order, with tensors of the same size and type,
// contiguous and on one device. A world of one needs no network, and its collectives only copy. If
// a rank dies, hangs or fails, the collectives of the others return UNAVAILABLE, or that rank's
// error, with the rank's number in the message and the payload kLostRankUrl (exit_code.h). A group
// in which a collective has failed cannot be used any more.
//
// Threads: one thread at a time calls the collectives, Work::Wait and stats. Collectives run in the
// order of the calls. Any thread may call the other functions.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/dist/rank_watch.h"
#include "common/dist/rendezvous.h"

namespace taopd {

struct ProcessGroupOptions {
  // A network interface, or an address of this machine, at which this rank listens
  // (rendezvous_addresses.h).
  std::string interface = {};
  // The time that the ranks wait for each other at the start.
  absl::Duration connect_timeout = absl::Minutes(10);
  // The time that a collective waits for the other ranks while all of them are alive.
  absl::Duration collective_timeout = absl::Minutes(30);
  // A rank that sends no heartbeat for this long has failed.
  absl::Duration silence = absl::Seconds(20);
  // If another rank has failed, this process ends after this time with exit code 69, whatever it is
  // doing.
  absl::Duration grace = absl::Seconds(8);
  // The device of the tensors: its type chooses Gloo or NCCL.
  at::Device device = at::kCPU;
};

enum class Reduction { kSum, kMax };

// The cost of one kind of collective so far.
struct CollectiveStats {
  int64_t num_calls = 0;
  int64_t num_bytes = 0;  // bytes of the larger tensor of each call, on this rank
  double seconds = 0;     // time that this rank's host has waited, on the CPU
  // The time between the calls and the ends of the operations, on the CPU. The part above `seconds`
  // was hidden behind other work.
  double busy_seconds = 0;
};

class ProcessGroup {
 public:
  // Joins the group that the launcher describes. Returns UNAVAILABLE if some rank does not join,
  // and INVALID_ARGUMENT if this machine does not have the interface. If the launcher does not say
  // how many ranks this machine has, the ranks with the same host name are counted. With several
  // ranks, the process ignores SIGPIPE from here on.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Connect(const Rendezvous& rendezvous,
                                                               const ProcessGroupOptions& options);
  // Returns a world of one.
  static std::unique_ptr<ProcessGroup> Alone();

  virtual ~ProcessGroup() = default;

  int64_t rank() const { return rendezvous_.rank; }
  int64_t world_size() const { return rendezvous_.world_size; }
  int64_t local_rank() const { return rendezvous_.local_rank; }
  int64_t local_world_size() const { return rendezvous_.local_world_size; }
  bool is_root() const { return rendezvous_.rank == 0; }

  // A collective in progress. Its tensors must not be touched before Wait has returned. It may be
  // destroyed without Wait.
  class Work {
   public:
    virtual ~Work() = default;
    // Waits for the end; on a GPU the current stream waits, not the host. Call it once.
    virtual absl::Status Wait() = 0;
  };
  using WorkPtr = std::unique_ptr<Work>;

  // Reduces in place, with the same result on every rank.
  virtual WorkPtr StartAllReduce(at::Tensor tensor, Reduction reduction) = 0;
  // output [world_size * n] becomes the ranks' inputs [n], one after the other.
  virtual WorkPtr StartAllGather(at::Tensor output, at::Tensor input) = 0;
  // output [world_size * n]: part r is the part of rank r's input that is for this rank.
  virtual WorkPtr StartAllToAll(at::Tensor output, at::Tensor input) = 0;
  virtual WorkPtr StartBroadcast(at::Tensor tensor, int64_t root) = 0;

  absl::Status AllReduce(const at::Tensor& tensor, Reduction reduction);
  absl::Status AllGather(const at::Tensor& output, const at::Tensor& input);
  absl::Status AllToAll(const at::Tensor& output, const at::Tensor& input);
  absl::Status Broadcast(const at::Tensor& tensor, int64_t root);

  // Returns the text of `root` on every rank; `text` is used only on that rank.
  absl::StatusOr<std::string> BroadcastText(const std::string& text, int64_t root);

  // All ranks call it, each with its own status. Returns OK if all are OK. Otherwise it returns, on
  // every rank, the failure of the first rank that has one, as "rank 2: message"; a lone rank's
  // message is not changed. Unlike the other collectives it waits without a limit as long as all
  // ranks are alive: one of them may be evaluating or waiting for a teacher.
  absl::Status AgreeOnStatus(const absl::Status& mine);
  // Returns the largest of the ranks' numbers. Waits as AgreeOnStatus does.
  absl::StatusOr<int64_t> AgreeOnLargest(int64_t mine);

  // Returns OK, or the first failure of a rank that this rank has seen. It is cheap: call it in
  // loops that wait for something other than the group.
  virtual absl::Status health() const = 0;
  // Ends the run of all ranks with an error of this rank that the others do not expect.
  virtual void Fail(const absl::Status& status) = 0;
  // Announces an orderly end: from now on this rank may go away.
  virtual void Leave() = 0;
  // RequestStop tells all ranks, this one included, soon and outside of any collective, that this
  // rank was asked to stop; OnStop receives the requests of all. See RankWatch.
  virtual void RequestStop(int code) = 0;
  virtual void OnStop(std::function<void(int)> on_stop) = 0;

  // The statistics by the name of the collective: "all_reduce".
  const std::map<std::string, CollectiveStats>& stats() const { return stats_; }

 protected:
  explicit ProcessGroup(Rendezvous rendezvous) : rendezvous_(std::move(rendezvous)) {}
  // Returns a collective that has already finished.
  static WorkPtr Finished(absl::Status status = absl::OkStatus());
  CollectiveStats& StatsOf(const std::string& name) { return stats_[name]; }
  // Runs an all-reduce on the CPU for agreements, without a time-out.
  virtual absl::Status ReduceWithoutTimeout(const at::Tensor& tensor) = 0;

  Rendezvous rendezvous_;  // changes only in Connect

 private:
  // Returns the numbers of all ranks.
  absl::StatusOr<std::vector<int64_t>> GatherWithoutTimeout(int64_t mine);

  std::map<std::string, CollectiveStats> stats_;
};

}  // namespace taopd
