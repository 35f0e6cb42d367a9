#include "server/structured/grammar_host.h"

#include <absl/time/clock.h>
#include <poll.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "common/base/log.h"

namespace taopd {
namespace {

constexpr size_t kMaxUnsentBytes = size_t{256} << 20;
constexpr size_t kMaxMessageBytes = 64 << 10;  // from the process, without the bits of a mask

size_t MaskBytes(size_t vocab_size) { return (vocab_size + 63) / 64 * 8; }

std::string VocabularyFrame(const GrammarLimits& limits, const std::vector<int32_t>& eos_ids,
                            const std::vector<std::string>& token_bytes) {
  FrameWriter frame(GrammarOp::kVocabulary);
  frame.Add(limits).AddIds(eos_ids).Add(static_cast<uint32_t>(token_bytes.size()));
  for (const std::string& bytes : token_bytes) frame.AddText(bytes);
  return frame.bytes();
}

// Returns how the grammar of a crash report ended the process.
std::string HowItEnded(const CrashReport& report) {
  if (report.reason == CrashReport::kTimedOut)
    return report.text == 0 ? "it takes too long to compile" : "it takes too long to match";
  return report.text == 0 ? "the compiler cannot handle it" : "the matcher cannot handle it";
}

}  // namespace

GrammarHost::GrammarHost(std::vector<std::string> token_bytes, std::vector<int32_t> eos_ids,
                         GrammarHostOptions options, Strike strike)
    : token_bytes_(std::move(token_bytes)),
      eos_ids_(std::move(eos_ids)),
      options_(std::move(options)),
      strike_(std::move(strike)),
      thread_([this] { Run(); }) {}

void GrammarHost::Stop() {
  tasks_->Close();
  if (thread_.joinable()) thread_.join();
}

void GrammarHost::Run() {
  for (;;) {
    RunTasks();
    if (tasks_->is_closed()) break;
    StartNext();
    if (program_ != nullptr) program_->Flush();
    Wait();
    if (program_ != nullptr) Serve();
  }
  RunTasks();
  program_.reset();
  FailAll(absl::CancelledError("the server is shutting down"));
}

void GrammarHost::RunTasks() {
  for (HostTasks::Task& task : tasks_->Take()) {
    task(*this);
    task = nullptr;  // frees the text that it holds: the next task may count a grammar's users
  }
}

void GrammarHost::Wait() {
  pollfd entries[2] = {{.fd = tasks_->wake_fd(), .events = POLLIN, .revents = 0},
                       {.fd = -1, .events = POLLIN, .revents = 0}};
  if (program_ != nullptr) {
    entries[1].fd = program_->fd();
    if (program_->num_unsent() > 0) entries[1].events |= POLLOUT;
  }
  const absl::Time deadline = NextDeadline();
  int wait_ms = -1;
  if (deadline != absl::InfiniteFuture()) {
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now()) + 1;
    wait_ms = static_cast<int>(std::clamp<int64_t>(left_ms, 0, INT_MAX));
  }
  ::poll(entries, 2, wait_ms);
}

// Starts the process and the next compilation where they are needed.
void GrammarHost::StartNext() {
  const auto is_wanted = [](const auto& entry) { return entry.second->is_wanted; };
  if (program_ == nullptr &&
      (!jobs_.empty() || std::any_of(texts_.begin(), texts_.end(), is_wanted)))
    StartProgram();
  if (program_ == nullptr || !is_ready_ || is_compiling_ || jobs_.empty()) return;
  const Grammar& grammar = *jobs_.front().grammar;
  FrameWriter frame(GrammarOp::kCompile);
  frame.Add(grammar.id_).Add(grammar.spec_.kind).Add(uint8_t{grammar.spec_.any_whitespace});
  program_->Send(frame.AddRest(grammar.spec_.text).bytes());
  is_compiling_ = true;
  compile_sent_at_ = absl::Now();
}

void GrammarHost::StartProgram() {
  auto program = GrammarProgram::Start(options_.program);
  if (!program.ok())
    return FailAll(Unavailable("structured output is not available: ", program.status().message()));
  program_ = *std::move(program);
  is_ready_ = is_compiling_ = false;
  started_at_ = heard_at_ = absl::Now();
  program_->Send(VocabularyFrame(options_.limits, eos_ids_, token_bytes_));
}

void GrammarHost::Serve() {
  std::vector<std::string> frames;
  absl::Status status =
      program_->Receive(MaskBytes(token_bytes_.size()) + kMaxMessageBytes, &frames);
  if (!frames.empty()) heard_at_ = absl::Now();
  for (const std::string& frame : frames) {
    const absl::Status handled = Handle(frame);
    if (program_ == nullptr) return;
    if (!handled.ok()) return End(handled);
  }
  if (status.ok()) status = CheckClock();
  if (!status.ok()) End(status);
}

absl::Status GrammarHost::Handle(const std::string& frame) {
  FrameReader reader(frame);
  const auto op = reader.Read<GrammarOp>();
  if (is_ready_ && op == GrammarOp::kCompiled) return HandleCompiled(reader);
  if (is_ready_ && op == GrammarOp::kMask) return HandleMask(reader);
  if (is_ready_ || op != GrammarOp::kReady)
    return DataLoss("the grammar process sends an unexpected message");
  const auto code = reader.Read<int32_t>();
  const std::string message(reader.ReadRest());
  if (code != 0) {
    program_.reset();
    FailAll(Unavailable("structured output is not available: ", message));
    return absl::OkStatus();
  }
  is_ready_ = true;
  LogInfo("taopd-grammar started",
          {{"pid", static_cast<int64_t>(program_->pid())}, {"sandbox", message}});
  for (const auto& [id, text] : texts_) {
    if (text->is_wanted) Requeue(text->grammar);
  }
  return absl::OkStatus();
}

absl::Status GrammarHost::HandleCompiled(FrameReader& reader) {
  const auto grammar_id = reader.Read<uint64_t>();
  const auto code = static_cast<absl::StatusCode>(reader.Read<int32_t>());
  const auto num_bytes = reader.Read<int64_t>();
  if (!reader.ok() || !is_compiling_ || jobs_.front().grammar->id_ != grammar_id)
    return DataLoss("the grammar process sends an answer to no request");
  if (code != absl::StatusCode::kOk) {
    EndJob(absl::Status(code, std::string(reader.ReadRest())));
    return absl::OkStatus();
  }
  jobs_.front().grammar->is_compiled_ = true;
  EndJob(num_bytes);
  return absl::OkStatus();
}

absl::Status GrammarHost::HandleMask(FrameReader& reader) {
  const auto found = texts_.find(reader.Read<uint64_t>());
  const auto position = reader.Read<uint64_t>();
  const auto state = reader.Read<MaskState>();
  if (!reader.ok()) return DataLoss("the grammar process sends a short message");
  if (found == texts_.end()) return absl::OkStatus();  // closed meanwhile
  GrammarText& text = *found->second;
  const std::string_view rest = reader.ReadRest();
  const bool is_whole =
      state != MaskState::kRestricts || rest.size() == MaskBytes(token_bytes_.size());
  if (!text.is_open || !text.is_wanted || position != text.ids.size() || !is_whole)
    return DataLoss("the grammar process sends a mask that was not asked for");
  if (state == MaskState::kFailed) {
    Fail(found->second, InvalidArgument("structured output: ", rest));
    return absl::OkStatus();
  }
  text.is_wanted = false;
  --num_awaited_;
  text.num_restarts = 0;
  absl::MutexLock lock(&text.mutex);
  text.position = position;
  text.restricts = state == MaskState::kRestricts;
  text.bits = rest;
  return absl::OkStatus();
}

absl::Time GrammarHost::NextDeadline() const {
  if (program_ == nullptr) return absl::InfiniteFuture();
  if (!is_ready_) return started_at_ + options_.max_start_wait;
  absl::Time deadline = absl::InfiniteFuture();
  if (is_compiling_) deadline = compile_sent_at_ + options_.max_compile_wait;
  if (num_awaited_ > 0) deadline = std::min(deadline, heard_at_ + options_.max_silence);
  return deadline;
}

absl::Status GrammarHost::CheckClock() {
  if (program_->num_unsent() > kMaxUnsentBytes)
    return absl::DeadlineExceededError("the grammar process does not read");
  if (absl::Now() < NextDeadline()) return absl::OkStatus();
  return absl::DeadlineExceededError("the grammar process does not answer");
}

void GrammarHost::End(const absl::Status& why) {
  const CrashReport report = program_->ReadCrashReport();
  LogWarning("taopd-grammar has ended and is started again when it is needed",
             {{"pid", static_cast<int64_t>(program_->pid())},
              {"reason", report.reason != 0 ? HowItEnded(report) : std::string(why.message())}});
  program_.reset();
  num_awaited_ = 0;
  const bool was_compiling = std::exchange(is_compiling_, false);
  const bool was_ready = std::exchange(is_ready_, false);
  const bool hangs = absl::IsDeadlineExceeded(why);
  if (const GrammarSpec* suspect = hangs ? OnlySuspect(was_compiling) : nullptr)
    strike_(*suspect, "it did not finish in time");
  ForgetCompiled(report);
  EndTexts(report);
  if (!was_ready && hangs)
    return FailAll(Unavailable("structured output is not available: ", why.message()));
  if (!jobs_.empty() && (was_compiling || !was_ready)) EndFirstJob(report, why);
}

void GrammarHost::ForgetCompiled(const CrashReport& report) {
  for (auto& [id, weak] : std::exchange(grammars_, {})) {
    const std::shared_ptr<Grammar> grammar = weak.lock();
    if (grammar == nullptr) continue;
    grammar->is_compiled_ = false;
    if (report.reason != 0 && report.grammar == id) strike_(grammar->spec_, HowItEnded(report));
  }
}

void GrammarHost::EndTexts(const CrashReport& report) {
  for (auto& [id, text] : std::map(texts_)) {  // a copy, because Fail removes the text
    text->is_open = false;
    if (!text->is_wanted) continue;
    if (report.reason != 0 && report.text == id) {
      Fail(text, InvalidArgument("structured output: ", HowItEnded(report)));
    } else if (++text->num_restarts > kMaxRestarts) {
      Fail(text, Unavailable("structured output: the grammar process ended ", text->num_restarts,
                             " times before it sent a mask; try again"));
    }
  }
}

void GrammarHost::EndFirstJob(const CrashReport& report, const absl::Status& why) {
  Job& job = jobs_.front();
  if (report.reason != 0 && report.grammar == job.grammar->id_ && report.text == 0) {
    EndJob(InvalidArgument(HowItEnded(report)));
  } else if (++job.num_restarts > kMaxRestarts) {
    EndJob(Unavailable("structured output is not available: the grammar process ended ",
                       kMaxRestarts + 1, " times during the wait for it (", why.message(),
                       "); try again"));
  }
}

const GrammarSpec* GrammarHost::OnlySuspect(bool was_compiling) const {
  const Grammar* only = was_compiling ? jobs_.front().grammar.get() : nullptr;
  for (const auto& [id, text] : texts_) {
    if (!text->is_open || !text->is_wanted) continue;
    if (only != nullptr && only != text->grammar.get()) return nullptr;
    only = text->grammar.get();
  }
  return only != nullptr ? &only->spec_ : nullptr;
}

void GrammarHost::EndJob(const absl::StatusOr<int64_t>& result) {
  const Job job = std::move(jobs_.front());
  jobs_.pop_front();
  is_compiling_ = false;
  job.grammar->is_queued_ = false;
  if (result.ok()) {
    grammars_[job.grammar->id_] = job.grammar;
  } else {
    grammars_.erase(job.grammar->id_);
  }
  for (auto& [id, text] : std::map(texts_)) {  // a copy, because Fail removes the text
    if (text->grammar != job.grammar || !text->is_wanted || text->is_open) continue;
    if (result.ok()) {
      Send(*text, {});
    } else {
      Fail(text, Annotate(result.status(), "structured output"));
    }
  }
  if (job.compiled) job.compiled(result);
}

void GrammarHost::FailAll(const absl::Status& status) {
  for (auto& [id, text] : std::map(texts_)) {  // a copy, because Fail removes the text
    text->is_open = false;
    if (text->is_wanted) Fail(text, status);
  }
  // The callbacks may ask for more, which is for the next process.
  for (const Job& job : std::exchange(jobs_, {})) {
    job.grammar->is_queued_ = false;
    if (job.compiled) job.compiled(status);
  }
}

std::shared_ptr<Grammar> GrammarHost::NewGrammar(GrammarSpec spec) {
  return std::shared_ptr<Grammar>(
      new Grammar(next_id_++, std::move(spec), tasks_, options_.max_mask_wait));
}

void GrammarHost::Compile(std::shared_ptr<Grammar> grammar, Compiled compiled) {
  grammar->is_queued_ = true;
  grammars_[grammar->id_] = grammar;
  jobs_.push_back({std::move(grammar), std::move(compiled)});
}

void GrammarHost::Requeue(const std::shared_ptr<Grammar>& grammar) {
  if (grammar->is_compiled_ || std::exchange(grammar->is_queued_, true)) return;
  grammars_[grammar->id_] = grammar;
  jobs_.insert(jobs_.begin() + (is_compiling_ ? 1 : 0), Job{grammar, nullptr});
}

void GrammarHost::Forget(const Grammar& grammar) {
  grammars_.erase(grammar.id_);
  if (grammar.is_compiled_)
    program_->Send(FrameWriter(GrammarOp::kForget).Add(grammar.id_).bytes());
}

void GrammarHost::Ask(const std::shared_ptr<GrammarText>& text, const std::vector<int32_t>& ids) {
  if (text->id == 0) {
    text->id = next_id_++;
    texts_[text->id] = text;
  } else if (!texts_.contains(text->id)) {
    return;  // it has failed
  }
  text->ids.insert(text->ids.end(), ids.begin(), ids.end());
  text->is_wanted = true;
  if (text->grammar->is_compiled_) {
    Send(*text, ids);
  } else {
    Requeue(text->grammar);
  }
}

void GrammarHost::Send(GrammarText& text, const std::vector<int32_t>& new_ids) {
  FrameWriter frame(text.is_open ? GrammarOp::kAdvance : GrammarOp::kOpen);
  frame.Add(text.grammar->id_).Add(text.id);
  if (text.is_open) {
    frame.Add(static_cast<uint64_t>(text.ids.size())).AddIds(new_ids);
  } else {
    std::vector<int32_t> end_ids = eos_ids_;
    end_ids.insert(end_ids.end(), text.stop_ids.begin(), text.stop_ids.end());
    std::sort(end_ids.begin(), end_ids.end());
    end_ids.erase(std::unique(end_ids.begin(), end_ids.end()), end_ids.end());
    frame.AddIds(end_ids).AddIds(text.ids);
    text.is_open = true;
  }
  program_->Send(frame.bytes());
  if (num_awaited_++ == 0) heard_at_ = absl::Now();
}

void GrammarHost::Close(std::shared_ptr<GrammarText> text) {
  if (texts_.erase(text->id) == 0) return;
  if (text->is_open) {
    program_->Send(FrameWriter(GrammarOp::kClose).Add(text->grammar->id_).Add(text->id).bytes());
    num_awaited_ -= text->is_wanted;
  }
  text->is_open = text->is_wanted = false;
}

void GrammarHost::Fail(std::shared_ptr<GrammarText> text, const absl::Status& status) {
  Close(text);
  absl::MutexLock lock(&text->mutex);
  text->failure = status;
}

}  // namespace taopd
