// The server's end of a process of taopd-grammar: its life and its socket. No call blocks, except
// that the destructor waits for the process, which it has killed. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"
#include "server/structured/wire.h"

namespace taopd {

class GrammarProgram {
 public:
  // Starts the program. Returns UNAVAILABLE if there is none.
  static absl::StatusOr<std::unique_ptr<GrammarProgram>> Start(const std::string& program);
  ~GrammarProgram();
  GrammarProgram(const GrammarProgram&) = delete;
  GrammarProgram& operator=(const GrammarProgram&) = delete;

  pid_t pid() const { return pid_; }
  int fd() const { return socket_.get(); }  // for poll

  // Queues a frame.
  void Send(const std::string& frame) { unsent_ += Framed(frame); }
  size_t num_unsent() const { return unsent_.size() - begin_; }
  // Sends as much as the socket takes.
  void Flush();
  // Takes frames that have come. Returns UNAVAILABLE if the process has ended, and DATA_LOSS if it
  // sends what no taopd-grammar would; the frames before that are in `frames`.
  absl::Status Receive(size_t max_frame_bytes, std::vector<std::string>* frames);

  // What the process said when it ended; a reason of 0 if it said nothing.
  LastWord ReadLastWord();

 private:
  GrammarProgram(pid_t pid, int socket, int last_word)
      : pid_(pid), socket_(socket), last_word_(last_word) {}

  pid_t pid_;  // 0 = it has not been started
  const FileDescriptor socket_;
  const FileDescriptor last_word_;
  std::string unsent_;
  size_t begin_ = 0;  // of what has not been sent
  FrameBuffer received_;
};

}  // namespace taopd
