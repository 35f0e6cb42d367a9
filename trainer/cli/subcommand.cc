#include "trainer/cli/subcommand.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/base/service/repeated_signals.h"

namespace taopd {
namespace {

std::string SavedText(const RunControl& control) {
  const int64_t step = control.status().saved_step;
  return step < 0 ? "nothing is saved" : Concat("nothing newer than step ", step, " is saved");
}

void HandleSignals(const sigset_t& signals, RunControl* control) {
  RepeatedSignals rule;
  while (true) {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0) continue;
    switch (rule.Observe(std::chrono::steady_clock::now())) {
      case SignalAction::kStop:
        LogInfo(Concat("saving, then stopping; another signal after ",
                       RepeatedSignals::kSameRequestFor.count(), " s ends the run now: so far ",
                       SavedText(*control)),
                {{"signal", signal}});
        control->RequestStop(kExitStopped);
        break;
      case SignalAction::kSameRequest:
        break;
      case SignalAction::kEndImmediately:
        if (control->status().phase == TrainerPhase::kWaitingForStorage) {
          control->RequestStop(kExitStopped);  // it gives up its state and says what is saved
          break;
        }
        LogWarning(Concat("ending now: ", SavedText(*control)), {{"signal", signal}});
        _exit(kExitEndedImmediately);
    }
  }
}

// Handles the signals that ask for an end on a thread, so that nothing runs in a handler.
void HandleSignalsWith(std::function<void(const sigset_t&)> handle) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every later thread
  std::thread([signals, handle = std::move(handle)] { handle(signals); }).detach();
}

}  // namespace

void StopOnSignals(std::shared_ptr<RunControl> control) {
  HandleSignalsWith([control = std::move(control)](const sigset_t& signals) {
    HandleSignals(signals, control.get());
  });
}

void EndOnSignals(std::string reason) {
  HandleSignalsWith([reason = std::move(reason)](const sigset_t& signals) {
    int signal = 0;
    while (sigwait(&signals, &signal) != 0) {
    }
    LogInfo("stopped", {{"signal", signal}, {"reason", reason}});
    _exit(kExitStopped);
  });
}

}  // namespace taopd
