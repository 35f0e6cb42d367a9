// taopd-grammar: compiles forms and says which ids may follow (wire.h). What clients send is read,
// compiled and matched in this process alone, in a sandbox (sandbox.h), so that nothing in it can
// hurt the server. The main thread reads, one thread compiles, and one computes masks, so that
// neither a compilation nor a mask makes the server wait until its messages are read.
//
// A compilation or a mask that takes too long, or crashes, ends the process with a last word. Lack
// of memory fails what lacks it.
#pragma once

namespace taopd {

// Serves until the other side closes the socket. Returns the exit code.
int RunGrammarServer(int fd);

}  // namespace taopd
