// Runs taopd-grammar: starts it when something is asked, asks it for compilations and masks
// (wire.h), and starts it again when it ends, hangs or breaks the protocol.
//
// One thread owns the process, its socket, the forms and the texts. It never waits for anything but
// poll, and others wait for nothing but the short lock of the Inbox or of a text: so neither a full
// buffer nor a process that hangs can hold the engine's thread, or a thread with a lock that it
// needs.
//
// A process that ends takes no work with it. Forms are compiled again and texts are handed over
// anew when their next mask is asked for; what has waited for more than kMaxEnds processes fails
// with UNAVAILABLE. Who is to blame is told by the process's last word: the form that exceeded its
// time or crashed. Nobody is blamed for a process that was killed from outside. For one that hangs,
// a form is blamed if no other one can have done it.
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
  std::string program;  // of taopd-grammar; empty = beside this program
  GrammarLimits limits;
  // By the clock, which runs on while a machine is too busy for the process.
  absl::Duration max_start_wait = absl::Seconds(60);
  absl::Duration max_compile_wait = absl::Seconds(60);
  absl::Duration max_mask_wait = absl::Seconds(30);
  absl::Duration max_silence = absl::Seconds(20);  // while masks are asked for
};

class GrammarHost {
 public:
  // What has waited for so many processes that ended does not wait for another one.
  static constexpr int kMaxEnds = 2;

  // Receives the size of the compiled form, or INVALID_ARGUMENT if the spec cannot be compiled or
  // takes more than its limits, UNAVAILABLE if the process could not do it, CANCELLED at the end.
  using Compiled = std::function<void(absl::StatusOr<int64_t> num_bytes)>;
  // Is told which form ended a process, and how. Called on the host's thread.
  using Blame = std::function<void(const GrammarSpec& form, const std::string& how)>;

  GrammarHost(std::vector<std::string> token_bytes, std::vector<int32_t> eos_ids,
              GrammarHostOptions options, Blame blame);
  // Calls of `Compiled` that are still to come receive CANCELLED; texts fail.
  ~GrammarHost();
  GrammarHost(const GrammarHost&) = delete;
  GrammarHost& operator=(const GrammarHost&) = delete;

  // Thread-safe. Runs the task on the host's thread; see Inbox::Post.
  bool Post(Inbox::Task task) { return inbox_->Post(std::move(task)); }
  // Ends the thread, after which no task runs. The destructor calls it.
  void Stop();

  // The functions below are called in tasks.

  std::shared_ptr<Grammar> NewForm(GrammarSpec spec);
  void Compile(std::shared_ptr<Grammar> form, Compiled compiled);
  // Nobody uses the form any more.
  void Forget(const Grammar& form);
  // Asks for the mask behind the text's ids and these.
  void Ask(const std::shared_ptr<GrammarText>& text, const std::vector<int32_t>& ids);
  void Close(const std::shared_ptr<GrammarText>& text);

 private:
  struct Job {
    std::shared_ptr<Grammar> form;
    Compiled compiled;  // null = the form was compiled before, and a text waits for it
    int num_ends = 0;
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
  absl::Status CheckClock();
  absl::Time NextDeadline() const;
  // The process has ended, or is to end.
  void End(const absl::Status& why);
  void EndJob(const absl::StatusOr<int64_t>& result);
  void FailAll(const absl::Status& status);
  void Send(GrammarText& text, const std::vector<int32_t>& new_ids);
  void Requeue(const std::shared_ptr<Grammar>& form);
  const GrammarSpec* OnlySuspect(bool was_compiling) const;
  // The text gets no more masks.
  void Fail(const std::shared_ptr<GrammarText>& text, const absl::Status& status);

  const std::vector<std::string> token_bytes_;
  const std::vector<int32_t> eos_ids_;
  const GrammarHostOptions options_;
  const Blame blame_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();

  // Of the host's thread.
  std::unique_ptr<GrammarProgram> program_;
  bool is_ready_ = false;      // the process has the vocabulary
  bool is_compiling_ = false;  // jobs_.front() has been sent
  absl::Time started_at_, compile_sent_at_, heard_at_;
  std::deque<Job> jobs_;
  std::map<uint64_t, std::shared_ptr<GrammarText>> texts_;
  std::map<uint64_t, std::weak_ptr<Grammar>> forms_;  // that the process has, for its end
  int64_t num_awaited_ = 0;                           // masks that the process has been asked for
  uint64_t next_id_ = 1;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace taopd
