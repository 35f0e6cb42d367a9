// The exit codes of both programs (after sysexits.h): what a scheduler needs to decide between
// retrying and giving up.
#pragma once

namespace taopd {

enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 64,        // the command line or the configuration
  kExitData = 65,         // data, model or checkpoint files
  kExitUnavailable = 69,  // a port is in use, or a teacher stays away beyond the outage budget
  kExitInternal = 70,
  kExitOutOfMemory = 71,  // the memory of the machine or the device did not suffice
  kExitStorage = 74,      // the state could not be written, and the run was told to give up
  kExitStopped = 75,      // asked to stop; the state is saved, start again with --resume
  kExitNumerics = 76,     // the loss or the gradients stayed non-finite
};

}  // namespace taopd
