// Structured output: turns what clients ask of a text's form into masks of the ids that may follow
// (LogitMask in engine.h).
//
// What clients send is compiled and followed by one process of the program taopd-grammar
// (grammar_host.h), which has nothing of the server's and limits on time and memory (limits.h).
// Compiled forms are kept for the next request; those that were used least recently go first.
// Clients take turns with the compiler (turn_queue.h). A form that ends the process twice is
// refused for a while (form_blame.h).
//
// A mask is computed while the model computes; docs/teacher-api.md says what it costs.
//
// Thread-safe. Masks outlive the compiler, but fail then.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/text/tokenizer/tokenizer.h"
#include "server/structured/form_blame.h"
#include "server/structured/grammar_host.h"
#include "server/structured/grammar_spec.h"
#include "server/structured/grammar_text.h"
#include "server/structured/turn_queue.h"

namespace taopd {

struct GrammarCompilerOptions {
  GrammarHostOptions host;
  // Grammars that wait to be compiled, of all clients and of one.
  size_t max_waiting = 256;
  size_t max_client_waiting = 32;
  // Forms that are kept, those that requests use included, and what they may take together.
  size_t max_forms = 256;
  int64_t max_form_bytes = int64_t{256} << 20;
  absl::Duration blame_memory = absl::Minutes(10);  // see FormBlame
};

// The bytes of each id of the model; empty for special ids and for those beyond the tokenizer's.
std::vector<std::string> TokenBytesOf(const Tokenizer& tokenizer, int64_t vocab_size);

class GrammarCompiler {
 public:
  // Receives the grammar or why there is none, once, on the compiler's thread. Must not block.
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<Grammar>>)>;

  // Starts the program when the first grammar is compiled. token_bytes as in TokenBytesOf; eos_ids
  // are the ids that end a text of this model.
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
  //   RESOURCE_EXHAUSTED   too many grammars wait or are in use
  //   DEADLINE_EXCEEDED, CANCELLED
  //   UNAVAILABLE          the program does not run, or ended several times for other reasons
  struct Request {
    GrammarSpec spec = {};
    std::string field = {};   // of the request, for messages
    std::string client = {};  // its name, for its turns
    absl::Time deadline = absl::InfiniteFuture();
    std::function<bool()> is_gone = nullptr;  // optional; called on the compiler's thread
  };
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
    std::shared_ptr<Grammar> grammar;
    int64_t num_bytes = 0;
  };

  // The functions below run on the host's thread.
  void TakeJob();
  // True if the job is done, false if it is being compiled.
  bool Begin(Job& job);
  void Finish(Job& job, absl::StatusOr<std::shared_ptr<Grammar>> grammar);
  absl::Status Keep(Kept kept);
  // Forgets a form that nobody uses, the one that was used least recently. False if there is none.
  bool DropOne();

  const bool has_eos_;
  const GrammarCompilerOptions options_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  TurnQueue<Job> jobs_ ABSL_GUARDED_BY(mutex_);

  // Of the host's thread.
  bool is_compiling_ = false;
  std::list<Kept> kept_;  // the last used first
  int64_t kept_bytes_ = 0;
  FormBlame blame_;

  GrammarHost host_;  // last: its thread uses all of the above
};

}  // namespace taopd
