// A process of taopd-grammar as the server sees it: its life and its socket. No call blocks, except
// the destructor, which kills the process and waits for its end. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"
#include "server/structured/wire.h"

namespace taopd {

class GrammarProgram {
 public:
  // Returns UNAVAILABLE if the program cannot be started.
  static absl::StatusOr<std::unique_ptr<GrammarProgram>> Start(const std::string& program);
  ~GrammarProgram();
  GrammarProgram(const GrammarProgram&) = delete;
  GrammarProgram& operator=(const GrammarProgram&) = delete;

  pid_t pid() const { return pid_; }
  int fd() const { return socket_.get(); }  // for poll

  // Queues a frame.
  void Send(const std::string& frame) { unsent_ += Framed(frame); }
  size_t num_unsent() const { return unsent_.size() - begin_; }
  // Sends as much as the socket accepts.
  void Flush();
  // Appends the frames that have arrived. Returns UNAVAILABLE if the process has ended, and
  // DATA_LOSS if a frame is too large; `frames` then holds those before it.
  absl::Status Receive(size_t max_frame_bytes, std::vector<std::string>* frames);

  // Returns the crash report of the process that has ended; its reason is 0 if there is none.
  CrashReport ReadCrashReport();

 private:
  GrammarProgram(pid_t pid, int socket, int crash_report)
      : pid_(pid), socket_(socket), crash_report_(crash_report) {}

  pid_t pid_;  // 0 = it has not been started
  const FileDescriptor socket_;
  const FileDescriptor crash_report_;
  std::string unsent_;
  size_t begin_ = 0;  // offset of the first unsent byte
  FrameBuffer received_;
};

}  // namespace taopd
