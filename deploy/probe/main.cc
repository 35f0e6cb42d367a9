// taopd-probe ADDRESS:PORT/PATH...: asks HTTP servers in turn and exits with 0 as soon as one
// answers 200, with 1 if none does, and with 64 if an argument cannot be parsed. It waits for at
// most two seconds for a connection, and two for an answer. It serves as the health check of
// containers, which have neither a shell nor curl, and needs only libc.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr timeval kTimeout = {.tv_sec = 2, .tv_usec = 0};
constexpr int kUnhealthy = 1;
constexpr int kUsage = 64;

// Sends a request and reads the beginning of the answer. Returns true if the status is 200.
bool AnswersOk(const sockaddr_in& address, const std::string& host, const std::string& path) {
  const int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connection < 0) return false;
  ::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof(kTimeout));
  ::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kTimeout, sizeof(kTimeout));
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
  std::string status_line("HTTP/1.x 200");
  // With MSG_WAITALL, the time limit is that of the whole line, in however many pieces it comes.
  const bool is_answered =
      ::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::send(connection, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size()) &&
      ::recv(connection, status_line.data(), status_line.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(status_line.size());
  ::close(connection);
  return is_answered && status_line.rfind("HTTP/1.", 0) == 0 &&
         status_line.compare(8, 4, " 200") == 0;
}

struct Target {
  sockaddr_in address{};
  std::string host;
  std::string path;
};

// Parses a target such as "127.0.0.1:8000/health". Returns false if the text is malformed.
bool ReadTarget(const std::string& text, Target* target) {
  const size_t colon = text.find(':');
  const size_t slash = text.find('/');
  if (colon == std::string::npos || slash == std::string::npos || colon > slash) return false;
  const std::string port_text = text.substr(colon + 1, slash - colon - 1);
  char* end = nullptr;
  const long port = std::strtol(port_text.c_str(), &end, 10);
  if (port_text.empty() || *end != '\0' || port < 1 || port > 65535) return false;
  target->address.sin_family = AF_INET;
  target->address.sin_port = htons(static_cast<uint16_t>(port));
  target->host = text.substr(0, slash);
  target->path = text.substr(slash);
  return ::inet_pton(AF_INET, text.substr(0, colon).c_str(), &target->address.sin_addr) == 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Target> targets(argc > 1 ? static_cast<size_t>(argc) - 1 : 0);
  bool is_read = !targets.empty();
  for (size_t i = 0; i < targets.size() && is_read; ++i) {
    is_read = ReadTarget(argv[i + 1], &targets[i]);
    if (!is_read) std::fprintf(stderr, "taopd-probe: %s is not ADDRESS:PORT/PATH\n", argv[i + 1]);
  }
  if (!is_read) {
    std::fputs("usage: taopd-probe IPV4:PORT/PATH...\n", stderr);
    return kUsage;
  }
  for (const Target& target : targets) {
    if (AnswersOk(target.address, target.host, target.path)) return 0;
  }
  return kUnhealthy;
}
