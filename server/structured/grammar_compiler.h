// Structured output: turns what a client prescribes (a JSON schema, a regular expression or a
// grammar; all of them are called grammars here) into masks of the ids that may come next
// (LogitMask in engine_request.h).
//
// One process of the program taopd-grammar (grammar_host.h) compiles the grammars and matches the
// texts against them. It can reach nothing of the server's, and its time and memory are limited
// (limits.h). Compiled grammars are kept for later requests; the least recently used one is dropped
// first. Clients take turns with the compiler (turn_queue.h). A grammar that ends the process twice
// is refused for a while (grammar_strikes.h).
//
// Masks are computed while the model computes; docs/teacher/structured-output.md says what they
// cost.
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

#include "common/base/sharing/turn_queue.h"
#include "common/base/status.h"
#include "common/text/tokenizer/tokenizer.h"
#include "server/structured/grammar_host.h"
#include "server/structured/grammar_spec.h"
#include "server/structured/grammar_strikes.h"
#include "server/structured/grammar_text.h"

namespace taopd {

struct GrammarCompilerOptions {
  GrammarHostOptions host;
  // Limits of the grammars that wait to be compiled, for all clients and for each.
  size_t max_waiting = 256;
  size_t max_client_waiting = 32;
  // Limits of the compiled grammars that are kept, including those in use: their number and their
  // total size. One client may use a share of both.
  size_t max_grammars = 256;
  int64_t max_compiled_bytes = int64_t{256} << 20;
};

// Returns the bytes of each id of the model; they are empty for special ids and for ids that the
// tokenizer does not have.
std::vector<std::string> TokenBytesOf(const Tokenizer& tokenizer, int64_t vocab_size);

class GrammarCompiler {
 public:
  // Called once, with the grammar or the reason why there is none, on the host's thread or, if the
  // request is refused, within Submit. Must not block.
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<Grammar>>)>;

  // The program is started when the first grammar is compiled. token_bytes comes from TokenBytesOf;
  // eos_ids are the ids that end a text of this model.
  GrammarCompiler(std::vector<std::string> token_bytes, std::vector<int32_t> eos_ids,
                  GrammarCompilerOptions options = {});
  // Pending calls of `done` receive CANCELLED.
  ~GrammarCompiler();

  // A grammar to compile.
  struct Request {
    GrammarSpec spec = {};
    std::string field = {};   // the request's field that holds the spec, for messages
    std::string client = {};  // the client's name, for turns
    absl::Time deadline = absl::InfiniteFuture();
    std::function<bool()> is_gone = nullptr;  // optional; Submit calls it on the host's thread
  };
  // Never blocks. The request is dropped without being compiled if is_gone() returns true or its
  // deadline has passed. Errors are
  //   INVALID_ARGUMENT     the spec exceeds a limit, is malformed or is not supported; the message
  //                        begins with `field` and says which
  //   FAILED_PRECONDITION  the model has no id that ends a text
  //   RESOURCE_EXHAUSTED   too many grammars wait or are in use, or those in use are too large
  //   DEADLINE_EXCEEDED, CANCELLED
  //   UNAVAILABLE          the program does not run, or ended several times for other reasons
  void Submit(Request request, Done done);
  // Submits the request and waits for the result, or until the client has gone.
  absl::StatusOr<std::shared_ptr<Grammar>> Compile(Request request);

 private:
  struct Job {
    Request request;
    Done done;
  };
  struct Kept {
    std::string key;
    std::string client;  // the first of its present users
    std::shared_ptr<Grammar> grammar;
    int64_t num_bytes = 0;
  };

  // The functions below run on the host's thread.
  // Takes the next job, if any, and begins it.
  void StartJob();
  void Begin(Job job);
  void Finish(Job& job, absl::StatusOr<std::shared_ptr<Grammar>> grammar);
  absl::Status Keep(Kept kept);
  // Returns RESOURCE_EXHAUSTED if a client that uses grammars would hold more than its share
  // (fair_share.h) with a further one of this size.
  absl::Status CheckShare(const std::string& client, int64_t num_bytes) const;
  // Drops the least recently used grammar that nobody holds. Returns false if there is none.
  bool DropOne();

  const bool has_eos_;
  const GrammarCompilerOptions options_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  TurnQueue<Job> jobs_ ABSL_GUARDED_BY(mutex_){/*num_turns=*/1};

  // Used only by the host's thread.
  std::list<Kept> kept_;  // most recently used first
  int64_t kept_bytes_ = 0;
  GrammarStrikes strikes_{/*memory=*/absl::Minutes(10)};

  GrammarHost host_;  // last: its thread uses all of the above
};

}  // namespace taopd
