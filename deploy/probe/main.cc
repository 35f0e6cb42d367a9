// taopd-probe HOST:PORT/PATH: asks an HTTP server one question and ends with 0 if the answer is 200, with 1 if it is
// anything else or does not come within two seconds, and with 64 if the argument cannot be read. For health checks of
// containers, which have neither a shell nor curl. It needs nothing but libc.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr timeval kTimeout = {.tv_sec = 2, .tv_usec = 0};
constexpr int kUnhealthy = 1;
constexpr int kUsage = 64;

// Sends a request and reads the beginning of the answer; true if the status is 200.
bool AnswersOk(const sockaddr_in& address, const std::string& host, const std::string& path) {
  const int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connection < 0) return false;
  ::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof(kTimeout));
  ::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kTimeout, sizeof(kTimeout));
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
  std::string answer;
  if (::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::send(connection, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char buffer[64];
    ssize_t num_read = 0;
    while (answer.size() < std::strlen("HTTP/1.1 200") &&
           (num_read = ::recv(connection, buffer, sizeof(buffer), 0)) > 0) {
      answer.append(buffer, static_cast<size_t>(num_read));
    }
  }
  ::close(connection);
  return answer.rfind("HTTP/1.", 0) == 0 && answer.compare(8, 4, " 200") == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string target = argc == 2 ? argv[1] : "";
  const size_t colon = target.find(':');
  const size_t slash = target.find('/');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (colon == std::string::npos || slash == std::string::npos || colon > slash ||
      ::inet_pton(AF_INET, target.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    std::fputs("usage: taopd-probe IPV4:PORT/PATH\n", stderr);
    return kUsage;
  }
  const std::string port_text = target.substr(colon + 1, slash - colon - 1);
  char* end = nullptr;
  const long port = std::strtol(port_text.c_str(), &end, 10);
  if (port_text.empty() || *end != '\0' || port < 1 || port > 65535) {
    std::fprintf(stderr, "taopd-probe: port %s is not in 1..65535\n", port_text.c_str());
    return kUsage;
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  return AnswersOk(address, target.substr(0, slash), target.substr(slash)) ? 0 : kUnhealthy;
}
