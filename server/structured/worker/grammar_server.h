// taopd-grammar: compiles one grammar a process and says which ids may follow (wire.h). What clients
// send is read, compiled and matched in these processes alone, so that nothing in it can hurt the
// server: a grammar that takes too long, takes too much memory or crashes ends its own process.
//
// Each process has one thread, and is first in line when the system runs out of memory.
#pragma once

namespace taopd {

// Reads the vocabulary from the socket, and forks for each descriptor that comes through it. Returns
// the exit code when the other side closes the socket.
int RunGrammarServer(int fd);

}  // namespace taopd
