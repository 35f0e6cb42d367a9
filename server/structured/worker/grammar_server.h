// taopd-grammar compiles grammars and computes masks of the ids that may come next (wire.h). Only
// this process parses, compiles and matches what clients send. It runs in a sandbox (sandbox.h), so
// that no grammar can hurt the server. The main thread reads, one thread compiles and one computes
// masks, so that the server's messages are read at once even during a long compilation.
//
// A compilation or a mask that takes too long, or crashes, ends the process with a crash report.
// One that runs out of memory fails alone.
#pragma once

namespace taopd {

// Serves until the server closes the socket. Returns the exit code.
int RunGrammarServer(int fd);

}  // namespace taopd
