// Runs taopd-grammar: starts it on demand, sends it compilations and requests for masks (wire.h),
// and restarts it when it ends, hangs or breaks the protocol.
//
// One thread owns the process, its socket, the grammars and the texts. It waits only in poll, and
// other threads wait only for the short lock of HostTasks or of a text. So neither a full buffer
// nor a process that hangs can hold up the engine's thread.
//
// No work is lost when the process ends. Grammars are compiled again and texts are opened again
// when their next mask is asked for; work that is still waiting after more than kMaxRestarts
// restarts fails with UNAVAILABLE. A crash report names the grammar that exceeded its time or
// crashed, and that grammar gets a strike (grammar_strikes.h). No grammar gets one when the process
// is killed from outside. When the process hangs, a grammar gets one only if it was the only one in
// work.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "server/structured/grammar_program.h"
#include "server/structured/grammar_spec.h"
#include "server/structured/grammar_text.h"
#include "server/structured/limits.h"

namespace taopd {

struct GrammarHostOptions {
  std::string program;  // path of taopd-grammar; empty = beside this program
  GrammarLimits limits;
  // Wall-clock limits. They are generous, because a busy machine may delay the process.
  absl::Duration max_start_wait = absl::Seconds(60);
  absl::Duration max_compile_wait = absl::Seconds(60);
  absl::Duration max_mask_wait = absl::Seconds(30);
  absl::Duration max_silence = absl::Seconds(20);  // while masks are awaited
};

class GrammarHost {
 public:
  // The number of restarts of the process that a compilation or a mask survives.
  static constexpr int kMaxRestarts = 2;

  // Receives the size of the compiled grammar; INVALID_ARGUMENT if the spec cannot be compiled or
  // exceeds its limits; UNAVAILABLE if the process could not do it; CANCELLED when the host stops.
  using Compiled = std::function<void(absl::StatusOr<int64_t> num_bytes)>;
  // Receives the grammar that ended a process, and how. Called on the host's thread.
  using Strike = std::function<void(const GrammarSpec& grammar, const std::string& how)>;

  GrammarHost(std::vector<std::string> token_bytes, std::vector<int32_t> eos_ids,
              GrammarHostOptions options, Strike strike);
  // Pending calls of `Compiled` receive CANCELLED; texts fail.
  ~GrammarHost() { Stop(); }

  // Runs the task on the host's thread; see HostTasks::Post. Thread-safe.
  bool Post(HostTasks::Task task) { return tasks_->Post(std::move(task)); }
  // Ends the thread; no task runs after that. The destructor calls it.
  void Stop();

  // The functions below may only be called from tasks.

  std::shared_ptr<Grammar> NewGrammar(GrammarSpec spec);
  void Compile(std::shared_ptr<Grammar> grammar, Compiled compiled);
  // Call it when nobody uses the grammar any more.
  void Forget(const Grammar& grammar);
  // Appends `ids` to the text and asks for the mask of the next id.
  void Ask(const std::shared_ptr<GrammarText>& text, const std::vector<int32_t>& ids);
  void Close(std::shared_ptr<GrammarText> text);

 private:
  struct Job {
    std::shared_ptr<Grammar> grammar;
    Compiled compiled;  // null if the grammar was compiled before; a text then waits for it
    int num_restarts = 0;
  };

  void Run();
  void RunTasks();
  void Wait();
  void StartNext();
  void StartProgram();
  void Serve();
  absl::Status Handle(const std::string& frame);
  absl::Status HandleCompiled(FrameReader& reader);
  absl::Status HandleMask(FrameReader& reader);
  // Returns DEADLINE_EXCEEDED if the process does not read, or has not answered by NextDeadline.
  absl::Status CheckClock();
  absl::Time NextDeadline() const;
  // Ends the process for this reason, which may be that it has ended by itself. Decides for each
  // text and for the first job whether the next process continues it.
  void End(const absl::Status& why);
  // Forgets what the process had compiled. The grammar that the report names gets a strike.
  void ForgetCompiled(const CrashReport& report);
  // Fails the texts that have ended the process or have waited for too many processes.
  void EndTexts(const CrashReport& report);
  // Does the same for the first job. REQUIRES: there is one, and the process has worked on it or
  // was started for it.
  void EndFirstJob(const CrashReport& report, const absl::Status& why);
  void EndJob(const absl::StatusOr<int64_t>& result);
  void FailAll(const absl::Status& status);
  // `new_ids` are the last ids of the text: those that an open text in the process does not have
  // yet.
  void Send(GrammarText& text, const std::vector<int32_t>& new_ids);
  // Queues the grammar of a text, unless the process has it or it is queued already. It comes
  // before new grammars, because its text has already begun.
  void Requeue(const std::shared_ptr<Grammar>& grammar);
  // Returns the grammar that the process works on; null if it works on none or on several.
  const GrammarSpec* OnlySuspect(bool was_compiling) const;
  // The text gets no more masks after this. Close erases the pointer in texts_, hence the copies.
  void Fail(std::shared_ptr<GrammarText> text, const absl::Status& status);

  const std::vector<std::string> token_bytes_;
  const std::vector<int32_t> eos_ids_;
  const GrammarHostOptions options_;
  const Strike strike_;
  const std::shared_ptr<HostTasks> tasks_ = std::make_shared<HostTasks>();

  // Used only by the host's thread.
  std::unique_ptr<GrammarProgram> program_;
  bool is_ready_ = false;      // the process has the vocabulary
  bool is_compiling_ = false;  // jobs_.front() has been sent
  absl::Time started_at_, compile_sent_at_, heard_at_;
  std::deque<Job> jobs_;
  std::map<uint64_t, std::shared_ptr<GrammarText>> texts_;
  std::map<uint64_t, std::weak_ptr<Grammar>> grammars_;  // those that the process knows
  int64_t num_awaited_ = 0;                              // masks that have been asked for
  uint64_t next_id_ = 1;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace taopd
