// The exit codes of all programs (after sysexits.h), by which a scheduler decides between retrying
// and giving up.
#pragma once

namespace taopd {

enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 64,  // the command line or the configuration
  kExitData = 65,   // data, model or checkpoint files
  // The server cannot listen (its port may be in use). The trainer has lost another rank, or a
  // server that it needs was away for longer than the outage budget.
  kExitUnavailable = 69,
  kExitInternal = 70,
  // The memory of the machine or the device did not suffice, or the memory plan does not fit.
  kExitOutOfMemory = 71,
  // The device refuses all work since a kernel failed on it. A new process may be able to use it.
  kExitDevice = 72,
  // The state could not be written, and the run was told to give up, or the disk has too little
  // space for a checkpoint at the start.
  kExitStorage = 74,
  // Stopped by a signal. The state is saved, and a scheduler starts the run again with --resume.
  kExitStopped = 75,
  kExitNumerics = 76,  // the loss or the gradients stayed non-finite, or a guard ended the run
  // Ended immediately by repeated signals: nothing newer than the newest checkpoint is saved.
  kExitEndedImmediately = 77,
  // Stopped by a person, or by a time limit that the user set. The state is saved, and no scheduler
  // may start the run again.
  kExitStoppedByUser = 78,
};

// The payload of an error of the ranks' group itself, as when another rank has died. Its exit code
// is kExitUnavailable, whichever one it is given later. Annotate keeps it.
inline constexpr char kLostRankUrl[] = "taopd.lost_rank";

// Returns whether the code means that the run was stopped in order, with its state saved. If both
// codes are requested, the larger one counts: a person's request outlasts an eviction.
constexpr bool IsStop(int code) { return code == kExitStopped || code == kExitStoppedByUser; }

}  // namespace taopd
