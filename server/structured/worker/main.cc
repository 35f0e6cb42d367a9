// taopd-grammar: the part of taopd-teacher that constrains texts to grammars, as a process of its
// own. Only the teacher starts it.
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "server/structured/limits.h"
#include "server/structured/worker/grammar_server.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::cout << "taopd-grammar " << TAOPD_VERSION << "\n";
    return 0;
  }
  if (argc != 2 || std::strcmp(argv[1], taopd::kGrammarServeFlag) != 0) {
    std::cerr << "taopd-grammar is started by taopd-teacher\n";
    return 64;
  }
  return taopd::RunGrammarServer(taopd::kGrammarSocketFd);
}
