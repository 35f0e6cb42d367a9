#include "kernels/torch/self_check/self_check.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/torch/device_call.h"

namespace taopd {
namespace {

using Outcome = KernelVerdict::Outcome;

constexpr int kTimedRuns = 3;

void Synchronize(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double Measured(at::Device device, const std::function<void()>& run) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimedRuns; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    Synchronize(device);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  return best;
}

// Runs `work` and returns the text of its exception, if it throws one.
std::optional<std::string> ErrorOf(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Runs `work` on a thread of its own and returns true when it has returned, or false after limit_s
// seconds: a kernel that hangs holds its thread, and nothing can interrupt it. The thread then runs
// on by itself, so `work` must own what it uses. Exceptions of `work` are thrown here.
bool RunWithLimit(double limit_s, std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  std::thread thread(std::move(task));
  if (done.wait_for(std::chrono::duration<double>(limit_s)) != std::future_status::ready) {
    thread.detach();
    return false;
  }
  thread.join();
  done.get();
  return true;
}

std::string Number(const char* format, double x) {
  char text[32];
  std::snprintf(text, sizeof(text), format, x);
  return text;
}

// Returns all trials, in the order of KernelKind.
std::vector<TrialKind> AllTrials() {
  std::vector<TrialKind> all;
  for (const auto trials : {LayerTrials, AttentionTrials, HeadTrials, UpdateTrials}) {
    for (const TrialKind& kind : trials()) all.push_back(kind);
  }
  return all;
}

// The parts of a trial. Making the inputs is part of the composition.
constexpr char kComposition[] = "the composition";
constexpr char kKernel[] = "the kernel";
constexpr char kComparison[] = "the comparison";

// Everything that a trial's thread uses, so that it may outlive the check.
struct Attempt {
  SelfCheckShape shape;
  DeviceKernels kernels;
  SelfCheckOptions options;
  TrialKind kind;
  KernelVerdict verdict;
  // The part of the trial that runs now; the message about a hang names it.
  std::atomic<const char*> part = kComposition;

  double SecondsOf(const std::function<void()>& run) const {
    return options.time ? options.time(run) : Measured(shape.device, run);
  }

  void Run() {
    const at::NoGradGuard no_grad;
    std::unique_ptr<Trial> trial;
    // Errors of a device are asynchronous, so each part waits for its own.
    const auto composed = ErrorIn(kComposition, [&] {
      trial = kind.make(shape, kernels, options.seed);
      trial->RunComposed();
      Synchronize(shape.device);
    });
    if (composed) return End(Outcome::kNotChecked, *composed);
    const auto custom = ErrorIn(kKernel, [&] {
      trial->RunCustom();
      Synchronize(shape.device);
    });
    if (custom) return End(Outcome::kFailed, *custom);
    const auto compared = ErrorIn(kComparison, [&] { FindWorst(trial->Errors()); });
    if (compared) return End(Outcome::kNotChecked, *compared);
    if (!(verdict.worst.error <= verdict.worst.allowed)) return End(Outcome::kWrong, "");
    double seconds = 0;
    const auto timed = ErrorIn(kKernel, [&] { seconds = SecondsOf([&] { trial->RunCustom(); }); });
    if (timed) return End(Outcome::kFailed, *timed);
    const auto timed_composed = ErrorIn(kComposition, [&] {
      verdict.speedup = SecondsOf([&] { trial->RunComposed(); }) / seconds;
    });
    if (timed_composed) return End(Outcome::kNotChecked, *timed_composed);
    End(verdict.speedup * kSlowerBy < 1 ? Outcome::kSlower : Outcome::kTrusted, "");
  }

 private:
  std::optional<std::string> ErrorIn(const char* now, const std::function<void()>& work) {
    part = now;
    return ErrorOf(work);
  }

  void FindWorst(const std::vector<OutputError>& errors) {
    double worst = -1;
    for (const OutputError& error : errors) {
      const double times = error.allowed > 0 ? error.error / error.allowed
                           : error.error > 0 ? std::numeric_limits<double>::infinity()
                                             : 0;
      if (times <= worst) continue;
      worst = times;
      verdict.worst = error;
    }
  }

  void End(Outcome outcome, const std::string& problem) {
    verdict.outcome = outcome;
    verdict.problem = problem;
    if (outcome == Outcome::kFailed || outcome == Outcome::kNotChecked) {
      verdict.device_is_lost = !DeviceAnswers(shape.device);
    }
  }
};

KernelVerdict Check(const SelfCheckShape& shape, const DeviceKernels& kernels,
                    const SelfCheckOptions& options, const TrialKind& kind) {
  const std::shared_ptr<Attempt> attempt(new Attempt{shape, kernels, options, kind, {}});
  attempt->verdict.kind = kind.kind;
  if (RunWithLimit(options.limit_s, [attempt] { attempt->Run(); })) return attempt->verdict;
  KernelVerdict hangs;
  hangs.kind = kind.kind;
  hangs.outcome = Outcome::kHangs;
  hangs.problem =
      "after " + Number("%g", options.limit_s) + " s it was still in " + attempt->part.load();
  return hangs;
}

std::string ErrorText(const OutputError& worst) {
  return "error " + Number("%.1e", worst.error) + " of " + Number("%.1e", worst.allowed) +
         " allowed (" + worst.name + ")";
}

}  // namespace

std::vector<KernelVerdict> CheckKernels(const SelfCheckShape& shape, const DeviceKernels& kernels,
                                        const SelfCheckOptions& options) {
  std::vector<KernelVerdict> verdicts;
  for (const TrialKind& kind : AllTrials()) {
    if (kind.only_training && !shape.trains) continue;
    verdicts.push_back(Check(shape, kernels, options, kind));
    if (verdicts.back().outcome == Outcome::kHangs || verdicts.back().device_is_lost) break;
  }
  return verdicts;
}

std::string Describe(const KernelVerdict& verdict) {
  const std::string name = std::string(NameOf(verdict.kind)) + ": ";
  switch (verdict.outcome) {
    case Outcome::kTrusted:
      return name + "custom, " + Number("%.1fx", verdict.speedup) + ", " + ErrorText(verdict.worst);
    case Outcome::kWrong:
      return name + "composed, because the kernel is wrong: " + ErrorText(verdict.worst);
    case Outcome::kSlower:
      return name + "composed, because the kernel is slower: " + Number("%.2fx", verdict.speedup) +
             ", " + ErrorText(verdict.worst);
    case Outcome::kFailed:
      return name + "composed, because the kernel failed: " + verdict.problem;
    case Outcome::kHangs:
      return name + "the trial hangs: " + verdict.problem;
    case Outcome::kNotChecked:
      return name + "custom, not checked, because the composition failed: " + verdict.problem;
  }
  return name;
}

KernelChoice TrustedKernels(const std::vector<KernelVerdict>& verdicts) {
  KernelChoice choice = KernelChoice::Custom();
  for (const KernelVerdict& verdict : verdicts) {
    if (!verdict.IsUsed()) choice = choice.Without(verdict.kind);
  }
  return choice;
}

}  // namespace taopd
