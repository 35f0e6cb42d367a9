// A file descriptor that is closed when the object is destroyed. Not thread-safe.
#pragma once

#include <unistd.h>

#include <utility>

namespace taopd {

class FileDescriptor {
 public:
  // Takes ownership of the descriptor; a negative number means that there is none.
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() { Close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  // Closes the descriptor now, if there is one. Returns the result of close(2).
  int Close() { return fd_ < 0 ? 0 : ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

}  // namespace taopd
