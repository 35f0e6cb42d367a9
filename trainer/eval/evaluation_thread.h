// An evaluation on a thread of its own, while its caller does other work.
//
// With several ranks the thread must not use their group, which belongs to the thread that trains.
// An evaluation that exchanges results with other ranks therefore stops at that point and is ready:
//
//   EvaluationThread evaluation(measure);             // all ranks
//   ... other work; if all ranks are IsReady(): ...
//   result = evaluation.Take(exchange);               // all ranks; exchange uses the group
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/eval/accuracy.h"

namespace taopd {

// One thread owns and uses the object.
class EvaluationThread {
 public:
  // Exchanges results between ranks, as AccuracyPart::gather does.
  using Exchange = std::function<absl::StatusOr<std::vector<std::string>>(
      const absl::StatusOr<std::string>& mine)>;
  // Evaluates on the object's thread. Must call `on_wait` often, and return any error from it. May
  // call `exchange` once. Must not throw.
  using Measure = std::function<absl::StatusOr<EvalResult>(
      const Exchange& exchange, const std::function<absl::Status()>& on_wait)>;

  // Starts the thread.
  explicit EvaluationThread(Measure measure);
  // Cancels the evaluation and waits for the thread.
  ~EvaluationThread();
  EvaluationThread(const EvaluationThread&) = delete;
  EvaluationThread& operator=(const EvaluationThread&) = delete;

  // Waits at most `timeout` for the evaluation to end or to reach the exchange. Returns whether it
  // has.
  bool IsReady(absl::Duration timeout = absl::ZeroDuration());
  // Makes on_wait return `why`.
  void Cancel(const absl::Status& why);
  // Returns the result. If `exchange` is not null, calls it once; if the evaluation failed before
  // its exchange, passes that error to it. REQUIRES: IsReady, and Take was not called before.
  absl::StatusOr<EvalResult> Take(const Exchange& exchange);

 private:
  absl::StatusOr<std::vector<std::string>> WaitForExchange(const absl::StatusOr<std::string>& mine);
  bool is_ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return own_outcome_ || result_; }

  absl::Mutex mutex_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  // The outcomes that the evaluation gives to the exchange, and those that it gets from it.
  std::optional<absl::StatusOr<std::string>> own_outcome_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::StatusOr<std::vector<std::string>>> all_outcomes_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::StatusOr<EvalResult>> result_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last, because it uses all of the above
};

}  // namespace taopd
