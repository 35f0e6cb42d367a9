#include "trainer/cli/subcommand.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <thread>

#include "common/base/log.h"

namespace taopd {

int EndCommand(const std::optional<CommandFailure>& failure) {
  if (!failure) return kExitOk;
  std::cout.flush();
  if (failure->code == kExitStopped) {
    LogInfo("stopped", {{"reason", std::string(failure->status.message())}});
  } else {
    std::fprintf(stderr, "taopd-trainer: %s\n", std::string(failure->status.message()).c_str());
  }
  return failure->code;
}

// Signals are taken by one thread, so nothing runs in a handler.
void StopOnSignals(RunState* state) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every later thread
  std::thread([signals, state] {
    int signal = 0;
    sigwait(&signals, &signal);
    LogInfo("stopping after this step", {{"signal", signal}});
    state->RequestStop();
    sigwait(&signals, &signal);
    // A run that waits for room ends in order: it says what is saved.
    while (state->status().phase == TrainerPhase::kWaitingForStorage) {
      state->RequestStop();
      sigwait(&signals, &signal);
    }
    LogWarning("ending at once; the newest checkpoint stays", {{"signal", signal}});
    _exit(kExitStopped);
  }).detach();
}

}  // namespace taopd
