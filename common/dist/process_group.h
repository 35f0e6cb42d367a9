// The ranks of a run as a group that computes together: collectives of c10d (Gloo on the CPU, NCCL
// on CUDA), agreement on errors, and the watch over each other (rank_watch.h).
//
//   TAOPD_ASSIGN_OR_RETURN(const Rendezvous where, ReadRendezvous(ProcessEnvironment()));
//   TAOPD_ASSIGN_OR_RETURN(auto group, ProcessGroup::Connect(where, options));
//   TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(LoadModel()));
//   TAOPD_RETURN_IF_ERROR(group->AllReduce(gradient, Reduction::kSum));
//   group->Leave();
//
// All ranks call the same collectives in the same order, with tensors of the same size and type,
// contiguous and on one device. A world of one needs no network, and its collectives do nothing but
// copy. If a rank dies, hangs or fails, the collectives of the others return UNAVAILABLE, or that
// rank's error, with the rank's number in the message. A group in which a collective has failed
// cannot be used any more.
//
// Threads: one thread at a time calls the collectives, which run in the order of the calls; any
// thread may call the rest.
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
  // (meeting_point.h).
  std::string interface = {};
  // How long the ranks wait for each other at the start.
  absl::Duration connect_timeout = absl::Minutes(10);
  // How long a collective waits for the others, all of whom live.
  absl::Duration collective_timeout = absl::Minutes(30);
  // A rank that gives no sign of life for so long has failed.
  absl::Duration silence = absl::Seconds(20);
  // If another rank has failed, this process ends after so long, whatever it is doing, with exit
  // code 69.
  absl::Duration grace = absl::Seconds(8);
  // The device of the tensors: its type chooses Gloo or NCCL.
  at::Device device = at::kCPU;
  // Let c10d compare what the ranks call, with its shapes, before each collective: an error in
  // place of a hang. Slow. Gloo only.
  bool check_collectives = false;
};

enum class Reduction { kSum, kMax };

// What one kind of collective has cost so far.
struct CollectiveStats {
  int64_t num_calls = 0;
  int64_t num_bytes = 0;  // of the larger tensor of each call, on this rank
  double seconds = 0;     // in which this rank has waited
  // Between the calls and the ends of the operations, on the CPU: what is above `seconds` was hidden
  // behind other work.
  double busy_seconds = 0;
};

class ProcessGroup {
 public:
  // Joins the group that the launcher describes. Returns UNAVAILABLE if the ranks do not all come,
  // INVALID_ARGUMENT if this machine has no such interface. If the launcher does not say how many
  // ranks this machine has, those with the same host name count.
  // With several ranks the process ignores SIGPIPE from here on.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Connect(const Rendezvous& rendezvous,
                                                               const ProcessGroupOptions& options);
  // A world of one.
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
    // Waits for the end. Call it once.
    virtual absl::Status Wait() = 0;
  };
  using WorkPtr = std::unique_ptr<Work>;

  // In place, with the same result on every rank.
  virtual WorkPtr StartAllReduce(at::Tensor tensor, Reduction reduction) = 0;
  // output [n] becomes the sum of the ranks' input [world_size * n] over this rank's n elements.
  virtual WorkPtr StartReduceScatter(at::Tensor output, at::Tensor input) = 0;
  // output [world_size * n] becomes the ranks' inputs [n], one after the other.
  virtual WorkPtr StartAllGather(at::Tensor output, at::Tensor input) = 0;
  // output [world_size * n]: part r is what rank r has at the place of this rank in its input.
  virtual WorkPtr StartAllToAll(at::Tensor output, at::Tensor input) = 0;
  virtual WorkPtr StartBroadcast(at::Tensor tensor, int64_t root) = 0;

  absl::Status AllReduce(const at::Tensor& tensor, Reduction reduction);
  absl::Status ReduceScatter(const at::Tensor& output, const at::Tensor& input);
  absl::Status AllGather(const at::Tensor& output, const at::Tensor& input);
  absl::Status AllToAll(const at::Tensor& output, const at::Tensor& input);
  absl::Status Broadcast(const at::Tensor& tensor, int64_t root);
  absl::Status Barrier();

  // As ReduceScatter, with the ranks' inputs added by SumTree: the same bits for any number of
  // ranks that divides the terms in powers of two. Needs memory for one more input.
  absl::Status ReduceScatterTree(const at::Tensor& output, const at::Tensor& input);

  // The text of `root` on every rank; `text` matters on that rank only.
  absl::StatusOr<std::string> BroadcastText(const std::string& text, int64_t root);

  // All ranks call it, each with its own status. Returns OK if all are OK; otherwise the failure of
  // the first rank that has one, on every rank, as "rank 2: message". A lone rank's is not changed.
  // Unlike the other collectives it waits as long as it takes, provided that all ranks live: one of
  // them may be evaluating or waiting for a teacher.
  absl::Status AgreeOnStatus(const absl::Status& mine);
  // The largest of the ranks' numbers; waits as AgreeOnStatus does.
  absl::StatusOr<int64_t> AgreeOnLargest(int64_t mine);

  // OK, or the failure of a rank that was seen so far. Cheap; for loops that wait for something
  // else than the group.
  virtual absl::Status health() const = 0;
  // Ends the run of all ranks with the error of this one, which they do not expect.
  virtual void Fail(const absl::Status& status) = 0;
  // Before the end in order: from now on this rank may go away.
  virtual void Leave() = 0;
  // Tells all ranks, soon and outside of any collective, that this one is asked to stop, and hears
  // what others are asked: see RankWatch.
  virtual void RequestStop(int code) = 0;
  virtual void OnStop(std::function<void(int)> on_stop) = 0;

  // By the name of the collective: "all_reduce".
  const std::map<std::string, CollectiveStats>& stats() const { return stats_; }

 protected:
  explicit ProcessGroup(Rendezvous rendezvous) : rendezvous_(std::move(rendezvous)) {}
  CollectiveStats& StatsOf(const std::string& name) { return stats_[name]; }
  // An all-reduce on the CPU for agreements, without a time-out.
  virtual absl::Status ReducePatiently(const at::Tensor& tensor) = 0;

  Rendezvous rendezvous_;  // changes in Connect only

 private:
  // The numbers of all ranks.
  absl::StatusOr<std::vector<int64_t>> GatherPatiently(int64_t mine);

  std::map<std::string, CollectiveStats> stats_;
};

}  // namespace taopd
