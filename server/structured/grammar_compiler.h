// Structured output: turns what clients ask of a text's form into masks of the ids that may follow
// (LogitMask in engine.h).
//
// What clients send is compiled and followed by the program taopd-grammar (worker/grammar_server.h),
// in one process for each grammar, with limits on time and memory (limits.h). Compiled grammars are
// kept for the next request; those that were used least recently end first, of the client of which
// the most are kept. Clients take turns with the compiler (turn_queue.h), and none may use more than
// a share of the processes (grammar_uses.h).
//
// A mask is computed while the model computes, outside of this process; docs/teacher-api.md says what
// it costs.
//
// Thread-safe. Grammars and masks outlive the compiler.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/text/tokenizer/tokenizer.h"
#include "server/structured/grammar_process.h"
#include "server/structured/grammar_spec.h"
#include "server/structured/grammar_uses.h"
#include "server/structured/limits.h"
#include "server/structured/turn_queue.h"

namespace taopd {

struct GrammarCompilerOptions {
  std::string program;  // of taopd-grammar; empty = beside this program
  GrammarLimits limits;
  int num_threads = 2;  // grammars that are compiled at once
  // Grammars that wait to be compiled, of all clients and of one.
  size_t max_waiting = 256;
  size_t max_client_waiting = 32;
  // Processes at once, of those that requests use and of those that are kept for the next request.
  size_t max_grammars = 64;
  size_t max_kept = 32;
  // The part of max_grammars that one client may use while nobody else uses any.
  double max_client_share = 0.5;
};

// The bytes of each id of the model; empty for special ids and for those beyond the tokenizer's.
std::vector<std::string> TokenBytesOf(const Tokenizer& tokenizer, int64_t vocab_size);

class GrammarCompiler {
 public:
  // Receives the grammar or why there is none, once, on a thread of the compiler.
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<Grammar>>)>;

  // Starts the program when the first grammar is compiled. token_bytes as in TokenBytesOf; eos_ids are
  // the ids that end a text of this model.
  GrammarCompiler(std::vector<std::string> token_bytes, std::vector<int32_t> eos_ids,
                  GrammarCompilerOptions options = {});
  // Calls of `done` that are still to come receive CANCELLED.
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Never blocks. `client` asks, and its work is dropped without being compiled if is_gone() or the
  // deadline has passed. Errors are
  //   INVALID_ARGUMENT     the spec: beyond a limit, malformed, unsupported; the message says what,
  //                        and begins with `field`
  //   FAILED_PRECONDITION  the model has no id that ends a text
  //   RESOURCE_EXHAUSTED   too many grammars wait or are in use, of all clients or of this one
  //   DEADLINE_EXCEEDED, CANCELLED
  //   UNAVAILABLE          the program does not run
  struct Request {
    GrammarSpec spec = {};
    std::string field = {};   // of the request, for messages
    std::string client = {};  // its name, for its turns and its shares
    absl::Time deadline = absl::InfiniteFuture();
    std::function<bool()> is_gone = nullptr;  // optional; called on threads of the compiler
  };
  // The client uses the grammar as long as the pointer that `done` receives, a copy of it, or a mask
  // that was made from one, is held.
  void Submit(Request request, Done done);
  // The same, and waits for the result, or until the client has gone.
  absl::StatusOr<std::shared_ptr<Grammar>> Compile(Request request);

 private:
  struct Job {
    Request request;
    Done done;
  };
  struct Kept {
    std::string key;
    std::string client;  // that had it compiled
    absl::StatusOr<std::shared_ptr<Grammar>> grammar;
  };

  void Run();
  bool HasJob() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<Grammar>> Find(const Request& request);
  // What is known of the spec: a grammar, or that it is refused.
  const Kept* LookUp(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(const std::string& key, const std::string& client,
            absl::StatusOr<std::shared_ptr<Grammar>> grammar);
  // Of the grammars that are kept, or of those that are only kept, the one to end first.
  std::list<Kept>::iterator LeastNeeded(bool only_unused) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes it out.
  Kept Drop(std::list<Kept>::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes out grammars that nobody uses, until there may be as many processes.
  std::vector<Kept> MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A socket to a new process of taopd-grammar.
  absl::StatusOr<int> NewProcess();
  absl::Status StartProgram() ABSL_EXCLUSIVE_LOCKS_REQUIRED(program_mutex_);
  void EndProgram() ABSL_EXCLUSIVE_LOCKS_REQUIRED(program_mutex_);

  const std::vector<std::string> token_bytes_;
  const std::vector<int32_t> eos_ids_;
  const GrammarCompilerOptions options_;

  absl::Mutex program_mutex_;
  int program_fd_ ABSL_GUARDED_BY(program_mutex_) = -1;
  pid_t program_pid_ ABSL_GUARDED_BY(program_mutex_) = 0;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  TurnQueue<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::list<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // the last used first
  std::unordered_map<std::string, std::list<Kept>::iterator> kept_by_key_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<GrammarUses> uses_;  // which outlives this with the grammars that are used
  std::vector<std::thread> threads_;
};

}  // namespace taopd
