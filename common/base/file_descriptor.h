// A file descriptor that is closed when the object is destroyed. Not thread-safe.
#pragma once

#include <unistd.h>

namespace taopd {

class FileDescriptor {
 public:
  // Takes ownership of the descriptor; a negative number means that there is none.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace taopd
